import type { EntryError } from "../domain/errors.ts";
import { onAbort } from "./abort.ts";
import { type Answer, countOf, rateLimitOf } from "./answer.ts";
import { type Failure, type Refusal, UNEXPECTED_ANSWER } from "./errors.ts";

export type Fetch = (url: string, init: RequestInit) => Promise<Response>;

export type Outcome = { kind: "answered"; value: object; answer: Answer } | Failure;

/** The longest wait that a timer can hold. Timers with a longer one fire at once. */
const TIMER_MS_MAX = 2_147_483_647;

/** Sends a request once and reads the whole answer. Throws only the signal's reason. */
export async function tryOnce(
  fetch: Fetch,
  url: string,
  init: RequestInit,
  { timeoutMs, signal }: { timeoutMs: number; signal: AbortSignal | undefined },
): Promise<Outcome> {
  signal?.throwIfAborted();
  const ending = new AbortController();
  const forget = onAbort(signal, () => ending.abort());
  let isLate = false;
  const timer = setTimeout(
    () => {
      isLate = true;
      ending.abort();
    },
    Math.min(timeoutMs, TIMER_MS_MAX),
  );
  try {
    // A redirect would be followed with another method, or to a host that should not see the key.
    const response = await fetch(url, { ...init, redirect: "manual", signal: ending.signal });
    return readAnswer(response, await response.text());
  } catch (cause) {
    signal?.throwIfAborted();
    return isLate ? { kind: "timed_out", timeoutMs } : { kind: "unanswered", cause };
  } finally {
    clearTimeout(timer);
    forget();
  }
}

function readAnswer(response: Response, text: string): Outcome {
  const { status, headers } = response;
  const value = parseObject(text);
  if (!response.ok || value === null) return { kind: "refused", refusal: readRefusal(response, value) };
  const answer = {
    status,
    requestId: headers.get("Request-Id"),
    rateLimit: rateLimitOf(headers),
    isReplayed: headers.get("Idempotent-Replayed") === "true",
    text,
  };
  return { kind: "answered", value, answer };
}

function readRefusal({ status, headers }: Response, value: object | null): Refusal {
  const told = toldOf(value);
  const type = headers.get("Content-Type") ?? "nothing";
  return {
    code: told?.code ?? UNEXPECTED_ANSWER,
    message: told?.message ?? `This is no answer of the API: ${type} with status ${status}.`,
    status,
    requestId: told?.request_id ?? headers.get("Request-Id"),
    param: told?.param ?? null,
    details: told?.details ?? [],
    retryAfterSeconds: countOf(headers, "Retry-After"),
    rateLimit: rateLimitOf(headers),
  };
}

/** The error of the documented envelope. Its code need not be one that this client knows. */
interface Told {
  code: string;
  message: string;
  request_id?: string;
  param?: string;
  details?: EntryError[];
}

function toldOf(value: object | null): Told | null {
  const error = (value as { error?: Partial<Told> | null } | null)?.error;
  return typeof error?.code === "string" && typeof error.message === "string" ? (error as Told) : null;
}

function parseObject(text: string): object | null {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}
