import { PAYLOAD } from "../harness/jobs.ts";
import type { Cell } from "./cell.ts";

/** One way in which jobs come and go, at one rate. */
export interface Case {
  name: string;
  /** Jobs per second; null for as many as possible. */
  ratePerS: number | null;
  run(cell: Cell, pace: Pace): Promise<Outcome>;
}

export interface Pace {
  ratePerS: number | null;
  seconds: number;
  /** A case calls `begin` after its preparations. Everything that follows is measured. */
  begin(): Promise<void>;
}

export interface Outcome {
  jobs: number;
  /** The attempts and webhook deliveries that were sent. */
  requests: number;
  seconds: number;
  /** `latencyMs` is from a request to its 201, `latenessMs` from due to received. Both are at QUANTILES. */
  latencyMs: number[] | null;
  latenessMs: number[] | null;
  /** Bytes through the gateway and through the delivery node, heads and bodies. */
  bytesIn: number;
  bytesOut: number;
}

const CONNECTIONS = 64;
const BATCH = 100;
const BATCH_CONNECTIONS = 4;
/** The jobs of a case without a rate: all are due at once. */
const FLOOD_JOBS = 10_000;
const LEAD_MS = 2_500;
const SCHEDULE_LEAD_MS = 3_000;
const TOMORROW_MS = 86_400_000;
/** The idle case is measured this many times as long as the others. */
const IDLE_TIMES = 2;

const RATES = [50, 500, null];

export const CASES: readonly Case[] = [
  { name: "idle", ratePerS: 0, run: stayIdle },
  ...RATES.map((ratePerS) => ({ name: "create", ratePerS, run: creating({ later: true }) })),
  ...[500, null].map((ratePerS) => ({
    name: "create in batches",
    ratePerS,
    run: creating({ later: true, batch: BATCH }),
  })),
  ...[50, 500, 1_500, null].map((ratePerS) => ({
    name: "deliver",
    ratePerS,
    run: delivering("http", "/hook"),
  })),
  { name: "deliver over TLS", ratePerS: 500, run: delivering("https", "/hook") },
  { name: "deliver over new TLS connections", ratePerS: 500, run: delivering("https", "/close") },
  ...RATES.map((ratePerS) => ({ name: "create and deliver", ratePerS, run: creating({}) })),
  { name: "with a webhook", ratePerS: 500, run: creating({ webhook: true }) },
  { name: "failing twice", ratePerS: 500, run: creating({ path: "/fail", requests: 2 }) },
  { name: "fire and deliver", ratePerS: 500, run: fire },
];

async function stayIdle(_cell: Cell, { seconds, begin }: Pace): Promise<Outcome> {
  await begin();
  const begunAt = performance.now();
  await Bun.sleep(IDLE_TIMES * seconds * 1_000);
  const lasted = (performance.now() - begunAt) / 1_000;
  return {
    jobs: 0,
    requests: 0,
    seconds: lasted,
    latencyMs: null,
    latenessMs: null,
    bytesIn: 0,
    bytesOut: 0,
  };
}

/** Creates jobs over HTTP, due either tomorrow or at once. Jobs that are due at once are also delivered meanwhile. */
function creating({
  later = false,
  batch = 1,
  path = "/hook",
  webhook = false,
  requests = webhook ? 2 : 1,
}: {
  later?: boolean;
  batch?: number;
  path?: string;
  webhook?: boolean;
  requests?: number;
}): Case["run"] {
  return async (cell, { ratePerS, seconds, begin }) => {
    const job = {
      target_url: `${cell.sink.http}${path}`,
      payload: JSON.parse(PAYLOAD),
      ...(later && { run_at: new Date(Date.now() + TOMORROW_MS).toISOString() }),
      ...(requests > 1 &&
        !webhook && { retry_policy: { max_attempts: requests, base_seconds: 1, cap_seconds: 1 } }),
    };
    await cell.beginReceiving();
    await begin();
    const begunAt = performance.now();
    const report = await cell.load({
      key: webhook ? cell.keys.development : cell.keys.production,
      path: batch === 1 ? "/v2/jobs" : "/v2/jobs/batch",
      body: JSON.stringify(batch === 1 ? job : { jobs: Array.from({ length: batch }, () => job) }),
      ratePerS: ratePerS === null ? null : ratePerS / batch,
      seconds,
      connections: batch === 1 ? CONNECTIONS : BATCH_CONNECTIONS,
    });
    const jobs = report.answeredCount * batch;
    const sent = await cell.untilReceived(later ? 0 : jobs * requests);
    return {
      jobs,
      requests: sent.count,
      seconds: (performance.now() - begunAt) / 1_000,
      latencyMs: report.latencyMs,
      latenessMs: later ? null : sent.latenessMs,
      bytesIn: report.bytes,
      bytesOut: sent.bytes,
    };
  };
}

/** Delivers jobs that are stored in Postgres and were announced by no message. */
function delivering(scheme: "http" | "https", path: string): Case["run"] {
  return async (cell, { ratePerS, seconds, begin }) => {
    const jobs = ratePerS === null ? FLOOD_JOBS : Math.round(ratePerS * seconds);
    await cell.beginReceiving();
    const firstAt = Date.now() + LEAD_MS;
    const perS = ratePerS ?? Number.POSITIVE_INFINITY;
    await cell.store({
      count: jobs,
      firstAt,
      perS,
      targetUrl: `${cell.sink[scheme]}${path}`,
      payload: PAYLOAD,
    });
    await begin();
    return { ...(await waitForThem(cell, jobs, firstAt)), latencyMs: null };
  };
}

async function fire(cell: Cell, { ratePerS, seconds, begin }: Pace): Promise<Outcome> {
  const jobs = Math.round((ratePerS ?? 1) * seconds);
  await cell.beginReceiving();
  const firstAt = Date.now() + SCHEDULE_LEAD_MS;
  await cell.storeSchedules(jobs, firstAt, ratePerS ?? 1, `${cell.sink.http}/hook`);
  await begin();
  return { ...(await waitForThem(cell, jobs, firstAt)), latencyMs: null };
}

async function waitForThem(cell: Cell, jobs: number, firstAt: number): Promise<Omit<Outcome, "latencyMs">> {
  const { count, bytes, latenessMs } = await cell.untilReceived(jobs);
  return {
    jobs,
    requests: count,
    seconds: (Date.now() - firstAt) / 1_000,
    latenessMs,
    bytesIn: 0,
    bytesOut: bytes,
  };
}
