import { endedStatusCode } from "../database/codes.ts";
import { USED_AT } from "./flow-gates.ts";
import { HAS_WORDS, moveTags, OPEN_STATE } from "./job-tags.ts";
import { countRuns } from "./month.ts";
import { FLOW_COLUMNS, flowColumnsOf } from "./new-jobs.ts";
import { tellOfQuota } from "./quota-events.ts";

/**
 * The parts of the statements that give failed jobs another attempt: one by one (resources/jobs-by-hand.ts) and many at once
 * (bulk/retry.ts).
 */

const FAILED = endedStatusCode("failed");
const KEY = "project_no, environment, flow_key";

/**
 * Reopens the jobs of `retried`, whose rows of ended_jobs are locked: project_no, environment, region, job_id, the `attempt`
 * that follows, `attempts_allowed`, its `run_id`, `month` (month.ts), `trace` (null: the job's own), and `reopens`: false if
 * the attempt takes the place of a pending one. Counts all these runs, and tells the endpoints that hear of the quota. It
 * stands behind `flow` (with MONTH_COLUMNS and QUOTA_COLUMNS) and `clock`, at which the attempts are due.
 *
 * A job's flow key may have been forgotten. The key is known again without limits, so that the attempt is counted at it, and the
 * purge (flow-key-purge.ts) finds it in use. Keys are locked last here, behind an Idempotency-Key: no statement that has locked
 * a key waits for an ended job, or for the project's flow.
 */
export const REOPEN_RETRIED = `reopened AS (
  DELETE FROM ended_jobs e
   USING retried r
   WHERE r.reopens AND e.project_no = ANY (ARRAY[r.project_no]) AND e.environment = r.environment AND e.status = ${FAILED}
     AND e.region = r.region AND e.job_id = r.job_id
), owed AS (
  INSERT INTO open_jobs (project_no, environment, region, job_id, attempt, attempts_allowed, run_id, due_at, started_at, trace,
                         schedule_id, tags, ${FLOW_COLUMNS})
  SELECT r.project_no, r.environment, r.region, r.job_id, r.attempt, r.attempts_allowed, r.run_id, clock.at, clock.at, r.trace,
         j.schedule_id, j.tags, ${flowColumnsOf("j.flow", "clock.at")}
    FROM retried r CROSS JOIN clock
    JOIN jobs j ON j.project_no = r.project_no AND j.environment = r.environment AND j.region = r.region AND j.id = r.job_id
   WHERE r.reopens
  RETURNING project_no, environment, region, job_id, tags, flow_key
), used_key AS (
  INSERT INTO flow_keys AS k (${KEY})
  SELECT DISTINCT ${KEY} FROM owed WHERE flow_key IS NOT NULL ORDER BY ${KEY}
      ON CONFLICT (${KEY}) DO UPDATE SET used_at = ${USED_AT}
), ${moveTags(`owed WHERE ${HAS_WORDS}`, String(FAILED), String(OPEN_STATE))}, counted AS (
  UPDATE flows f SET ${countRuns("c.runs")}
    FROM (SELECT project_no, count(*) AS runs FROM retried GROUP BY project_no) c CROSS JOIN clock
   WHERE f.project_no = c.project_no
), usage AS (
  INSERT INTO usage_days AS u (project_no, day, region, runs)
  SELECT project_no, greatest(clock.day, r.month), region, count(*) FROM retried r CROSS JOIN clock
   GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
      ON CONFLICT (project_no, day, region) DO UPDATE SET runs = u.runs + excluded.runs
), ${tellOfQuota("SELECT project_no, count(*) AS runs FROM retried GROUP BY project_no")}`;
