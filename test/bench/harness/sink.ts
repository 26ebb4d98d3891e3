import { preciseNow, quantilesOf } from "./quantiles.ts";

/**
 * A program that receives the deliveries: `bun sink.ts SETTINGS`. `/hook` answers 200, `/fail` 500, and `/close`
 * answers 200 and closes the connection, like a target that keeps none. `/stall` is answered once `/release` has been
 * asked for. `/begin` begins all counts anew; its query names what is kept beside the number of requests, since that
 * costs: `bytes`, `lateness`, `receipts`.
 */
export const SINK = import.meta.path;

export interface SinkSettings {
  port: number;
  tls?: { port: number; cert: string; key: string };
}

export interface Received {
  count: number;
  /** Job ids with the instants of their receipt, if those are kept. */
  receipts: [jobId: string, at: number][];
  /** Heads and bodies in both directions, without the overhead of TCP and TLS. */
  bytes: number;
  /** Milliseconds from the due time of an attempt to its receipt, at QUANTILES. */
  latenessMs: number[];
}

const IDLE_TIMEOUT_SECONDS = 120;
const BYTES_OF_ANSWER = 130;
const BYTES_OF_REQUEST_LINE = 40;

let count = 0;
let bytes = 0;
let lateness: number[] = [];
let receipts: Received["receipts"] = [];
let kept = new URLSearchParams();
const released = Promise.withResolvers<void>();

async function answer(request: Request): Promise<Response> {
  const { pathname, searchParams } = new URL(request.url);
  if (request.method === "GET") {
    if (pathname === "/release") released.resolve();
    if (pathname === "/begin") {
      count = 0;
      bytes = 0;
      lateness = [];
      receipts = [];
      kept = searchParams;
    }
    const latenessMs = quantilesOf(lateness);
    return Response.json({ count, receipts, bytes, latenessMs } satisfies Received);
  }
  count++;
  if (kept.has("lateness")) {
    const dueAt = Date.parse(request.headers.get("service-scheduled-at") ?? "");
    // An event has no due time of its own.
    if (!Number.isNaN(dueAt)) lateness.push(preciseNow() - dueAt);
  }
  if (kept.has("receipts")) receipts.push([request.headers.get("service-job-id") ?? "", preciseNow()]);
  if (kept.has("bytes")) {
    bytes += BYTES_OF_REQUEST_LINE + BYTES_OF_ANSWER;
    for (const [name, value] of request.headers) bytes += name.length + value.length + 4;
    bytes += (await request.arrayBuffer()).byteLength;
  }
  if (pathname === "/stall") await released.promise;
  if (pathname === "/fail") return new Response("no", { status: 500 });
  return new Response("ok", pathname === "/close" ? { headers: { connection: "close" } } : {});
}

if (import.meta.main) {
  const { port, tls } = JSON.parse(process.argv[2] ?? "") as SinkSettings;
  const serve = { hostname: "127.0.0.1", fetch: answer, idleTimeout: IDLE_TIMEOUT_SECONDS };
  Bun.serve({ ...serve, port });
  Bun.serve({ ...serve, hostname: "127.0.0.2", port });
  if (tls !== undefined)
    Bun.serve({ ...serve, port: tls.port, tls: { cert: Bun.file(tls.cert), key: Bun.file(tls.key) } });
}
