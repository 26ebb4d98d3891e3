import type { Metrics } from "./metrics/metrics.ts";

export interface Ops {
  /** The port asked for, or the one that the system chose for 0. */
  port: number;
  stop(): Promise<void>;
}

/** A check that takes longer counts as not ready, since probes give up by then. */
const READY_TIMEOUT_MS = 2_000;
/** Enough for the largest payload that a job can carry. */
const BODY_BYTES_MAX = 1_048_576;

/** `keepOpen` keeps the connection however long the answer takes. */
export type OpsRoute = (request: Request, keepOpen: () => void) => Promise<Response>;

/**
 * Serves operators on a port of their own: GET /healthz (alive), /readyz (200 while `ready` is true, else 503), /metrics, and
 * `routes` by method and path, such as "POST /echo". Throws if it cannot listen on the port.
 */
export function startOps({
  host,
  port,
  ready,
  metrics,
  routes = {},
}: {
  host: string;
  port: number;
  /** Whether this process serves. It is false while draining or without Postgres; a throw counts as false. */
  ready: () => boolean | Promise<boolean>;
  metrics: Metrics;
  routes?: Record<string, OpsRoute>;
}): Ops {
  const all = new Map<string, OpsRoute>(
    Object.entries({
      "GET /healthz": async () => new Response("ok\n"),
      "GET /readyz": async () =>
        (await isReady(ready)) ? new Response("ready\n") : new Response("not ready\n", { status: 503 }),
      "GET /metrics": async () => {
        const { text, contentType } = await metrics.page();
        return new Response(text, { headers: { "content-type": contentType } });
      },
      ...routes,
    }),
  );
  const server = Bun.serve({
    hostname: host,
    port,
    maxRequestBodySize: BODY_BYTES_MAX,
    development: false,
    fetch(request, server) {
      const method = request.method === "HEAD" ? "GET" : request.method;
      const route = all.get(`${method} ${new URL(request.url).pathname}`);
      return (
        route?.(request, () => server.timeout(request, 0)) ?? new Response("not found\n", { status: 404 })
      );
    },
    error: () => new Response("internal error\n", { status: 500 }),
  });
  return { port: server.port ?? port, stop: () => server.stop(true) };
}

async function isReady(ready: () => boolean | Promise<boolean>): Promise<boolean> {
  const late = Promise.withResolvers<boolean>();
  const timer = setTimeout(() => late.resolve(false), READY_TIMEOUT_MS);
  try {
    return await Promise.race([ready(), late.promise]);
  } catch {
    return false;
  } finally {
    clearTimeout(timer);
  }
}
