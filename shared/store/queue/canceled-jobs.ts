import { UNSENT_RUN_ERROR } from "../../domain/run.ts";
import { endedStatusCode, eventTypeCode, runStatusCode } from "../database/codes.ts";
import { runData } from "./event-data.ts";
import { callGates, HAS_GATE } from "./gate-calls.ts";
import { HAS_WORDS, moveTags, OPEN_STATE, tagRuns } from "./job-tags.ts";
import { canceledSeed, sameLane, tellOf } from "./owed-deliveries.ts";

/** The parts of the statements that cancel jobs: one by one (resources/jobs-by-hand.ts) and many at once (bulk/cancel.ts). */

/** How many runs an open job (o) has. `attempt` is the number of the next run as long as that run has no id. */
export const ATTEMPTS = "o.attempt - CASE WHEN o.run_id IS NULL THEN 1 ELSE 0 END";

/** How far the attempt of an open job (o) has come, as decideCancel (domain/job.ts) names it. */
export const WAY =
  "CASE WHEN o.run_id IS NULL THEN 'waiting' WHEN o.node_id IS NULL THEN 'unsent' ELSE 'sent' END";

const CANCELED = endedStatusCode("canceled");
const FAILED_RUN = runStatusCode("failed");
const RUNNING = runStatusCode("running");

// An array instead of a number keeps the planner to the whole key (claim-statement.ts).
const SAME_JOB = `o.project_no = ANY (ARRAY[c.project_no]) AND o.environment = c.environment AND o.region = c.region
     AND o.job_id = c.job_id`;

/**
 * Cancels the jobs of `open`: locked rows of open_jobs with their `attempts` (ATTEMPTS) and `way` (WAY). An attempt on the wire
 * runs to its end. The endpoints that hear of cancels are told; `heard` has a row for each delivery.
 */
export const CANCEL_OPEN = `on_the_wire AS (
  UPDATE open_jobs o SET canceled = true FROM open c WHERE c.way = 'sent' AND ${SAME_JOB}
), given_up AS (
  DELETE FROM open_jobs o USING open c WHERE c.way <> 'sent' AND ${SAME_JOB}
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT project_no, environment, region, job_id, ${CANCELED}, attempts, now(), schedule_id FROM open
), never_sent AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
                    started_at, duration_ms, next_retry_at, schedule_id)
  SELECT run_id, job_id, project_no, environment,
         (SELECT retention_class FROM flows f WHERE f.project_no = c.project_no), attempts, ${FAILED_RUN},
         NULL, '${UNSENT_RUN_ERROR}', started_at, 0, NULL, schedule_id
    FROM open c WHERE way = 'unsent'
), unplanned AS (
  UPDATE runs r SET next_retry_at = NULL FROM open c
   WHERE c.way = 'waiting' AND c.attempts > 0 AND r.job_id = c.job_id AND r.attempt = c.attempts
), last_run AS MATERIALIZED (
  -- For an attempt that was not sent, it is the run that never_sent records.
  SELECT job_id, run_id AS id, attempts AS attempt, started_at, NULL::smallint AS response_status,
         CASE way WHEN 'sent' THEN ${RUNNING} ELSE ${FAILED_RUN} END AS status,
         CASE way WHEN 'unsent' THEN '${UNSENT_RUN_ERROR}' END AS error, CASE way WHEN 'unsent' THEN 0 END AS duration_ms
    FROM open WHERE way <> 'waiting'
  UNION ALL
  SELECT c.job_id, r.id, r.attempt, r.started_at, r.response_status, r.status, r.error, r.duration_ms
    FROM open c JOIN runs r ON r.job_id = c.job_id AND r.attempt = c.attempts
   WHERE c.way = 'waiting' AND c.attempts > 0
), canceled AS (
  SELECT ${canceledSeed("c.job_id")} AS seed, c.project_no, c.environment, c.region,
         (SELECT shard FROM lanes l WHERE ${sameLane("l", "c")}) AS shard,
         ${eventTypeCode("job.canceled")}::smallint AS type, c.job_id, c.trace,
         json_build_object('attempts', c.attempts, 'run', (SELECT ${runData("r")} FROM last_run r WHERE r.job_id = c.job_id)) AS data
    FROM open c
), ${callGates(`open WHERE ${HAS_GATE} AND way <> 'sent'`)}, ${moveTags(`open WHERE ${HAS_WORDS}`, String(OPEN_STATE), String(CANCELED))},
${tagRuns(`(SELECT *, ${FAILED_RUN} AS status FROM open) never_sent WHERE way = 'unsent' AND tags IS NOT NULL`)},
${tellOf("canceled")}`;
