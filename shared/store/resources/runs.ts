import { firstIdAt, idToUuid, JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import { ATTEMPTS_MAX } from "../../domain/job.ts";
import { RUN_STATUSES, type RunStatus } from "../../domain/run.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import { environmentCode, regionOf, runStatusCode, runStatusOf } from "../database/codes.ts";
import { column, type Database, StoreUnavailable } from "../database/database.ts";
import { traceHex } from "../database/traces.ts";
import { CLOCK, countRuns, MONTH_AT_CLOCK, MONTH_COLUMNS } from "../queue/month.ts";
import type { KeyCause } from "./audit.ts";
import { type KeyToTake, ON_CONFLICT_TAKE_KEY } from "./idempotency.ts";

/** A run, ended or in progress. Instants are milliseconds since 1970. */
export interface RunRow {
  id: string;
  jobId: string;
  attempt: number;
  status: RunStatus;
  responseStatus: number | null;
  error: string | null;
  startedAt: number;
  durationMs: number | null;
  nextRetryAt: number | null;
}

type Scope = { projectNo: ProjectNo; environment: Environment };
/** A run of an earlier id than `sinceAt` (milliseconds since 1970) is outside the project's retention and is not found. */
export type RetainedScope = Scope & { sinceAt: number };
const firstUuidAt = (at: number) => idToUuid(firstIdAt(RUN_PREFIX, at));

const ENDED_COLUMNS = `id, job_id, attempt, status, response_status, error,
  (extract(epoch FROM started_at) * 1000)::float8 AS started_at, duration_ms,
  (extract(epoch FROM next_retry_at) * 1000)::float8 AS next_retry_at`;
const RUNNING_COLUMNS = `run_id AS id, job_id, attempt, 0::smallint AS status, NULL::smallint AS response_status, NULL AS error,
  (extract(epoch FROM started_at) * 1000)::float8 AS started_at, NULL::int AS duration_ms, NULL::float8 AS next_retry_at`;
const ENDED_CODES = `{${RUN_STATUSES.filter((status) => status !== "running")
  .map(runStatusCode)
  .join(",")}}`;

/** One run, or null if this environment has none of that id, or no longer. One in progress is always found. */
export async function findRun(db: Database, scope: RetainedScope, id: string): Promise<RunRow | null> {
  const [row] = await db.run<Row>("find_run", FIND, [
    scope.projectNo,
    environmentCode(scope.environment),
    idToUuid(id),
    firstUuidAt(scope.sinceAt),
  ]);
  return row === undefined ? null : readRun(row);
}

const FIND = `
SELECT ${RUNNING_COLUMNS} FROM open_jobs WHERE project_no = $1 AND environment = $2 AND run_id = $3
UNION ALL
SELECT ${ENDED_COLUMNS} FROM runs
 WHERE project_no = $1 AND environment = $2 AND status = ANY ('${ENDED_CODES}') AND id = $3 AND id >= $4`;

export interface RunListQuery extends RetainedScope {
  jobId: string | null;
  status: RunStatus | null;
  beforeId: string | null;
  limit: number;
}

const NEWEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/** A page of an environment's runs, newest first; those in progress stand in the same order. */
export async function listRuns(db: Database, query: RunListQuery): Promise<RunRow[]> {
  const values = [
    query.projectNo,
    environmentCode(query.environment),
    query.status === null ? column(RUN_STATUSES.map(runStatusCode)) : column([runStatusCode(query.status)]),
    query.beforeId === null ? NEWEST_UUID : idToUuid(query.beforeId),
    query.limit,
    firstUuidAt(query.sinceAt),
  ];
  const rows =
    query.jobId === null
      ? await db.run<Row>("list_runs", LIST, values)
      : await db.run<Row>("list_runs_of_job", LIST_OF_JOB, [...values, idToUuid(query.jobId)]);
  return rows.map(readRun);
}

const LIST = `
SELECT * FROM (
  (SELECT ${RUNNING_COLUMNS}
     FROM (SELECT * FROM open_jobs WHERE project_no = $1 AND run_id IS NOT NULL OFFSET 0) running
    WHERE 0 = ANY ($3::smallint[]) AND environment = $2 AND run_id < $4
    ORDER BY run_id DESC LIMIT $5)
  UNION ALL
  SELECT found.*
    FROM unnest($3::smallint[]) AS s (status)
   CROSS JOIN LATERAL (
     SELECT ${ENDED_COLUMNS} FROM runs
      WHERE project_no = $1 AND environment = $2 AND status = s.status AND id < $4 AND id >= $6
      ORDER BY id DESC LIMIT $5) found
) page ORDER BY id DESC LIMIT $5`;

// A job has few runs, so its own index finds them all and the filters follow.
const LIST_OF_JOB = `
SELECT * FROM (
  SELECT ${RUNNING_COLUMNS}
    FROM (SELECT * FROM open_jobs WHERE project_no = $1 AND run_id IS NOT NULL OFFSET 0) running
   WHERE 0 = ANY ($3::smallint[]) AND environment = $2 AND job_id = $7 AND run_id < $4
  UNION ALL
  SELECT ${ENDED_COLUMNS}
    FROM (SELECT * FROM runs WHERE job_id = $7 AND id >= $6 OFFSET 0) ended
   WHERE project_no = $1 AND environment = $2 AND status = ANY ($3::smallint[]) AND id < $4
) page ORDER BY id DESC LIMIT $5`;

/** What a manual retry found. */
export type Retried =
  | { kind: "retried"; run: RunRow; region: Region; shard: number | null }
  | { kind: "not_found" }
  /** The run has not failed, or its job is running, succeeded or canceled, or has had all attempts that a job may have. */
  | { kind: "conflict" }
  | { kind: "quota_exceeded" }
  /** Another request has had the Idempotency-Key; findFirstAnswer tells what it made. */
  | { kind: "key_taken" };

/**
 * Reopens the run's job for one more attempt, recorded under `newRunId` as running from this moment. A job that waits
 * for its automatic retry gets this attempt in its place; one that has failed has at least this attempt left. `trace` is
 * where this attempt and those that follow belong, if not where the job does.
 * Lock order as in claim.ts: the flow, then the job.
 */
export async function retryRun(
  db: Database,
  scope: RetainedScope,
  runId: string,
  newRunId: string,
  key: KeyToTake | null = null,
  cause: KeyCause | null = null,
  trace: TraceContext | null = null,
): Promise<Retried> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const [row] = await db.run<RetryRow>("retry_run", RETRY, [
      scope.projectNo,
      environmentCode(scope.environment),
      idToUuid(runId),
      idToUuid(newRunId),
      key?.digest ?? null,
      key?.requestHash ?? null,
      cause === null ? null : idToUuid(cause.requestId),
      cause?.keyNo ?? null,
      runId,
      newRunId,
      firstUuidAt(scope.sinceAt),
      traceHex(trace),
    ]);
    if (row?.outcome === "retried") {
      const jobId = uuidToId(JOB_PREFIX, row.job_id);
      if (row.is_plan_unseen) await unplanRetry(db, scope, jobId, row.attempt);
      const run = startedRun({ id: newRunId, jobId, attempt: row.attempt, startedAt: row.started_at });
      return { kind: "retried", run, region: regionOf(row.region), shard: row.shard };
    }
    if (row?.outcome === "quota_exceeded" || row?.outcome === "key_taken") return { kind: row.outcome };
    const run = await findRun(db, scope, runId);
    if (run === null) return { kind: "not_found" };
    if (row?.outcome === "conflict" || run.status === "running" || run.status === "succeeded")
      return { kind: "conflict" };
  }
  throw new StoreUnavailable(`the job of run ${runId} moved ${LOOKS_MAX} times while it was being retried`);
}

