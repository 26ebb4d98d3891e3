import { idToUuid, JOB_PREFIX, uuidToId } from "../domain/ids.ts";
import type { RunStatus } from "../domain/run.ts";
import type { Environment, ProjectNo, Region } from "../domain/scope.ts";
import { environmentCode, regionCode, regionOf, runStatusCode } from "./codes.ts";
import { column, type Database, instant } from "./database.ts";

/** How one attempt ended and what follows from it, as settleAttempt (domain/run.ts) decided. */
export interface Settlement {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  jobId: string;
  runId: string;
  status: Exclude<RunStatus, "running">;
  responseStatus: number | null;
  error: string | null;
  durationMs: number;
  /** Unless the job was canceled meanwhile: retried at that instant, or over. */
  next: { status: "queued"; dueAt: number } | { status: "succeeded" } | { status: "failed" };
}

/** What the settlement did. */
export interface Settled {
  /** The same order as the settlements; null for one whose attempt had been settled before, by whomever. */
  items: (SettledItem | null)[];
  /** Where a permit had been refused to a project that now has one free, and how many came back to it ever. */
  freed: { projectNo: ProjectNo; region: Region; shard: number; returned: number }[];
}

export interface SettledItem {
  jobId: string;
  attempt: number;
  status: "queued" | "succeeded" | "failed" | "canceled";
  /** When the next attempt is due, by the database's clock; null if none follows. */
  nextRetryAt: number | null;
}

/**
 * Settles many attempts in one self-committing statement: the run is written, the permit comes back, the job is
 * owed again or over. The attempt's run id is the compare-and-set: of two settlements of one attempt (an answer that
 * was lost and is sent again, a rescue and the node that it rescued from) the first counts and the second finds
 * nothing. Lock order and look-ups as in claim.ts; counting the flows locks all of them before the first job.
 */
export async function settleAttempts(db: Database, settlements: readonly Settlement[]): Promise<Settled> {
  const rows = await db.run<SettleRow>("settle", SETTLE, [
    column(settlements.map((item) => item.projectNo)),
    column(settlements.map((item) => environmentCode(item.environment))),
    column(settlements.map((item) => regionCode(item.region))),
    column(settlements.map((item) => idToUuid(item.jobId))),
    column(settlements.map((item) => idToUuid(item.runId))),
    column(settlements.map((item) => runStatusCode(item.status))),
    column(settlements.map((item) => item.responseStatus)),
    settlements.map((item) => item.error),
    column(settlements.map((item) => Math.min(Math.round(item.durationMs), DURATION_MS_MAX))),
    column(settlements.map((item) => ENDS.indexOf(item.next.status))),
    column(settlements.map((item) => (item.next.status === "queued" ? instant(item.next.dueAt) : null))),
  ]);
  const settled: Settled = { items: settlements.map(() => null), freed: [] };
  for (const row of rows) {
    if (row.n === null) {
      settled.freed.push({
        projectNo: row.project_no,
        region: regionOf(row.region),
        shard: row.shard,
        returned: Number(row.returned),
      });
    } else {
      settled.items[row.n - 1] = {
        jobId: uuidToId(JOB_PREFIX, row.job_id),
        attempt: row.attempt,
        status: row.canceled ? "canceled" : (ENDS[row.next] ?? "failed"),
        nextRetryAt: row.due_at,
      };
    }
  }
  return settled;
}

/** The column is an integer; an attempt may be found lost after any time. */
const DURATION_MS_MAX = 2_147_483_647;
const ENDS = ["queued", "succeeded", "failed"] as const;

