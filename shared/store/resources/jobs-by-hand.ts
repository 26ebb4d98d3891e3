import { DELIVERY_PREFIX, idToUuid, uuidToId } from "../../domain/ids.ts";
import { decideCancel, decideManualRetry } from "../../domain/job.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import type { Scope } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import { endedStatusCode, environmentCode, regionCode } from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import { lookAgain } from "../database/look-again.ts";
import { traceHex } from "../database/traces.ts";
import { ATTEMPTS, CANCEL_OPEN, WAY } from "../queue/canceled-jobs.ts";
import { callGates, HAS_GATE } from "../queue/gate-calls.ts";
import { CLOCK, clearsIn, fitsMonth, MONTH_AT_CLOCK, MONTH_COLUMNS } from "../queue/month.ts";
import { QUOTA_COLUMNS } from "../queue/quota-events.ts";
import { REOPEN_RETRIED } from "../queue/retried-jobs.ts";
import { auditFrom, changeOf, type KeyCause } from "./audit.ts";
import { type KeyToTake, ON_CONFLICT_TAKE_KEY } from "./idempotency.ts";
import { findJobState, type JobSummary } from "./jobs.ts";
import { findRun, type RetainedScope, type RunRow, startedRun } from "./runs.ts";

/**
 * Changes of a job by clients: they cancel it, or retry one of its runs. The domain decides on the job as it was read. The
 * statement locks the job's row, and changes the job only if the row is still in that state: a row that another statement
 * has changed meanwhile does not match.
 */

export type Canceled =
  /** `owed` has the deliveries of the cancel's event. */
  { kind: "canceled"; job: JobSummary; owed: Placed<OwedAttempt>[] } | { kind: "not_found" };

/**
 * Cancels one job, and tells the endpoints that hear of it. A cancel and a claim race for the lock of the open row. After a
 * claim the attempt runs to its end and nothing follows; after a cancel no claim finds anything owed. Throws ApiError for a
 * job that has ended.
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

const FAILED = endedStatusCode("failed");

const CANCEL = `
WITH open AS MATERIALIZED (
  SELECT o.*, ${ATTEMPTS} AS attempts, ${WAY} AS way FROM open_jobs o
   WHERE o.project_no = $1 AND o.environment = $2 AND o.region = $7 AND o.job_id = $3 AND NOT o.canceled
     AND ${ATTEMPTS} = $8 AND ${WAY} = $9
     FOR NO KEY UPDATE
), ${CANCEL_OPEN}, ${auditFrom("job.cancel", "open")}
SELECT h.delivery_id, h.shard, ${epochMs("now()")} AS due_at FROM open LEFT JOIN heard h ON true`;

interface ToldRow {
  /** Null if no endpoint hears of the cancel. */
  delivery_id: string | null;
  shard: number | null;
  due_at: number;
}

export type Retried =
  | { kind: "retried"; run: RunRow; owed: Placed<OwedAttempt>[] }
  | { kind: "not_found" }
  /** The month has no run left, and ends in so many milliseconds. */
  | { kind: "quota_exceeded"; clearsInMs: number }
  /** Another request has had the Idempotency-Key; findFirstAnswer tells what it made. */
  | { kind: "key_taken" };

/**
 * Reopens the run's job for one more attempt, which is recorded under `newRunId` as running from this moment. A job that
 * waits for its automatic retry gets this attempt in its place. `trace` is the trace of this attempt and of those that
 * follow; null for the job's own trace. Throws ApiError for a run that cannot be retried. Lock order: the flow, the job, the
 * Idempotency-Key, the flow key.
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
    if (row === undefined) return null;
    const { outcome, clears_in_ms: clearsInMs, started_at: startedAt, shard } = row;
    if (outcome === "quota_exceeded") return { kind: outcome, clearsInMs };
    if (outcome === "key_taken") return { kind: outcome };
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
  SELECT o.*
    FROM flow JOIN open_jobs o ON o.project_no = $1 AND o.environment = $2 AND o.region = $3 AND o.job_id = $4
   WHERE $7 AND o.attempt = $5 AND o.run_id IS NULL AND NOT o.canceled
     FOR NO KEY UPDATE OF o
), failed AS MATERIALIZED (
  SELECT e.job_id
    FROM flow JOIN ended_jobs e ON e.project_no = $1 AND e.environment = $2 AND e.status = ${FAILED} AND e.region = $3 AND e.job_id = $4
   WHERE NOT $7 AND e.attempts = $5 - 1
     FOR UPDATE OF e
), judged AS MATERIALIZED (
  SELECT month, CASE WHEN ${fitsMonth("1", "runs_left")} THEN 'retried' ELSE 'quota_exceeded' END AS outcome
    FROM (SELECT job_id FROM pending UNION ALL TABLE failed) found CROSS JOIN (SELECT ${MONTH_AT_CLOCK} FROM flow CROSS JOIN clock) f
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
  SELECT $1::int AS project_no, $2::smallint AS environment, $3::smallint AS region, $4::uuid AS job_id, $5::int AS attempt,
         $6::int AS attempts_allowed, $8::uuid AS run_id, month, decode($15, 'hex') AS trace, NOT $7::boolean AS reopens
    FROM decided WHERE outcome = 'retried'
), replaced AS (
  UPDATE open_jobs o
     SET run_id = $8, due_at = clock.at, parked_due_at = CASE WHEN o.flow_key IS NOT NULL THEN clock.at END,
         gate = CASE WHEN o.has_place IS NULL THEN 'k' || o.flow_key END, started_at = clock.at, trace = coalesce(r.trace, o.trace)
    FROM retried r CROSS JOIN clock
   WHERE $7 AND o.project_no = $1 AND o.environment = $2 AND o.region = $3 AND o.job_id = $4
), ${callGates(`pending WHERE ${HAS_GATE} AND EXISTS (SELECT FROM retried)`, { isOver: false })}, unplanned AS (
  UPDATE runs r SET next_retry_at = NULL FROM retried WHERE $7 AND r.job_id = $4 AND r.attempt = $5 - 1
), ${REOPEN_RETRIED}, audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject, detail)
  SELECT $11, $1, $2, $12, 'run.retry', $13, json_build_object('run_id', $14::text) FROM retried
)
SELECT d.outcome, ${clearsIn("d.month", "clock.at")} AS clears_in_ms,
       (extract(epoch FROM clock.at) * 1000)::float8 AS started_at, l.shard
  FROM decided d
 CROSS JOIN clock
  LEFT JOIN lanes l ON l.project_no = $1 AND l.region = $3 AND l.environment = $2`;

interface RetriedRow {
  outcome: "retried" | "quota_exceeded" | "key_taken";
  clears_in_ms: number;
  started_at: number;
  shard: number | null;
}
