import { randomBytes } from "node:crypto";
import { beginAttempt, endAttempt, sendTraced } from "../../services/delivery/traced.ts";
import { createRequestTraces } from "../../services/gateway/request/request-trace.ts";
import { OPERATIONS } from "../../shared/contract/operations.ts";
import { flowClassOf } from "../../shared/domain/flow-class.ts";
import { createIdSource, JOB_PREFIX, REQUEST_PREFIX, RUN_PREFIX, retypeId } from "../../shared/domain/ids.ts";
import type { Exchange } from "../../shared/domain/run.ts";
import { formatTraceparent, type TraceContext, unrecordedContext } from "../../shared/domain/trace.ts";
import { createLog } from "../../shared/platform/log.ts";
import { startRecorder } from "../../shared/platform/traces/recorder.ts";
import { chooseTraces, NO_TRACES, type Traces } from "../../shared/platform/traces/traces.ts";
import { printTable, summarize } from "./measure.ts";

/** What the trace of a job costs from its request to its webhook: none wanted, none recorded, and recorded and sent. */

const ROUNDS = 5;
const JOBS = 200_000;
/** So few at a time that all their spans find room, and are sent within the pause after them. */
const RECORDED_JOBS = 400;
const RECORDED_TIMES = 4;
const PAUSE_MS = 1_300;
const COLLECTOR = `Bun.serve({ port: 0, async fetch(request) { await request.text(); return Response.json({}); } })`;

const ids = createIdSource(randomBytes);
const clock = { now: () => performance.timeOrigin + performance.now(), stop: () => undefined };
const scope = { projectNo: 1, environment: "production" } as const;
const client: TraceContext = {
  traceId: randomBytes(16).toString("hex"),
  spanId: randomBytes(8).toString("hex"),
  isSampled: true,
};
const exchange: Exchange = {
  kind: "answered",
  status: 200,
  headers: { location: null, retryAfter: null, serviceNoRetry: null, contentEncoding: null },
  body: new Uint8Array(),
  bodyBytes: 0,
  bodyEnd: "complete",
};
const outcome = { status: "succeeded", responseStatus: 200, next: "succeeded" };

type Headers = Record<string, string>;
type Trace = (headers: Headers) => Promise<void>;

const newRequest = (headers: Headers) => {
  const requestId = ids.next(REQUEST_PREFIX, clock.now());
  return { request: new Request("http://gateway/v2/jobs", { method: "POST", headers }), requestId };
};

/** What goes before the calls and is no part of their cost. */
const traceNothing: Trace = async (headers) => {
  const { requestId } = newRequest(headers);
  ids.next(RUN_PREFIX, clock.now());
  retypeId(requestId, JOB_PREFIX);
};

/** The calls that a job and its one event make, without anything between them. */
function traceWith(traces: Traces): Trace {
  const traceRequest = createRequestTraces(traces, clock);
  return async (headers) => {
    const asked = newRequest(headers);
    const traced = traceRequest({ ...asked, receivedAt: performance.now() }, OPERATIONS.createJob, scope);
    const trace = traced.context();
    traced.end(201, null);

    const [jobId, runId] = [retypeId(asked.requestId, JOB_PREFIX), ids.next(RUN_PREFIX, clock.now())];
    for (const [kind, id] of [["jobs", jobId] as const, ["webhooks", runId] as const]) {
      const dueAt = clock.now();
      const flowClass = flowClassOf(kind, scope.environment);
      const item = { ...scope, region: "us-east" as const, flowClass, shard: 0, id, attempt: 1, dueAt };
      const attributes = { "jobwheel.job_id": jobId, "jobwheel.run_id": runId };
      const describe = () => ({ name: kind, attributes });
      const span = beginAttempt(traces, item, { trace, startedAt: dueAt }, describe);
      await sendTraced(span, trace ?? unrecordedContext(jobId, runId), clock, async () => exchange);
      endAttempt(span, clock.now(), outcome);
    }
  };
}

async function measure(
  trace: Trace,
  headers: Headers,
  { jobs = JOBS, times = 1, pauseMs = 0 } = {},
): Promise<string> {
  const samples: number[] = [];
  for (let round = 0; round <= ROUNDS; round++) {
    const before = process.cpuUsage();
    for (let time = 0; time < times; time++) {
      for (let job = 0; job < jobs; job++) await trace(headers);
      await Bun.sleep(pauseMs);
    }
    const { user, system } = process.cpuUsage(before);
    // The first round is for the compiler.
    if (round > 0) samples.push((user + system) / jobs / times);
  }
  return summarize(samples);
}

const collector = Bun.spawn([process.execPath, "-e", `console.log(${COLLECTOR}.port)`], { stdout: "pipe" });
const { value } = await collector.stdout.getReader().read();
const endpoint = `http://127.0.0.1:${Number(new TextDecoder().decode(value))}`;
const log = createLog({ name: "bench", level: "warn" });
const recorder = startRecorder({ service: "bench", nodeName: "bench", endpoint, log });
const byLot = traceWith(chooseTraces(0.01, recorder));
const recorded = traceWith({
  ...recorder,
  begin: (parent, _, describe) => recorder.begin(parent, describe()),
});
const none = {};
const sampled = { traceparent: formatTraceparent(client) };
const unsampled = { traceparent: formatTraceparent({ ...client, isSampled: false }) };
const fewAtATime = { jobs: RECORDED_JOBS, times: RECORDED_TIMES, pauseMs: PAUSE_MS };

printTable(
  ["a job with one webhook", "µs of CPU"],
  [
    ["the ids and the request alone", await measure(traceNothing, none)],
    ["off, no traceparent", await measure(traceWith(NO_TRACES), none)],
    ["off, a client's traceparent", await measure(traceWith(NO_TRACES), sampled)],
    ["on, no traceparent, 1 % by lot", await measure(byLot, none)],
    ["on, a client's traceparent that is not sampled", await measure(byLot, unsampled)],
    ["the ids and the request alone, few at a time", await measure(traceNothing, none, fewAtATime)],
    ["on, recorded and sent: 5 spans", await measure(recorded, sampled, fewAtATime)],
  ],
);
await recorder.stop();
collector.kill();
process.exit();
