import { ANSWER_TIMEOUT_MS } from "../../services/worker/shard/shard.ts";
import { idToUuid } from "../../shared/domain/ids.ts";
import { RUN_STATUSES } from "../../shared/domain/run.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { until } from "../flow/support.ts";
import type { RollingCell } from "./rolling-cell.ts";

/** The faults that customers met while processes were replaced. Each list is empty if there was none. */
export interface Findings {
  failedRequests: unknown[];
  /** Jobs that were accepted and have not succeeded. */
  lost: unknown[];
  /** Jobs that nobody asked for. */
  unasked: unknown[];
  /** Attempts and events that arrived twice, and instants of schedules with two jobs. */
  doubled: unknown[];
  /** Attempts whose record is not what the target answered. */
  cut: unknown[];
  missedFirings: unknown[];
  /** Ends of jobs of which the endpoint has not heard. */
  unheard: unknown[];
  early: unknown[];
  late: unknown[];
  miscounted: unknown[];
  /** Lines that processes logged about faults, and about messages that they do not understand. */
  complaints: string[];
}

export const NOTHING: Findings = {
  failedRequests: [],
  lost: [],
  unasked: [],
  doubled: [],
  cut: [],
  missedFirings: [],
  unheard: [],
  early: [],
  late: [],
  miscounted: [],
  complaints: [],
};

/**
 * A gateway waits so long for Postgres, for several statements in turn. If the machine stands still for half of that
 * around a request, at once or in parts, the gateway may rightly answer 503.
 */
const STORE_TIME_MS = 1_800;
const EXCUSE_MS_MIN = STORE_TIME_MS / 2;
const DRAINED_MS = 180_000;
const SCHEDULE_EVERY_MS = 30_000;
/** How far the clocks of processes on one machine may be apart. */
const CLOCK_MS = 5;
const ERROR_LEVEL = 50;
/** The lines that are shown of each process; the others are mostly the same. */
const COMPLAINTS_SHOWN = 3;

/**
 * Ends the traffic, waits until everything has ended, and compares what was asked, what arrived and what is recorded.
 * Attempts and events have to arrive within `lateMsMax` of their times, the machine's pauses apart.
 */
export async function endAndJudge(cell: RollingCell, lateMsMax: number): Promise<Findings> {
  const { db, target, answered, traffic, schedules, pauses } = cell;
  await traffic.stop();
  const endAt = Date.now();
  await until(async () => (await count(db, FIRES_BY, [endAt])) === 0, DRAINED_MS);
  for (const [index, { id }] of schedules.entries())
    await traffic.ask(index, "PATCH", `/v2/schedules/${id}`, { paused: true });
  await until(async () => (await count(db, OWED, [])) === 0, DRAINED_MS);
  await pauses.stop();

  const jobs = await db.run<JobRow>("rolling_jobs", JOBS, []);
  const runs = await db.run<RunRow>("rolling_runs", RUNS, []);
  const deliveries = await db.run<DeliveryRow>("rolling_deliveries", DELIVERIES, []);
  const firings = await db.run<FiringRow>("rolling_firings", FIRINGS, []);
  const miscounted = await db.run("rolling_miscounted", MISCOUNTED, []);
  const { excused, failed: failedRequests } = judgeRequests(cell);
  const attempts = Map.groupBy(
    target.arrivals.filter(({ jobId }) => jobId !== ""),
    ({ jobId, attempt }) => `${idToUuid(jobId)} ${attempt}`,
  );
  const events = Map.groupBy(
    target.arrivals.filter(({ jobId }) => jobId === ""),
    ({ headers }) => idToUuid(headers["webhook-id"] ?? ""),
  );
  const accepted = new Set([...traffic.accepted].map(idToUuid));
  const succeeded = new Set(jobs.filter(({ succeeded }) => succeeded).map(({ id }) => id));
  const firedFor = Map.groupBy(
    jobs.filter(({ schedule }) => schedule !== null),
    ({ schedule, runAt }) => `${schedule} ${runAt}`,
  );
  const heard = new Set(deliveries.filter(({ succeeded }) => succeeded).map(({ job }) => job));

  const findings: Findings = {
    ...structuredClone(NOTHING),
    failedRequests,
    lost: [
      ...[...accepted].filter((id) => !succeeded.has(id)),
      ...jobs.filter(({ id }) => !succeeded.has(id)),
    ],
    unasked: jobs.filter(
      ({ id, schedule, request }) => schedule === null && !accepted.has(id) && !excused.has(request ?? 0),
    ),
    doubled: [...attempts, ...events, ...firedFor].filter(([, all]) => all.length > 1).map(([name]) => name),
    unheard: [
      ...jobs.filter(({ id }) => !heard.has(id)),
      ...deliveries.filter(({ event, attempts }) => attempts !== 1 || !events.has(event)),
    ],
    miscounted,
    complaints: [...cell.services].flatMap(([name, { output }]) => complaintsIn(output, name)),
  };

  const isMade = new Set(firings.filter(({ job }) => job !== null).map(({ name }) => name));
  for (const { id, firstAt } of schedules)
    for (let at = firstAt; at <= endAt; at += SCHEDULE_EVERY_MS)
      if (!isMade.has(`${idToUuid(id)} ${at}`)) findings.missedFirings.push({ id, at: new Date(at) });

  function judgeTime(what: string, dueAt: number, arrivedAt: number): void {
    const lateMs = arrivedAt - dueAt;
    if (lateMs < -CLOCK_MS) findings.early.push({ what, lateMs });
    if (lateMs < lateMsMax) return;
    const pausedMs =
      pauses.between(dueAt, arrivedAt) + (mayBeLost(cell, dueAt, arrivedAt) ? ANSWER_TIMEOUT_MS : 0);
    if (lateMs - pausedMs >= lateMsMax)
      findings.late.push({ what, dueAt: new Date(dueAt), lateMs, pausedMs });
  }
  for (const { id, runAt } of jobs) {
    const [first] = attempts.get(`${id} 1`) ?? [];
    if (first) judgeTime(`attempt 1 of ${id}`, runAt, first.at);
  }
  const recorded = new Set<string>();
  for (const { id, job, attempt, status, responseStatus, error, nextRetryAt } of runs) {
    const [arrival] = attempts.get(`${job} ${attempt}`) ?? [];
    const seen = answered.get(arrival?.runId ?? "");
    const isAsAnswered = (RUN_STATUSES[status] === "succeeded") === (seen === 200);
    if (arrival === undefined || idToUuid(arrival.runId) !== id || !isAsAnswered || responseStatus !== seen)
      findings.cut.push({ job, attempt, status: RUN_STATUSES[status], responseStatus, seen, error });
    recorded.add(`${job} ${attempt}`);
    const [next] = attempts.get(`${job} ${attempt + 1}`) ?? [];
    if (next && nextRetryAt !== null) judgeTime(`attempt ${attempt + 1} of ${job}`, nextRetryAt, next.at);
  }
  for (const name of attempts.keys()) if (!recorded.has(name)) findings.cut.push({ name, run: "none" });
  for (const { event, occurredAt } of deliveries) {
    const [arrival] = events.get(event) ?? [];
    if (arrival) judgeTime(`event ${event}`, occurredAt, arrival.at);
  }
  return findings;
}

