import type { JobSelection } from "../../../domain/bulk.ts";
import { idsBetween, idToUuid, JOB_PREFIX, OLDEST_UUID } from "../../../domain/ids.ts";
import { REGIONS, type Scope } from "../../../domain/scope.ts";
import { hostOfTarget } from "../../../domain/target.ts";
import { endedStatusCode, environmentCode, regionCode } from "../../database/codes.ts";
import { column, type Database } from "../../database/database.ts";
import { OPEN_STATE } from "../job-tags.ts";

/** How many entries of an index a page looks at in each region, whether they fit or not. This bounds the statement. */
export const LOOKED_AT_MAX = 500;

/** A page of the jobs that a bulk operation means, as they are at the moment. The ids are uuids. */
export interface CandidatePage {
  /** Oldest first. */
  jobs: { id: string; region: number }[];
  /** The id at which the page ends; null if nothing follows. */
  endId: string | null;
}

/** The index by which a page is walked. The rest of the selection is checked for each job that is found. */
type By = "all" | "schedule" | "tag";

/**
 * The jobs of a selection whose ids lie between `afterId` (a uuid, null for the first page) and `bulkId`, oldest first. A page
 * may be empty although others follow. The last run of a job counts as long as its id is not before `sinceId`.
 */
export async function findCandidates(
  db: Database,
  scope: Scope,
  selection: JobSelection,
  { afterId, bulkId, sinceId }: { afterId: string | null; bulkId: string; sinceId: string },
): Promise<CandidatePage> {
  const { action, status, region, tag, schedule, targetHost } = selection;
  if (schedule.kind === "none") return { jobs: [], endId: null };
  const scheduleId = schedule.kind === "one" ? idToUuid(schedule.id) : null;
  const by: By = tag !== null ? "tag" : scheduleId !== null ? "schedule" : "all";
  const created = idsBetween(JOB_PREFIX, { after: selection.createdAfter, before: selection.createdBefore });
  const [from, before] = [created.fromId, created.beforeId].map((id) => id && idToUuid(id));
  const last = idToUuid(bulkId);
  const rows = await db.run<Row>(`find_${action}_candidates_by_${by}`, FIND[action][by], [
    scope.projectNo,
    environmentCode(scope.environment),
    column((region === null ? REGIONS : [region]).map(regionCode)),
    afterId ?? OLDEST_UUID,
    from ?? OLDEST_UUID,
    before != null && before < last ? before : last,
    scheduleId,
    targetHost !== null,
    ...(action === "cancel"
      ? [status === null ? null : status === "running"]
      : [selection.errorContains, selection.responseStatus, idToUuid(sinceId)]),
    ...(tag === null ? [] : [tag]),
  ]);
  const isMeant = ({ target_url: url }: Row) =>
    targetHost === null || (url !== null && hostOfTarget(url) === targetHost);
  return {
    jobs: rows.flatMap((row) =>
      row.id !== null && row.region !== null && isMeant(row) ? [{ id: row.id, region: row.region }] : [],
    ),
    endId: rows[0]?.end_id ?? null,
  };
}

interface Row {
  end_id: string | null;
  /** Null if the page is empty. */
  id: string | null;
  region: number | null;
  /** Null unless a host is asked for. */
  target_url: string | null;
}

/**
 * Looks at the first LOOKED_AT_MAX ids of each region, and answers those that fit. If a region has more, the page ends at the
 * last id that was looked at there. `found` is a LATERAL FROM with the rows of `l` that fit. `facts` are parts that `from` reads.
 */
const pageOf = (from: string, found: string, facts = ""): string => `
WITH ${facts}looked AS MATERIALIZED (
  SELECT first.id, first.n, r.region
    FROM unnest($3::smallint[]) AS r (region)
   CROSS JOIN LATERAL (
     SELECT id, row_number() OVER (ORDER BY id) AS n FROM (${from} LIMIT ${LOOKED_AT_MAX}) AS ids (id)) first
)
SELECT edge.end_id, p.id, p.region,
       CASE WHEN $8::boolean THEN (
         SELECT target_url FROM jobs j
          WHERE j.project_no = $1 AND j.environment = $2 AND j.region = p.region AND j.id = p.id) END AS target_url
  FROM (SELECT (SELECT id FROM looked WHERE n = ${LOOKED_AT_MAX} ORDER BY id LIMIT 1) AS end_id) edge
  LEFT JOIN LATERAL (
    SELECT l.id, l.region
      FROM (SELECT id, region FROM looked WHERE edge.end_id IS NULL OR id <= edge.end_id ORDER BY id OFFSET 0) l
     CROSS JOIN LATERAL ${found}) p ON true
 ORDER BY p.id`;

