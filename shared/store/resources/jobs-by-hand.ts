import { DELIVERY_PREFIX, idToUuid, uuidToId } from "../../domain/ids.ts";
import { decideCancel, decideManualRetry } from "../../domain/job.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import { UNSENT_RUN_ERROR } from "../../domain/run.ts";
import type { Scope } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import {
  endedStatusCode,
  environmentCode,
  eventTypeCode,
  regionCode,
  runStatusCode,
} from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import { lookAgain } from "../database/look-again.ts";
import { traceHex } from "../database/traces.ts";
import { runData } from "../queue/event-data.ts";
import { moveTags, OPEN_STATE, tagRuns } from "../queue/job-tags.ts";
import { CLOCK, countRuns, MONTH_AT_CLOCK, MONTH_COLUMNS } from "../queue/month.ts";
import { canceledSeed, tellOf } from "../queue/owed-deliveries.ts";
import { QUOTA_COLUMNS, tellOfQuota } from "../queue/quota-events.ts";
import { auditFrom, changeOf, type KeyCause } from "./audit.ts";
import { type KeyToTake, ON_CONFLICT_TAKE_KEY } from "./idempotency.ts";
import { ATTEMPTS, findJobState, type JobSummary } from "./jobs.ts";
import { findRun, type RetainedScope, type RunRow, startedRun } from "./runs.ts";

/**
 * What clients do to a job that exists: they cancel it, or retry one of its runs. The domain decides on the job as it was
 * read, and the statement changes it only as long as it is still in that state: it locks the job's row, and what another
 * statement has made of the row meanwhile does not match.
 */

export type Canceled =
  /** Owed are the deliveries of its event. */
  { kind: "canceled"; job: JobSummary; owed: Placed<OwedAttempt>[] } | { kind: "not_found" };

/**
 * Cancels one job, and tells the endpoints that hear of it. Of a cancel and a claim the one that locks the open row first wins: after a claim the attempt runs to
 * its end and nothing follows; after a cancel no claim finds anything owed. Throws ApiError for a job that has ended.
 */
export function cancelJob(db: Database, scope: Scope, id: string, cause: KeyCause): Promise<Canceled> {
  return lookAgain(`job ${id}`, async () => {
    const job = await findJobState(db, scope, id);
    if (job === null) return { kind: "not_found" };
    const decided = [regionCode(job.region), job.attempts, decideCancel(job)];
    const written = await db.run<ToldRow>("cancel_job", CANCEL, [...changeOf(scope, id, cause), ...decided]);
    if (written.length === 0) return null;
    const owed = written.flatMap(({ delivery_id, shard, due_at: dueAt }) => {
      if (delivery_id === null) return [];
      const delivery = { id: uuidToId(DELIVERY_PREFIX, delivery_id), attempt: 1, dueAt };
      return oweAttempt("webhooks", { ...scope, region: job.region, shard }, delivery);
    });
    return { kind: "canceled", job: { ...job, status: "canceled" }, owed };
  });
}

const CANCELED = endedStatusCode("canceled");
const FAILED = endedStatusCode("failed");
const FAILED_RUN = runStatusCode("failed");
const RUNNING = runStatusCode("running");

