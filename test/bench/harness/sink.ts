import { createHmac } from "node:crypto";
import { preciseNow, quantilesOf } from "./quantiles.ts";

/**
 * A program that receives the deliveries: `bun sink.ts SETTINGS`. `/hook` answers 200, `/created` 201, `/fail` 500, and
 * `/close` answers 200 and closes the connection, like a target that keeps none. `/stall` is answered once `/release` has been
 * asked for. `/begin` begins all counts anew. Its query names the figures that are kept beside the number of requests, since
 * each costs CPU: `bytes`, `lateness`, `jobs`, `receipts`. `/counts` answers the counts alone, for callers who ask often.
 */
export const SINK = import.meta.path;

export interface SinkSettings {
  port: number;
  tls?: { port: number; cert: string; key: string };
  /** The body that every delivery must have, for `jobs`. */
  body?: string;
  /** The secrets of the senders, for `jobs`: requests to `/hook/N` must be signed with the one at N. */
  secrets?: readonly string[];
}

export interface Counts {
  count: number;
  /** Distinct jobs, and requests whose body or signature was wrong. Both only with `jobs`. */
  jobCount: number;
  wrongCount: number;
  /** The instants of the first request and of the last one that brought a new job. */
  firstAt: number;
  lastAt: number;
}

export interface Received extends Counts {
  /** Job ids with the instants of their receipt and of their due time. Only with `receipts`. */
  receipts: [jobId: string, at: number, dueAt: number][];
  /** Heads and bodies in both directions, without the overhead of TCP and TLS. */
  bytes: number;
  /** Milliseconds from the due time of an attempt to its receipt, at QUANTILES. */
  latenessMs: number[];
}

const IDLE_TIMEOUT_SECONDS = 120;
const BYTES_OF_ANSWER = 130;
const BYTES_OF_REQUEST_LINE = 40;

let counts: Counts;
let jobs: Set<string>;
let bytes: number;
let lateness: number[];
let receipts: Received["receipts"];
let kept = new URLSearchParams();
let settings: SinkSettings = { port: 0 };
let signatures: string[] = [];
const released = Promise.withResolvers<void>();

function begin(what: URLSearchParams): void {
  counts = { count: 0, jobCount: 0, wrongCount: 0, firstAt: 0, lastAt: 0 };
  jobs = new Set();
  bytes = 0;
  lateness = [];
  receipts = [];
  kept = what;
}

async function answer(request: Request): Promise<Response> {
  const { pathname, searchParams } = new URL(request.url);
  if (request.method === "GET") {
    if (pathname === "/release") released.resolve();
    if (pathname === "/begin") begin(searchParams);
    if (pathname === "/counts") return Response.json(counts);
    const latenessMs = quantilesOf(lateness);
    return Response.json({ ...counts, receipts, bytes, latenessMs } satisfies Received);
  }
  counts.count++;
  if (kept.has("lateness")) {
    const dueAt = Date.parse(request.headers.get("service-scheduled-at") ?? "");
    // An event has no due time of its own.
    if (!Number.isNaN(dueAt)) lateness.push(preciseNow() - dueAt);
  }
  if (kept.has("jobs")) await noteJob(request, pathname);
  if (kept.has("bytes")) {
    bytes += BYTES_OF_REQUEST_LINE + BYTES_OF_ANSWER;
    for (const [name, value] of request.headers) bytes += name.length + value.length + 4;
    bytes += (await request.arrayBuffer()).byteLength;
  }
  if (pathname === "/stall") await released.promise;
  if (pathname === "/created") return new Response("{}", { status: 201 });
  if (pathname === "/fail") return new Response("no", { status: 500 });
  return new Response("ok", pathname === "/close" ? { headers: { connection: "close" } } : {});
}

async function noteJob(request: Request, pathname: string): Promise<void> {
  const now = preciseNow();
  const { headers } = request;
  const id = headers.get("service-job-id") ?? "";
  if (jobs.size === 0) counts.firstAt = now;
  if (!jobs.has(id)) counts.lastAt = now;
  counts.jobCount = jobs.add(id).size;
  if (kept.has("receipts")) receipts.push([id, now, Date.parse(headers.get("service-scheduled-at") ?? "")]);
  // All bodies are the same, so that each sender has one signature.
  const signature = signatures[Number(pathname.slice(pathname.lastIndexOf("/") + 1))];
  const isSigned = signatures.length === 0 || headers.get("service-signature") === signature;
  if ((await request.text()) !== settings.body || !isSigned) counts.wrongCount++;
}

if (import.meta.main) {
  settings = JSON.parse(process.argv[2] ?? "") as SinkSettings;
  const { port, tls, body = "", secrets = [] } = settings;
  signatures = secrets.map((secret) => createHmac("sha256", secret).update(body).digest("hex"));
  begin(kept);
  const serve = { hostname: "127.0.0.1", fetch: answer, idleTimeout: IDLE_TIMEOUT_SECONDS };
  Bun.serve({ ...serve, port });
  Bun.serve({ ...serve, hostname: "127.0.0.2", port });
  if (tls !== undefined)
    Bun.serve({ ...serve, port: tls.port, tls: { cert: Bun.file(tls.cert), key: Bun.file(tls.key) } });
}