/** A run at its beginning. */
export function startedRun(run: Pick<RunRow, "id" | "jobId" | "attempt" | "startedAt">): RunRow {
  return {
    ...run,
    status: "running",
    responseStatus: null,
    error: null,
    durationMs: null,
    nextRetryAt: null,
  };
}

/** As for a cancel: a job that changed tables while its flow's lock was waited for is in neither; look again. */
const LOOKS_MAX = 5;

const RETRY = `
WITH asked AS MATERIALIZED (
  SELECT job_id FROM runs
   WHERE project_no = $1 AND environment = $2 AND status IN (2, 3) AND id = $3 AND id >= $11
), flow AS MATERIALIZED (
  SELECT f.project_no, ${MONTH_COLUMNS}
    FROM flows f
   WHERE f.project_no = $1 AND EXISTS (SELECT FROM asked)
     FOR NO KEY UPDATE
), ${CLOCK}, job AS MATERIALIZED (
  SELECT j.id AS job_id, j.region, j.max_attempts
    FROM asked a CROSS JOIN flow
    JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = ANY ('{0,1,2,3}') AND j.id = a.job_id
), open AS MATERIALIZED (
  SELECT o.* FROM job j
    JOIN open_jobs o ON o.project_no = $1 AND o.environment = $2 AND o.region = j.region AND o.job_id = j.job_id
     FOR NO KEY UPDATE OF o
), failed AS MATERIALIZED (
  SELECT e.* FROM job j
    JOIN ended_jobs e ON e.project_no = $1 AND e.environment = $2 AND e.status = 1 AND e.region = j.region AND e.job_id = j.job_id
     FOR UPDATE OF e
), judged AS MATERIALIZED (
  SELECT j.job_id, j.region, f.month,
         CASE WHEN o.job_id IS NULL AND e.job_id IS NULL THEN CASE WHEN over.status IS NULL THEN 'moved' ELSE 'conflict' END
              WHEN o.job_id IS NOT NULL AND (o.run_id IS NOT NULL OR o.canceled) THEN 'conflict'
              WHEN e.attempts >= ${ATTEMPTS_MAX} THEN 'conflict'
              WHEN f.runs_left <= 0 THEN 'quota_exceeded'
              ELSE 'retried' END AS outcome,
         coalesce(o.attempt, least(e.attempts + 1, ${ATTEMPTS_MAX}))::smallint AS attempt,
         coalesce(o.attempts_allowed, least(greatest(j.max_attempts, e.attempts + 1), ${ATTEMPTS_MAX}))::smallint AS attempts_allowed,
         o.job_id IS NOT NULL AS was_queued
    FROM job j CROSS JOIN (SELECT ${MONTH_AT_CLOCK} FROM flow CROSS JOIN clock) f
    LEFT JOIN open o ON true
    LEFT JOIN failed e ON true
    LEFT JOIN ended_jobs over ON over.project_no = $1 AND over.environment = $2 AND over.status IN (0, 2)
                             AND over.region = j.region AND over.job_id = j.job_id
), key AS (
  INSERT INTO idempotency_keys AS k (created_at, project_no, environment, digest, request_hash, job_ids, run_id, attempt)
  SELECT clock.at, $1, $2, $5, $6, ARRAY[job_id], $4, attempt
    FROM judged CROSS JOIN clock WHERE outcome = 'retried' AND $5::bytea IS NOT NULL ${ON_CONFLICT_TAKE_KEY}
  RETURNING 1
), decided AS MATERIALIZED (
  SELECT job_id, region, month, attempt, attempts_allowed, was_queued,
         CASE WHEN outcome = 'retried' AND $5 IS NOT NULL AND NOT EXISTS (SELECT FROM key) THEN 'key_taken'
              ELSE outcome END AS outcome
    FROM judged
), replaced AS (
  UPDATE open_jobs o SET run_id = $4, due_at = clock.at, parked_due_at = NULL, started_at = clock.at,
         trace = coalesce(decode($12, 'hex'), o.trace)
    FROM decided d CROSS JOIN clock
   WHERE d.outcome = 'retried' AND d.was_queued AND o.project_no = $1 AND o.environment = $2
     AND o.region = d.region AND o.job_id = d.job_id
), unplanned AS (
  UPDATE runs r SET next_retry_at = NULL
    FROM decided d
   WHERE d.outcome = 'retried' AND d.was_queued AND r.job_id = d.job_id AND r.attempt = d.attempt - 1 AND r.id >= $3
  RETURNING r.attempt
), reopened AS (
  DELETE FROM ended_jobs e USING decided d
   WHERE d.outcome = 'retried' AND NOT d.was_queued AND e.project_no = $1 AND e.environment = $2
     AND e.status = 1 AND e.region = d.region AND e.job_id = d.job_id
), owed AS (
  INSERT INTO open_jobs (project_no, environment, region, job_id, attempt, attempts_allowed, run_id, due_at, started_at, trace)
  SELECT $1, $2, region, job_id, attempt, attempts_allowed, $4, clock.at, clock.at, decode($12, 'hex')
    FROM decided CROSS JOIN clock WHERE outcome = 'retried' AND NOT was_queued
), counted AS (
  UPDATE flows f
     SET ${countRuns("1")}
    FROM decided d CROSS JOIN clock WHERE d.outcome = 'retried' AND f.project_no = $1
), usage AS (
  INSERT INTO usage_days AS u (project_no, day, region, runs)
  SELECT $1, greatest(clock.day, decided.month), region, 1 FROM decided CROSS JOIN clock WHERE outcome = 'retried'
      ON CONFLICT (project_no, day, region) DO UPDATE SET runs = u.runs + 1
), audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject, detail)
  SELECT $7, $1, $2, $8, 'run.retry', $9, json_build_object('run_id', $10::text)
    FROM decided WHERE outcome = 'retried' AND $7::uuid IS NOT NULL
)
SELECT d.outcome, d.job_id, d.region, d.attempt, (extract(epoch FROM clock.at) * 1000)::float8 AS started_at, l.shard,
       d.was_queued AND NOT EXISTS (SELECT FROM unplanned) AS is_plan_unseen
  FROM decided d
 CROSS JOIN clock
  LEFT JOIN lanes l ON l.project_no = $1 AND l.region = d.region AND l.environment = $2`;