const CANCEL = `
WITH open AS MATERIALIZED (
  SELECT o.* FROM open_jobs o
   WHERE o.project_no = $1 AND o.environment = $2 AND o.region = $7 AND o.job_id = $3 AND NOT o.canceled
     AND ${ATTEMPTS} = $8
     AND CASE WHEN o.run_id IS NULL THEN 'waiting' WHEN o.node_id IS NULL THEN 'unsent' ELSE 'sent' END = $9
     FOR NO KEY UPDATE
), on_the_wire AS (
  UPDATE open_jobs o SET canceled = true FROM open
   WHERE $9 = 'sent' AND o.project_no = $1 AND o.environment = $2 AND o.region = $7 AND o.job_id = $3
), given_up AS (
  DELETE FROM open_jobs o USING open
   WHERE $9 <> 'sent' AND o.project_no = $1 AND o.environment = $2 AND o.region = $7 AND o.job_id = $3
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT $1, $2, $7, $3, ${CANCELED}, $8, now(), schedule_id FROM open
), never_sent AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
                    started_at, duration_ms, next_retry_at, schedule_id)
  SELECT run_id, $3, $1, $2, (SELECT retention_class FROM flows WHERE project_no = $1), $8, ${FAILED_RUN},
         NULL, '${UNSENT_RUN_ERROR}', started_at, 0, NULL, schedule_id
    FROM open WHERE $9 = 'unsent'
), unplanned AS (
  UPDATE runs r SET next_retry_at = NULL FROM open WHERE $9 = 'waiting' AND r.job_id = $3 AND r.attempt = $8
), last_run AS (
  -- Of an attempt that was not sent, this is what never_sent records.
  SELECT run_id AS id, $8::int AS attempt, started_at, NULL::smallint AS response_status,
         CASE $9 WHEN 'sent' THEN ${RUNNING} ELSE ${FAILED_RUN} END AS status,
         CASE $9 WHEN 'unsent' THEN '${UNSENT_RUN_ERROR}' END AS error, CASE $9 WHEN 'unsent' THEN 0 END AS duration_ms
    FROM open WHERE $9 <> 'waiting'
  UNION ALL
  SELECT r.id, r.attempt, r.started_at, r.response_status, r.status, r.error, r.duration_ms
    FROM open JOIN runs r ON r.job_id = $3 AND r.attempt = $8 WHERE $9 = 'waiting'
), canceled AS (
  SELECT ${canceledSeed("open.job_id")} AS seed, open.project_no, open.environment, open.region,
         (SELECT shard FROM lanes l WHERE l.project_no = $1 AND l.region = $7 AND l.environment = $2) AS shard,
         ${eventTypeCode("job.canceled")}::smallint AS type, open.job_id, open.trace,
         json_build_object('attempts', $8::int, 'run', (SELECT ${runData("r")} FROM last_run r)) AS data
    FROM open
), ${moveTags("open WHERE tags IS NOT NULL", String(OPEN_STATE), String(CANCELED))},
${tagRuns(`(SELECT *, ${FAILED_RUN} AS status FROM open) never_sent WHERE $9 = 'unsent' AND tags IS NOT NULL`)},
${tellOf("canceled")}, ${auditFrom("job.cancel", "open")}
SELECT h.delivery_id, h.shard, ${epochMs("now()")} AS due_at FROM open LEFT JOIN heard h ON true`;

interface ToldRow {
  /** Null if no endpoint hears of it. */
  delivery_id: string | null;
  shard: number | null;
  due_at: number;
}

export type Retried =
  | { kind: "retried"; run: RunRow; owed: Placed<OwedAttempt>[] }
  | { kind: "not_found" }
  | { kind: "quota_exceeded" }
  /** Another request has had the Idempotency-Key; findFirstAnswer tells what it made. */
  | { kind: "key_taken" };

/**
 * Reopens the run's job for one more attempt, which is recorded under `newRunId` as running from this moment. A job that
 * waits for its automatic retry gets this attempt in its place. `trace` is where this attempt and those that follow
 * belong, if not where the job does. Throws ApiError for a run that cannot be retried. Lock order as in claim.ts: the flow,
 * then the job.
 */
export function retryRun(
  db: Database,
  scope: RetainedScope,
  runId: string,
  newRunId: string,
  cause: KeyCause,
  key: KeyToTake | null = null,
  trace: TraceContext | null = null,
): Promise<Retried> {
  return lookAgain(`the job of run ${runId}`, async () => {
    const failed = await findRun(db, scope, runId);
    const job = failed === null ? null : await findJobState(db, scope, failed.jobId);
    if (failed === null || job === null) return { kind: "not_found" };
    const { attempt, attemptsAllowed, replacesPending } = decideManualRetry(job, failed);
    const [row] = await db.run<RetriedRow>("retry_run", RETRY, [
      scope.projectNo,
      environmentCode(scope.environment),
      regionCode(job.region),
      idToUuid(job.id),
      attempt,
      attemptsAllowed,
      replacesPending,
      idToUuid(newRunId),
      key?.digest ?? null,
      key?.requestHash ?? null,
      idToUuid(cause.requestId),
      cause.keyNo,
      runId,
      newRunId,
      traceHex(trace),
    ]);
    if (row?.outcome !== "retried") return row === undefined ? null : { kind: row.outcome };
    const { started_at: startedAt, shard } = row;
    const run = startedRun({ id: newRunId, jobId: job.id, attempt, startedAt });
    const place = { ...scope, region: job.region, shard };
    const owed = oweAttempt("jobs", place, { id: job.id, attempt, dueAt: startedAt });
    return { kind: "retried", run, owed };
  });
}

