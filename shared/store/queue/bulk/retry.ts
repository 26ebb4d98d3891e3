import { idToUuid, JOB_PREFIX, uuidToId } from "../../../domain/ids.ts";
import { ATTEMPTS_MAX } from "../../../domain/job.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../../domain/owed.ts";
import { endedStatusCode, regionOf } from "../../database/codes.ts";
import { column, type Database, epochMs } from "../../database/database.ts";
import { CLOCK, fitsMonth, MONTH_AT_CLOCK, MONTH_COLUMNS } from "../month.ts";
import { QUOTA_COLUMNS } from "../quota-events.ts";
import { REOPEN_RETRIED } from "../retried-jobs.ts";
import {
  ANSWER,
  type AnswerColumns,
  type BulkPlace,
  type JudgedPage,
  lockedBulk,
  NOTE_JUDGED,
  PAGE,
  placeOf,
  RUNNING,
  readAnswer,
} from "./page.ts";

/**
 * Retries the next jobs of a bulk operation, as many as there are ids for their new runs, as retryRun
 * (resources/jobs-by-hand.ts) retries the last run of each. Jobs that are not failed any more are skipped. Jobs fail if they
 * have ATTEMPTS_MAX attempts, if their last run has an id before `sinceId` (it has left retention), or if the month has no run
 * left. One statement, like cancelMembers. Lock order: fence, the operation, the flow, ended jobs by id, flow keys.
 */
export async function retryMembers(
  db: Database,
  bulk: BulkPlace,
  { runIds, sinceId }: { runIds: readonly string[]; sinceId: string },
): Promise<(JudgedPage & { owed: Placed<OwedAttempt>[] }) | null> {
  const values = [...placeOf(bulk), runIds.length, idToUuid(sinceId), column(runIds.map(idToUuid))];
  const rows = await db.run<Row>("retry_bulk_members", RETRY, values);
  const [first] = rows;
  if (first === undefined) return null;
  const { projectNo, environment } = bulk;
  const owed = rows.flatMap(({ job_id, region, shard, attempt, due_at: dueAt }) => {
    if (job_id === null) return [];
    const place = { projectNo, environment, region: regionOf(region ?? 0), shard };
    return oweAttempt("jobs", place, { id: uuidToId(JOB_PREFIX, job_id), attempt, dueAt });
  });
  return { ...readAnswer(first), owed };
}

const FAILED = endedStatusCode("failed");

// A run is looked for as a scalar: the planner might make a join of anything else, and read all runs.
const RETRY = `
WITH ${lockedBulk(`b.status = ${RUNNING}`)}, flow AS MATERIALIZED (
  SELECT f.project_no, ${MONTH_COLUMNS}, ${QUOTA_COLUMNS}
    FROM bulk b JOIN flows f ON f.project_no = b.project_no
     FOR NO KEY UPDATE OF f
), ${CLOCK}, ${PAGE}, failed AS MATERIALIZED (
  SELECT p.position, p.n, p.region, e.job_id, e.attempts
    FROM (SELECT * FROM page ORDER BY job_id) p
   CROSS JOIN LATERAL (
         SELECT e.job_id, e.attempts
           FROM ended_jobs e
          WHERE e.project_no = ANY (ARRAY[$1::int]) AND e.environment = $2 AND e.status = ${FAILED} AND e.region = p.region
            AND e.job_id = p.job_id
            FOR UPDATE) e
), placed AS MATERIALIZED (
  SELECT f.*, count(*) FILTER (WHERE is_able) OVER (ORDER BY position) AS place
    FROM (SELECT *, attempts < ${ATTEMPTS_MAX} AND (
                   SELECT true FROM runs r WHERE r.job_id = l.job_id AND r.attempt = l.attempts AND r.id >= $7 LIMIT 1) IS NOT NULL AS is_able
            FROM failed l) f
), retried AS MATERIALIZED (
  SELECT $1::int AS project_no, $2::smallint AS environment, f.region, f.job_id, f.attempts + 1 AS attempt,
         greatest(j.max_attempts, f.attempts + 1) AS attempts_allowed, i.run_id, m.month, NULL::bytea AS trace, true AS reopens,
         f.position
    FROM (SELECT ${MONTH_AT_CLOCK} FROM flow CROSS JOIN clock) m
    JOIN placed f ON f.is_able AND ${fitsMonth("f.place", "m.runs_left")}
    JOIN unnest($8::uuid[]) WITH ORDINALITY AS i (run_id, n) ON i.n = f.n
    JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = f.region AND j.id = f.job_id
), judged AS MATERIALIZED (
  SELECT p.position, CASE WHEN f.position IS NULL THEN 'skipped' WHEN r.position IS NULL THEN 'failed' ELSE 'done' END AS outcome
    FROM page p LEFT JOIN failed f USING (position) LEFT JOIN retried r USING (position)
), ${REOPEN_RETRIED}, ${NOTE_JUDGED}
SELECT ${ANSWER}, r.job_id, r.region, r.attempt, ${epochMs("t.at")} AS due_at, l.shard
  FROM turn t
 CROSS JOIN total s
  LEFT JOIN retried r ON true
  LEFT JOIN lanes l ON l.project_no = r.project_no AND l.region = r.region AND l.environment = r.environment`;

interface Row extends AnswerColumns {
  /** Null if no job was retried. */
  job_id: string | null;
  region: number | null;
  attempt: number;
  due_at: number;
  shard: number | null;
}