interface RetryRow {
  outcome: "retried" | "conflict" | "quota_exceeded" | "key_taken" | "moved";
  job_id: string;
  region: number;
  attempt: number;
  started_at: number;
  shard: number | null;
  is_plan_unseen: boolean;
}

/**
 * Takes back the plan of the attempt that is not to follow by itself any more. Whoever changed the job did so already
 * if that run stood in the statement's snapshot, and it looked only at tables of runs that are not older than what it
 * knows. It did not if it had to wait for the very settlement that recorded the run, or if a clock was set back.
 */
export async function unplanRetry(db: Database, scope: Scope, jobId: string, attempt: number): Promise<void> {
  await db.run(
    "unplan_retry",
    `UPDATE runs SET next_retry_at = NULL
      WHERE job_id = $1 AND attempt = $2::smallint - 1 AND project_no = $3 AND environment = $4`,
    [idToUuid(jobId), attempt, scope.projectNo, environmentCode(scope.environment)],
  );
}

interface Row {
  id: string;
  job_id: string;
  attempt: number;
  status: number;
  response_status: number | null;
  error: string | null;
  started_at: number;
  duration_ms: number | null;
  next_retry_at: number | null;
}

function readRun(row: Row): RunRow {
  return {
    id: uuidToId(RUN_PREFIX, row.id),
    jobId: uuidToId(JOB_PREFIX, row.job_id),
    attempt: row.attempt,
    status: runStatusOf(row.status),
    responseStatus: row.response_status,
    error: row.error,
    startedAt: row.started_at,
    durationMs: row.duration_ms,
    nextRetryAt: row.next_retry_at,
  };
}
