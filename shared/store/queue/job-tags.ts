import { START_SHIFT_MS } from "../../domain/run.ts";

/**
 * The rows behind lists of jobs and runs by tag, as parts of the statements that make and change jobs. Only jobs with tags or a
 * flow key have rows here. A job's rows change only together with its state, under the lock of its open or ended row.
 */

/** The state in job_tag_states of a job that is not over. A job that is over has the code of its end there. */
export const OPEN_STATE = -1;

/**
 * A job's flow key stands among its tags as this word, which no customer can give as a tag. So lists by flow key are lists by
 * tag. Columns of tags leave this word out.
 */
export const flowKeyWord = (key: string): string => ` ${key}`;

/** The words by which a job is found: its tags, and its flow key. */
const WORDS = "CASE WHEN flow_key IS NULL THEN tags ELSE coalesce(tags, '{}') || (' ' || flow_key) END";
/** Whether a job has any words. */
export const HAS_WORDS = "(tags IS NOT NULL OR flow_key IS NOT NULL)";

/** Writes the words of new jobs, which `from` selects: rows of jobs with their tags and their flow_key. */
export const tagJobs = (from: string): string => `job_tag AS (
  INSERT INTO job_tags (project_no, environment, region, job_id, schedule_id, tag)
  SELECT project_no, environment, region, id, schedule_id, unnest(${WORDS}) FROM ${from}
), job_tag_state AS (
  INSERT INTO job_tag_states (project_no, environment, region, job_id, state, tag)
  SELECT project_no, environment, region, id, ${OPEN_STATE}, unnest(${WORDS}) FROM ${from}
)`;

/** Moves the words of jobs from the state `old` to `state`. `from` selects rows with the columns of open_jobs. */
export const moveTags = (from: string, old: string, state: string): string => `moved_tag AS (
  UPDATE job_tag_states t SET state = m.state
    FROM (SELECT project_no, environment, region, job_id, unnest(${WORDS}) AS tag, ${old} AS old, ${state} AS state FROM ${from}) m
   WHERE t.project_no = m.project_no AND t.environment = m.environment AND t.tag = m.tag AND t.state = m.old
     AND t.region = m.region AND t.job_id = m.job_id
)`;

/** Writes the tags of ended runs. `from` selects rows with the columns of runs, their id as `run_id`, and the job's tags. */
export const tagRuns = (from: string): string => `run_tag AS (
  INSERT INTO run_tags (ended_on, project_no, environment, status, id, schedule_id, tag)
  SELECT now()::date, project_no, environment, status, run_id, schedule_id, unnest(tags) FROM ${from}
)`;

/** Whether an attempt started when its run's id tells: startedInTime (domain/run.ts) of the columns of `row`. */
export const isInTime = (row: string): string =>
  `abs(extract(epoch FROM ${row}.started_at) * 1000 - ('x' || left(replace(${row}.run_id::text, '-', ''), 12))::bit(48)::bigint) <= ${START_SHIFT_MS}`;

/**
 * Notes the ended runs that started at another time than their ids tell, since lists by time are read in the order of ids. Such
 * runs are manual retries that waited for their permit, and claims that were repeated while Postgres did not answer.
 */
export const noteShiftedRuns = (from: string): string => `shifted_run AS (
  INSERT INTO shifted_runs (started_at, project_no, environment, status, id, schedule_id, tags)
  SELECT started_at, project_no, environment, status, run_id, schedule_id, tags
    FROM ${from}
   WHERE NOT ${isInTime(from)}
)`;
