import { IS_PARKED, NOTE_FLOWS } from "./given-flows.ts";
import { tagJobs } from "./job-tags.ts";

/**
 * The parts of the statements that make jobs (firings.ts, bulk/backfill.ts, resources/job-creation.ts,
 * resources/ordinary-creation.ts): the job, the attempt that it owes, and the lane in which sweeps find the attempt. All or
 * none of it is written, and newJobs leaves an id that exists already as it is.
 */

/**
 * A job whose run_at is past is due from the statement on. No due_at is written behind the clock, which lets each sweep begin
 * where the one before ended (sweep.ts).
 */
export const DUE_AT = "greatest(run_at, now())";

/** Whether jobs may have tags, flow keys, or a schedule. Statements for jobs without any leave out the parts for them. */
export interface WithTags {
  tags: boolean;
  flow?: boolean;
  schedule?: boolean;
}

/** The columns of an open job that come from its flow. */
export const FLOW_COLUMNS = "flow_key, gate, parked_due_at";
/** The values of these columns for a job with `flow` that is due at `dueAt`. */
export const flowColumnsOf = (flow: string, dueAt: string): string =>
  `${flow} ->> 'key', 'k' || (${flow} ->> 'key'), CASE WHEN ${flow} IS NOT NULL THEN ${dueAt} END`;

const COLUMNS =
  "project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds, key_no, request_id";

/** The job, from rows like those of newJobs, and the attempt that it owes, from `job`. */
function insertsOf(from: string, onConflict: string, { tags, flow = false, schedule = false }: WithTags) {
  const owes = `${schedule ? ", schedule_id" : ""}${tags ? ", tags" : ""}`;
  const also = `${owes}${flow ? ", flow" : ""}`;
  return {
    job: `INSERT INTO jobs (id, ${COLUMNS}, trace${also})
  SELECT id, ${COLUMNS}, decode(trace, 'hex')${also}
    FROM ${from} ${onConflict}
  RETURNING project_no, environment, region, id, run_at, max_attempts${also}`,
    owed: `INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed${owes}${flow ? `, ${FLOW_COLUMNS}` : ""})
  SELECT project_no, environment, region, id, ${flow ? `CASE WHEN NOT ${IS_PARKED} THEN ${DUE_AT} END` : DUE_AT}, max_attempts${owes}${flow ? `, ${flowColumnsOf("flow", DUE_AT)}` : ""} FROM job`,
  };
}

function jobsOf(
  from: string,
  onConflict: string,
  { tags, flow = false, schedule = false }: WithTags,
): string {
  const { job, owed } = insertsOf(from, onConflict, { tags, flow, schedule });
  const named = `${flow ? "flow ->> 'key'" : "NULL::text"} AS flow_key${schedule ? "" : ", NULL::uuid AS schedule_id"}`;
  return `job AS (
  ${job}
), owed AS (
  ${owed}
)${flow ? `, ${NOTE_FLOWS}` : ""}${tags ? `, ${tagJobs(`(SELECT *, ${named} FROM job) named_job`)}` : ""}`;
}

/**
 * Stands behind the rows that `from` selects, a FROM with a WHERE. Their columns are named as those of jobs. `trace` is
 * hexadecimal. `tags` and `flow` are null for none, and left out where no job may have any. `new_shard` is null if the lane has
 * its row already; a lane whose row has another shard moves to `new_shard`. `hasDeliveries` is for a new lane. Where jobs may
 * have a flow, this part stands behind giveFlows (given-flows.ts).
 */
export const newJobs = (
  from: string,
  { hasDeliveries = "false", ...withTags }: WithTags & { hasDeliveries?: string },
): string => `${jobsOf(from, "ON CONFLICT (project_no, environment, region, id) DO NOTHING", { ...withTags, schedule: true })}, lane AS (
  INSERT INTO lanes AS l (project_no, region, environment, shard, has_deliveries)
  SELECT DISTINCT project_no, region, environment, new_shard, ${hasDeliveries}
    FROM ${from} AND new_shard IS NOT NULL
   ORDER BY project_no, region, environment
      ON CONFLICT (project_no, region, environment) DO UPDATE SET shard = excluded.shard
   WHERE l.shard <> excluded.shard
)`;

/**
 * The same for jobs of no schedule whose lanes have their rows and whose ids are new. An id that exists already fails the
 * statement.
 */
export const newJobsOfKnownLanes = (from: string, withTags: WithTags): string => jobsOf(from, "", withTags);

/**
 * A statement of its own that makes the one job of `from`, which has no tags, under the same terms. `from` may read
 * the CTE `before`, and `returning` may name columns of open_jobs.
 */
export function newJobOfKnownLane(before: string, from: string, returning: string): string {
  const { job, owed } = insertsOf(from, "", { tags: false });
  return `WITH ${before}, job AS (
  ${job}
)
${owed}
RETURNING ${returning}`;
}
