import { countUsage } from "./claims.ts";
import { findOrAddKey, flowColumns, leaveGate } from "./flow-keys.ts";
import { gateOf } from "./gates.ts";
import { dayOf, type Instant, monthOf, toMs, toMsOrNull } from "./parameters.ts";
import { clearsInMs, countRuns, runsLeft } from "./permits.ts";
import {
  type FlowRow,
  findJob,
  laneKey,
  type OpenJobRow,
  type RunRow,
  type Statement,
  type Tables,
} from "./tables.ts";
import { moveTags, tagRun } from "./tags.ts";

/** Look-ups and changes of jobs that exist, by clients (shared/store/resources/jobs.ts, runs.ts, jobs-by-hand.ts). */

const FAILED_JOB = 1;
const CANCELED_JOB = 2;
const RUNNING = 0;
const FAILED_RUN = 2;
const UNSENT = "canceled before it was sent";

const attemptsOf = (row: OpenJobRow) => row.attempt - (row.run_id === null ? 1 : 0);

/** The row of that id in this environment. */
function inScope<Row extends { project_no: number; environment: number }>(
  rows: ReadonlyMap<string, Row>,
  [projectNo, environment, id]: readonly unknown[],
): Row | undefined {
  const row = rows.get(String(id));
  return row?.project_no === projectNo && row?.environment === environment ? row : undefined;
}

export const findJobState: Statement = (tables, _time, values) => {
  const job = inScope(tables.jobs, values);
  if (job === undefined) return [];
  const [open, ended] = [tables.open_jobs.get(job.id), tables.ended_jobs.get(job.id)];
  return [
    {
      ...{ id: job.id, region: job.region, target_url: job.target_url, max_attempts: job.max_attempts },
      tags: job.tags,
      run_at: toMs(job.run_at),
      ended_status: ended?.status ?? null,
      has_run: open !== undefined && open.run_id !== null,
      attempts: ended?.attempts ?? (open === undefined ? null : attemptsOf(open)),
      is_sent: open !== undefined && open.node_id !== null,
    },
  ];
};

export const findRun: Statement = (tables, _time, [projectNo, environment, id, firstId]) => {
  const scope = [projectNo, environment, id];
  const run = inScope(tables.runs, scope);
  if (run !== undefined && run.id >= String(firstId)) {
    const { job_id, attempt, status, response_status, error, duration_ms } = run;
    const columns = { id: run.id, job_id, attempt, status, response_status, error, duration_ms };
    return [{ ...columns, started_at: toMs(run.started_at), next_retry_at: toMsOrNull(run.next_retry_at) }];
  }
  for (const row of tables.open_jobs.values()) {
    if (row.run_id !== id || row.project_no !== projectNo || row.environment !== environment) continue;
    const columns = { id, job_id: row.id, attempt: row.attempt, status: RUNNING, response_status: null };
    const started_at = toMsOrNull(row.started_at);
    return [{ ...columns, error: null, duration_ms: null, started_at, next_retry_at: null }];
  }
  return [];
};

function findOpen(
  tables: Tables,
  place: { project_no: unknown; environment: unknown; region: unknown; id: unknown },
): OpenJobRow | undefined {
  const row = inScope(tables.open_jobs, [place.project_no, place.environment, place.id]);
  return row?.region === place.region ? row : undefined;
}

export const cancelJob: Statement = (tables, { now }, values) => {
  const [project_no, environment, id, , , , region, attempts, state] = values;
  const row = findOpen(tables, { project_no, environment, region, id });
  if (row === undefined || row.canceled || attemptsOf(row) !== attempts) return [];
  if (wayOf(row) !== state) return [];
  cancelOpen(tables, row, now);
  // No endpoint here asks for job.canceled.
  return [{ delivery_id: null, shard: null, due_at: toMs(now) }];
};

const wayOf = (row: OpenJobRow) =>
  row.run_id === null ? "waiting" : row.node_id === null ? "unsent" : "sent";

