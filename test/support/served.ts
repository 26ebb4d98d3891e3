const AGAIN_MS = 100;
const PATIENCE_MS = 60_000;

/**
 * Asks the API, and again after each 503 for a minute, as the API asks its clients to: on a busy machine Postgres may
 * answer too late. A POST has an Idempotency-Key of its own. For tests that are not about the 503.
 */
export async function fetchServed(url: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (init.method === "POST" && !headers.has("idempotency-key"))
    headers.set("idempotency-key", crypto.randomUUID());
  const giveUpAt = performance.now() + PATIENCE_MS;
  for (;;) {
    const response = await fetch(url, { ...init, headers });
    if (response.status !== 503 || performance.now() > giveUpAt) return response;
    await response.body?.cancel();
    await Bun.sleep(AGAIN_MS);
  }
}