const RETRY = `
WITH flow AS MATERIALIZED (
  SELECT f.project_no, ${MONTH_COLUMNS}, ${QUOTA_COLUMNS} FROM flows f WHERE f.project_no = $1 FOR NO KEY UPDATE
), ${CLOCK}, pending AS MATERIALIZED (
  SELECT o.job_id
    FROM flow JOIN open_jobs o ON o.project_no = $1 AND o.environment = $2 AND o.region = $3 AND o.job_id = $4
   WHERE $7 AND o.attempt = $5 AND o.run_id IS NULL AND NOT o.canceled
     FOR NO KEY UPDATE OF o
), failed AS MATERIALIZED (
  SELECT e.job_id
    FROM flow JOIN ended_jobs e ON e.project_no = $1 AND e.environment = $2 AND e.status = ${FAILED} AND e.region = $3 AND e.job_id = $4
   WHERE NOT $7 AND e.attempts = $5 - 1
     FOR UPDATE OF e
), judged AS MATERIALIZED (
  SELECT month, CASE WHEN runs_left <= 0 THEN 'quota_exceeded' ELSE 'retried' END AS outcome
    FROM (TABLE pending UNION ALL TABLE failed) found CROSS JOIN (SELECT ${MONTH_AT_CLOCK} FROM flow CROSS JOIN clock) f
), key AS (
  INSERT INTO idempotency_keys AS k (created_at, project_no, environment, digest, request_hash, job_ids, run_id, attempt)
  SELECT clock.at, $1, $2, $9, $10, ARRAY[$4], $8, $5
    FROM judged CROSS JOIN clock WHERE outcome = 'retried' AND $9::bytea IS NOT NULL ${ON_CONFLICT_TAKE_KEY}
  RETURNING 1
), decided AS MATERIALIZED (
  SELECT month, CASE WHEN outcome = 'retried' AND $9 IS NOT NULL AND NOT EXISTS (SELECT FROM key) THEN 'key_taken'
                     ELSE outcome END AS outcome
    FROM judged
), retried AS MATERIALIZED (
  SELECT month FROM decided WHERE outcome = 'retried'
), replaced AS (
  UPDATE open_jobs o
     SET run_id = $8, due_at = clock.at, parked_due_at = NULL, started_at = clock.at, trace = coalesce(decode($15, 'hex'), o.trace)
    FROM retried CROSS JOIN clock
   WHERE $7 AND o.project_no = $1 AND o.environment = $2 AND o.region = $3 AND o.job_id = $4
), unplanned AS (
  UPDATE runs r SET next_retry_at = NULL FROM retried WHERE $7 AND r.job_id = $4 AND r.attempt = $5 - 1
), reopened AS (
  DELETE FROM ended_jobs e
   USING retried
   WHERE NOT $7 AND e.project_no = $1 AND e.environment = $2 AND e.status = ${FAILED} AND e.region = $3 AND e.job_id = $4
), owed AS (
  INSERT INTO open_jobs (project_no, environment, region, job_id, attempt, attempts_allowed, run_id, due_at, started_at, trace,
                         schedule_id, tags)
  SELECT $1, $2, $3, $4, $5, $6, $8, clock.at, clock.at, decode($15, 'hex'), j.schedule_id, j.tags
    FROM retried CROSS JOIN clock
    JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = $3 AND j.id = $4
   WHERE NOT $7
  RETURNING project_no, environment, region, job_id, tags
), ${moveTags("owed WHERE tags IS NOT NULL", String(FAILED), String(OPEN_STATE))}, counted AS (
  UPDATE flows f SET ${countRuns("1")} FROM retried CROSS JOIN clock WHERE f.project_no = $1
), usage AS (
  INSERT INTO usage_days AS u (project_no, day, region, runs)
  SELECT $1, greatest(clock.day, retried.month), $3, 1 FROM retried CROSS JOIN clock
      ON CONFLICT (project_no, day, region) DO UPDATE SET runs = u.runs + 1
), ${tellOfQuota("SELECT $1::int AS project_no, count(*) AS runs FROM retried")}, audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject, detail)
  SELECT $11, $1, $2, $12, 'run.retry', $13, json_build_object('run_id', $14::text) FROM retried
)
SELECT d.outcome, (extract(epoch FROM clock.at) * 1000)::float8 AS started_at, l.shard
  FROM decided d
 CROSS JOIN clock
  LEFT JOIN lanes l ON l.project_no = $1 AND l.region = $3 AND l.environment = $2`;

interface RetriedRow {
  outcome: "retried" | "quota_exceeded" | "key_taken";
  started_at: number;
  shard: number | null;
}