/** Cancels an open job. Answers how many attempts it has had. */
export function cancelOpen(tables: Tables, row: OpenJobRow, now: Instant): number {
  const [state, attempts] = [wayOf(row), attemptsOf(row)];
  const place = { project_no: row.project_no, environment: row.environment, region: row.region };
  const ended = { ...place, id: row.id, status: CANCELED_JOB, attempts, ended_at: now };
  tables.ended_jobs.set(row.id, { ...ended, schedule_id: row.schedule_id });
  moveTags(tables, row, CANCELED_JOB);
  if (state === "sent") row.canceled = true;
  else {
    leaveGate(tables, row);
    tables.open_jobs.delete(row.id);
  }
  if (state === "unsent") {
    const run = unsentRun(tables, row);
    tables.runs.set(run.id, run);
    tagRun(tables, run, row.tags);
  }
  if (state === "waiting") unplan(tables, row.id, attempts);
  return attempts;
}

function unsentRun(tables: Tables, row: OpenJobRow): RunRow {
  const { project_no, environment, attempt } = row;
  return {
    id: row.run_id as string,
    job_id: row.id,
    ...{ project_no, environment, attempt },
    retention_class: (tables.flows.get(project_no) as FlowRow).retention_class,
    status: FAILED_RUN,
    response_status: null,
    error: UNSENT,
    started_at: row.started_at as Instant,
    duration_ms: 0,
    next_retry_at: null,
    late_ms: null,
    held_for: null,
    schedule_id: row.schedule_id,
  };
}

/** Removes the plan of the attempt that was to follow this one: it does not come, or at another time. */
function unplan(tables: Tables, jobId: string, attempt: number): void {
  for (const run of tables.runs.values())
    if (run.job_id === jobId && run.attempt === attempt) run.next_retry_at = null;
}

export const retryRun: Statement = (tables, { clock }, values) => {
  const [project_no, environment, region, id, attempt, attemptsAllowed, replaces, runId] = values;
  const flow = tables.flows.get(Number(project_no));
  const open = findOpen(tables, { project_no, environment, region, id });
  const ended = inScope(tables.ended_jobs, [project_no, environment, id]);
  const isFound = replaces
    ? open !== undefined && open.attempt === attempt && open.run_id === null && !open.canceled
    : ended?.region === region && ended?.status === FAILED_JOB && ended.attempts === Number(attempt) - 1;
  if (flow === undefined || !isFound) return [];
  const month = monthOf(clock);
  const shard = tables.lanes.get(
    laneKey({ ...flow, region: Number(region), environment: Number(environment) }),
  );
  const answer = {
    clears_in_ms: clearsInMs(flow, clock),
    started_at: toMs(clock),
    shard: shard?.shard ?? null,
  };
  if ((runsLeft(flow, month) ?? 1) <= 0) return [{ outcome: "quota_exceeded", ...answer }];
  if (replaces && open !== undefined) {
    leaveGate(tables, open, { isOver: false });
    Object.assign(open, {
      ...{ run_id: String(runId), due_at: clock, started_at: clock },
      parked_due_at: open.flow_key === null ? null : clock,
      gate: open.flow_key === null || open.has_place ? null : gateOf(open.flow_key),
    });
    unplan(tables, String(id), Number(attempt) - 1);
    countUsage(tables, { ...flow, environment: 0, region: Number(region) }, dayOf(clock));
  } else {
    const place = { project_no: flow.project_no, environment: Number(environment), region: Number(region) };
    const next = {
      attempt: Number(attempt),
      attempts_allowed: Number(attemptsAllowed),
      run_id: String(runId),
    };
    reopen(tables, { ...place, ...next, id: String(id) }, clock);
  }
  countRuns(flow, 1, month);
  return [{ outcome: "retried", ...answer }];
};

/** Gives a job that failed another attempt, and counts its run among the day's, but not among the month's. */
export function reopen(
  tables: Tables,
  job: Pick<
    OpenJobRow,
    "project_no" | "environment" | "region" | "id" | "attempt" | "attempts_allowed" | "run_id"
  >,
  clock: Instant,
): void {
  tables.ended_jobs.delete(job.id);
  const { schedule_id, tags, flow } = findJob(tables, job);
  if (flow !== null) findOrAddKey(tables, job, flow.key);
  const row = {
    ...{ ...job, schedule_id, tags, due_at: clock, started_at: clock },
    ...{ canceled: false, node_id: null, parked_host: null, ...flowColumns(flow, clock) },
  };
  tables.open_jobs.set(row.id, row);
  moveTags(tables, row, null);
  countUsage(tables, job, dayOf(clock));
}
