import { preciseNow, quantilesOf } from "./quantiles.ts";

/**
 * Takes what is delivered, as a process of its own: `bun sink.ts HTTP_PORT HTTPS_PORT CERT KEY`. `/hook` answers 200,
 * `/fail` 500, and `/close` 200 and closes the connection, as a target does that keeps none; `/stall` is answered when all are asked for by `/release`.
 */

export interface Received {
  count: number;
  /** Heads and bodies, both ways, without what TCP and TLS add. */
  bytes: number;
  /** Milliseconds between the time for which an attempt was due and its receipt, at QUANTILES. */
  latenessMs: number[];
}

const IDLE_TIMEOUT_SECONDS = 120;
const BYTES_OF_ANSWER = 130;
const BYTES_OF_REQUEST_LINE = 40;

let count = 0;
let bytes = 0;
let lateness: number[] = [];
const released = Promise.withResolvers<void>();

async function answer(request: Request): Promise<Response> {
  const { pathname } = new URL(request.url);
  if (request.method === "GET") {
    if (pathname === "/release") released.resolve();
    if (pathname === "/begin") {
      count = 0;
      bytes = 0;
      lateness = [];
    }
    return Response.json({ count, bytes, latenessMs: quantilesOf(lateness) } satisfies Received);
  }
  count++;
  const dueAt = Date.parse(request.headers.get("service-scheduled-at") ?? "");
  // A webhook's event is not due at a time of its own.
  if (!Number.isNaN(dueAt)) lateness.push(preciseNow() - dueAt);
  bytes += BYTES_OF_REQUEST_LINE + BYTES_OF_ANSWER;
  for (const [name, value] of request.headers) bytes += name.length + value.length + 4;
  bytes += (await request.arrayBuffer()).byteLength;
  if (pathname === "/stall") await released.promise;
  if (pathname === "/fail") return new Response("no", { status: 500 });
  return new Response("ok", pathname === "/close" ? { headers: { connection: "close" } } : {});
}

if (import.meta.main) {
  const [httpPort, httpsPort, cert = "", key = ""] = process.argv.slice(2);
  const serve = { hostname: "127.0.0.1", fetch: answer, idleTimeout: IDLE_TIMEOUT_SECONDS };
  Bun.serve({ ...serve, port: Number(httpPort) });
  Bun.serve({ ...serve, hostname: "127.0.0.2", port: Number(httpPort) });
  Bun.serve({ ...serve, port: Number(httpsPort), tls: { cert: Bun.file(cert), key: Bun.file(key) } });
}