const SETTLE = `
WITH item AS MATERIALIZED (
  SELECT i.*
    FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[], $5::uuid[], $6::smallint[], $7::smallint[],
                $8::text[], $9::int[], $10::smallint[], $11::timestamptz[])
         WITH ORDINALITY AS i (project_no, environment, region, job_id, run_id, status, response_status,
                               error, duration_ms, next, due_at, n)
), flow AS MATERIALIZED (
  SELECT f.project_no, f.waiting_regions, f.returned, f.retention_class
    FROM (SELECT DISTINCT project_no FROM item) p JOIN flows f USING (project_no)
   ORDER BY f.project_no
     FOR NO KEY UPDATE OF f
), locked AS MATERIALIZED (
  SELECT array_agg(project_no) AS projects, array_agg(retention_class) AS classes FROM flow
), found AS MATERIALIZED (
  SELECT i.*, o.run_id AS owed_run_id, o.node_id, o.attempt, o.started_at, o.canceled
    FROM (SELECT item.*, l.classes[array_position(l.projects, item.project_no)] AS retention_class
            FROM locked l CROSS JOIN item ORDER BY job_id) i
   CROSS JOIN LATERAL (
         SELECT o.run_id, o.node_id, o.attempt, o.started_at, o.canceled
           FROM open_jobs o
          WHERE o.project_no = i.project_no AND o.environment = i.environment
            AND o.region = i.region AND o.job_id = i.job_id
            FOR NO KEY UPDATE) o
), attempt AS MATERIALIZED (
  SELECT n, project_no, environment, region, job_id, run_id, status, response_status, error, duration_ms, next,
         greatest(due_at, now()) AS due_at, retention_class, attempt, started_at, canceled
    FROM found WHERE owed_run_id = run_id AND node_id IS NOT NULL
), owed_again AS (
  UPDATE open_jobs o
     SET attempt = o.attempt + 1, due_at = a.due_at, run_id = NULL, node_id = NULL, started_at = NULL
    FROM attempt a
   WHERE a.next = 0 AND NOT a.canceled AND o.project_no = ANY (ARRAY[a.project_no]) AND o.environment = a.environment
     AND o.region = a.region AND o.job_id = a.job_id
), over AS (
  DELETE FROM open_jobs o
   USING attempt a
   WHERE (a.next <> 0 OR a.canceled) AND o.project_no = ANY (ARRAY[a.project_no]) AND o.environment = a.environment
     AND o.region = a.region AND o.job_id = a.job_id
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at)
  SELECT project_no, environment, region, job_id, next - 1, attempt, now()
    FROM attempt WHERE next <> 0 AND NOT canceled
), recorded AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
                    started_at, duration_ms, next_retry_at)
  SELECT run_id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
         started_at, duration_ms, CASE WHEN next = 0 AND NOT canceled THEN due_at END
    FROM attempt
), returned AS (
  UPDATE flows f
     SET development_jobs = f.development_jobs - c.development,
         production_jobs = f.production_jobs - c.production,
         returned = f.returned + c.development + c.production,
         waiting_regions = 0
    FROM (SELECT project_no, count(*) FILTER (WHERE environment = 0) AS development,
                 count(*) FILTER (WHERE environment = 1) AS production
            FROM attempt GROUP BY project_no) c
   WHERE f.project_no = c.project_no
)
SELECT a.n::int AS n, a.project_no, a.region, NULL::smallint AS shard, NULL::bigint AS returned, a.job_id, a.attempt, a.next, a.canceled,
       CASE WHEN a.next = 0 AND NOT a.canceled THEN extract(epoch FROM a.due_at) * 1000 END::float8 AS due_at
  FROM attempt a
UNION ALL
SELECT DISTINCT NULL::int, l.project_no, l.region, l.shard, f.returned + f.settled, NULL::uuid, NULL::smallint, NULL::smallint,
       NULL::boolean, NULL::float8
  FROM (SELECT project_no, waiting_regions, returned,
               (SELECT count(*) FROM attempt a WHERE a.project_no = flow.project_no) AS settled
          FROM flow WHERE waiting_regions <> 0) f
  JOIN lanes l ON l.project_no = f.project_no AND f.settled > 0 AND f.waiting_regions & (1 << l.region) <> 0`;

type SettleRow = {
  project_no: ProjectNo;
  region: number;
} & (
  | { n: null; shard: number; returned: string }
  | { n: number; job_id: string; attempt: number; next: number; canceled: boolean; due_at: number | null }
);
