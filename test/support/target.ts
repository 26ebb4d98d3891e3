/** An arrival at a customer's host. The host is a real HTTP server that records arrivals and answers as it is told. */
export interface Arrival {
  at: number;
  path: string;
  jobId: string;
  runId: string;
  attempt: number;
  headers: Record<string, string>;
  body: string;
}

export interface Target {
  url: string;
  port: number;
  arrivals: Arrival[];
  /** The requests that have arrived and were not answered yet. */
  readonly open: number;
  /** The most requests that were open at once. */
  readonly openMax: number;
  /** Resolves once `isEnough` holds; rejects after `timeoutMs`. */
  until(isEnough: (arrivals: Arrival[]) => boolean, timeoutMs?: number): Promise<Arrival[]>;
  stop(): Promise<void>;
}

const UNTIL_TIMEOUT_MS = 120_000;

export function startTarget(
  answer: (arrival: Arrival) => Response | Promise<Response> = () => new Response("ok"),
  port = 0,
): Target {
  const arrivals: Arrival[] = [];
  const waiting = new Set<() => void>();
  let open = 0;
  let openMax = 0;
  const server = Bun.serve({
    hostname: "127.0.0.1",
    port,
    idleTimeout: 0,
    async fetch(request) {
      open++;
      openMax = Math.max(openMax, open);
      try {
        const arrival: Arrival = {
          at: Date.now(),
          path: new URL(request.url).pathname,
          jobId: request.headers.get("service-job-id") ?? "",
          runId: request.headers.get("service-run-id") ?? "",
          attempt: Number(request.headers.get("service-attempt")),
          headers: Object.fromEntries(request.headers),
          body: await request.text(),
        };
        arrivals.push(arrival);
        for (const look of waiting) look();
        return await answer(arrival);
      } finally {
        open--;
      }
    },
  });
  return {
    url: `http://127.0.0.1:${server.port}/hook`,
    port: server.port ?? 0,
    arrivals,
    get open() {
      return open;
    },
    get openMax() {
      return openMax;
    },
    until(isEnough, timeoutMs = UNTIL_TIMEOUT_MS) {
      const { promise, resolve, reject } = Promise.withResolvers<Arrival[]>();
      const look = () => {
        if (!isEnough(arrivals)) return;
        waiting.delete(look);
        clearTimeout(timer);
        resolve(arrivals);
      };
      const timer = setTimeout(() => {
        waiting.delete(look);
        reject(new Error(`not enough arrived in ${timeoutMs} ms: ${arrivals.length}`));
      }, timeoutMs);
      waiting.add(look);
      look();
      return promise;
    },
    async stop() {
      await server.stop(true);
    },
  };
}