const inOrder = (id: string) => `${id} > $4 AND ${id} >= $5 AND ${id} < $6 ORDER BY ${id}`;
const IN_SCOPE = "project_no = $1 AND environment = $2";
const taggedIn = (tag: string, state: number) => `SELECT job_id FROM job_tag_states
    WHERE ${IN_SCOPE} AND tag = ${tag} AND state = ${state} AND region = r.region AND ${inOrder("job_id")}`;

const FAILED = endedStatusCode("failed");

const OPEN = `(
       SELECT FROM (
         SELECT canceled, run_id, schedule_id FROM open_jobs
          WHERE ${IN_SCOPE} AND region = l.region AND job_id = l.id OFFSET 0) o
        WHERE NOT o.canceled AND ($7::uuid IS NULL OR o.schedule_id = $7)
          AND ($9::boolean IS NULL OR (o.run_id IS NOT NULL) = $9)) o`;

/** It is a scalar, since the planner might make a join of anything else, and read all runs. */
const LAST_RUN_FITS = `
              SELECT ($9::text IS NULL OR strpos(error, $9) > 0) AND ($10::int IS NULL OR response_status = $10)
                FROM runs WHERE job_id = l.id AND attempt = e.attempts AND id >= $11 LIMIT 1`;

const ENDED = `(
       SELECT FROM (
         SELECT attempts, schedule_id FROM ended_jobs
          WHERE ${IN_SCOPE} AND status = ${FAILED} AND region = l.region AND job_id = l.id OFFSET 0) e
        WHERE ($7::uuid IS NULL OR e.schedule_id = $7)
          AND CASE WHEN $9::text IS NULL AND $10::int IS NULL THEN true ELSE (${LAST_RUN_FITS}) END) e`;

/**
 * A project's running jobs are in no index by their ids. Up to so many are read as a whole. If there are more, since many wait for
 * an attempt that was asked for by hand, all jobs that are not over are walked, and OPEN leaves out those of other schedules.
 */
const RUNNING_MAX = 2_500;
const RUNNING = `running AS MATERIALIZED (
  SELECT count(*) > ${RUNNING_MAX} AS are_many
    FROM (SELECT FROM open_jobs WHERE project_no = $1 AND run_id IS NOT NULL LIMIT ${RUNNING_MAX + 1}) first
), `;
const ARE_MANY = "(SELECT are_many FROM running)";
const OPEN_OF_SCHEDULE = `SELECT job_id FROM (
      (SELECT job_id FROM open_jobs
        WHERE NOT ${ARE_MANY} AND schedule_id = $7 AND region = r.region AND run_id IS NULL AND ${inOrder("job_id")} LIMIT ${LOOKED_AT_MAX})
      UNION ALL
      (SELECT job_id
         FROM (SELECT job_id, environment, region, schedule_id FROM open_jobs
                WHERE NOT ${ARE_MANY} AND project_no = $1 AND run_id IS NOT NULL OFFSET 0) own
        WHERE environment = $2 AND region = r.region AND schedule_id = $7 AND ${inOrder("job_id")} LIMIT ${LOOKED_AT_MAX})
      UNION ALL
      (SELECT job_id FROM open_jobs
        WHERE ${ARE_MANY} AND ${IN_SCOPE} AND region = r.region AND ${inOrder("job_id")} LIMIT ${LOOKED_AT_MAX})
      ) either ORDER BY job_id`;

const FIND: Record<JobSelection["action"], Record<By, string>> = {
  cancel: {
    all: pageOf(
      `SELECT job_id FROM open_jobs WHERE ${IN_SCOPE} AND region = r.region AND ${inOrder("job_id")}`,
      OPEN,
    ),
    schedule: pageOf(OPEN_OF_SCHEDULE, OPEN, RUNNING),
    tag: pageOf(taggedIn("$10", OPEN_STATE), OPEN),
  },
  retry: {
    all: pageOf(
      `SELECT job_id FROM ended_jobs
        WHERE ${IN_SCOPE} AND status = ${FAILED} AND region = r.region AND ${inOrder("job_id")}`,
      ENDED,
    ),
    schedule: pageOf(
      `SELECT job_id FROM ended_jobs
        WHERE schedule_id = $7 AND status = ${FAILED} AND region = r.region AND ${inOrder("job_id")}`,
      ENDED,
    ),
    tag: pageOf(taggedIn("$12", FAILED), ENDED),
  },
};