/** A message that was lost when NATS stopped is sent again after the time for its answer. */
const mayBeLost = ({ withoutNats }: RollingCell, dueAt: number, arrivedAt: number) =>
  withoutNats !== null && dueAt < withoutNats.toAt && arrivedAt > withoutNats.fromAt;

/** Tells the requests that failed because the machine stood still from the others. */
function judgeRequests({ traffic, pauses }: RollingCell) {
  const isExcused = ({ at, outcome }: { at: number; outcome: string }) =>
    outcome.startsWith("Error: 503 ") && pauses.between(at - STORE_TIME_MS, at) >= EXCUSE_MS_MIN;
  const excused = traffic.failed.filter(isExcused);
  if (excused.length > 0) console.log("refused while the machine stood still:", excused);
  return {
    excused: new Set(excused.map(({ request }) => request)),
    failed: traffic.failed.filter((request) => !isExcused(request)),
  };
}

/** The lines of a process's log that no replacement of processes should bring. */
function complaintsIn(output: string, name: string): string[] {
  const lines = output.split("\n").filter((line) => line.startsWith("{"));
  return lines
    .filter((line) => {
      const { level, msg } = JSON.parse(line) as { level: number; msg: string };
      return level >= ERROR_LEVEL || msg === "malformed message dropped";
    })
    .slice(0, COMPLAINTS_SHOWN)
    .map((line) => `${name}: ${line}`);
}

async function count(db: Database, text: string, values: unknown[]): Promise<number> {
  const [row] = await db.run<{ count: number }>(`rolling_${Bun.hash(text)}`, text, values);
  return row?.count ?? -1;
}

interface JobRow {
  id: string;
  schedule: string | null;
  runAt: number;
  request: number | null;
  succeeded: boolean;
}
interface RunRow {
  id: string;
  job: string;
  attempt: number;
  status: number;
  responseStatus: number | null;
  error: string | null;
  nextRetryAt: number | null;
}
interface DeliveryRow {
  event: string;
  job: string;
  occurredAt: number;
  attempts: number;
  succeeded: boolean;
}
interface FiringRow {
  name: string;
  job: string | null;
}

const ms = (instant: string) => `(extract(epoch FROM ${instant}) * 1000)::float8`;
const FIRES_BY = `SELECT count(*)::int AS count FROM schedules WHERE ${ms("next_run_at")} <= $1`;
const OWED =
  "SELECT ((SELECT count(*) FROM open_jobs) + (SELECT count(*) FROM open_deliveries))::int AS count";
const JOBS = `
SELECT j.id, j.schedule_id AS schedule, ${ms("j.run_at")} AS "runAt", (j.payload::json ->> 'request')::int AS request,
       EXISTS (SELECT FROM ended_jobs e WHERE e.job_id = j.id AND e.status = 0) AS succeeded
  FROM jobs j`;
const RUNS = `
SELECT id, job_id AS job, attempt, status, response_status AS "responseStatus", error,
       ${ms("next_retry_at")} AS "nextRetryAt"
  FROM runs`;
const DELIVERIES = `
SELECT d.event_id AS event, e.job_id AS job, ${ms("e.occurred_at")} AS "occurredAt", d.attempts, d.status = 0 AS succeeded
  FROM ended_deliveries d JOIN events e ON e.id = d.event_id`;
const FIRINGS = `SELECT concat(schedule_id, ' ', ${ms("fired_for")}) AS name, job_id AS job FROM firings`;
/** Projects with permits in use though nothing is on the wire, or whose month has not counted each run once. */
const MISCOUNTED = `
SELECT project_no, month_runs, development_jobs + production_jobs + development_webhooks + production_webhooks AS in_use
  FROM flows f
 WHERE development_jobs + production_jobs + development_webhooks + production_webhooks <> 0
    OR month_runs <> (SELECT count(*) FROM runs r WHERE r.project_no = f.project_no)`;
