import { idToUuid, JOB_PREFIX, NEWEST_UUID, OLDEST_UUID, uuidToId } from "../../domain/ids.ts";
import { isTerminal, type JobStatus } from "../../domain/job.ts";
import { PAGE_SIZE_MAX } from "../../domain/page.ts";
import { REGIONS, type Region, type Scope } from "../../domain/scope.ts";
import { endedStatusCode, environmentCode, regionCode } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";
import { flowKeyWord, OPEN_STATE } from "../queue/job-tags.ts";
import { type JobSummary, readSummary, STATE_JOINS, SUMMARY_COLUMNS, type SummaryRow } from "./jobs.ts";

export interface JobListQuery extends Scope {
  status: JobStatus | null;
  region: Region | null;
  tag?: string | null;
  flowKey?: string | null;
  scheduleId?: string | null;
  /** Only jobs with this id or a greater one, which are not older. */
  fromId?: string | null;
  /** Only jobs with a smaller id, which are older. */
  beforeId: string | null;
  limit: number;
}

/** Rows of a list, newest first. */
export interface CutPage<Row> {
  rows: Row[];
  /** The id at which the look ended, if it ended before the limit was reached: rows with smaller ids may follow. */
  endId: string | null;
}

/** How many entries of an index a page looks at where some of them do not fit its filters: two pages of the largest size. */
export const LOOKED_AT_MAX = 2 * PAGE_SIZE_MAX;

/** Up to so many running jobs of an environment are read for a page: more than any plan has permits. */
export const RUNNING_MAX = 2_500;
const RUNNING_WALKED_MAX = 1_000;

type Source = "any" | "queued" | "running" | "ended";
/** The filters of a list beside status, region and time. */
type By = "all" | "schedule" | "tag" | "schedule_and_tag";
/** A flow key is walked as a tag is (job-tags.ts). A tag beside it filters the jobs that were found. */
type Word = "tag" | "flow" | "flow_and_tag";

/**
 * A page of a project's jobs, newest first. One filter, or two, walk an index that holds nothing else, region by region,
 * and merge; so a page costs the same however many other jobs there are. Three kinds of lists look at LOOKED_AT_MAX entries
 * of each region instead, and answer those that fit: a tag with a schedule and a status, a flow key with a tag, and a tag's
 * queued jobs, among which running ones are passed over. Running jobs are read as a whole, unless there are more than
 * RUNNING_MAX. A page of queued jobs passes over no more running ones than that.
 */
export async function listJobs(db: Database, query: JobListQuery): Promise<CutPage<JobSummary>> {
  const { status, tag = null, flowKey = null, scheduleId = null, fromId = null, beforeId } = query;
  const source: Source = status === null ? "any" : isTerminal(status) ? "ended" : status;
  const walked = flowKey === null ? tag : flowKeyWord(flowKey);
  const by: By =
    scheduleId === null
      ? walked === null
        ? "all"
        : "tag"
      : walked === null
        ? "schedule"
        : "schedule_and_tag";
  const word: Word = flowKey === null ? "tag" : tag === null ? "flow" : "flow_and_tag";
  const name = `list_jobs_${source}${by === "all" ? "" : `_of_${by.replace("tag", word)}`}`;
  const rows = await db.run<ListedRow>(name, LIST[word][source][by], [
    query.projectNo,
    environmentCode(query.environment),
    column((query.region === null ? REGIONS : [query.region]).map(regionCode)),
    beforeId === null ? NEWEST_UUID : idToUuid(beforeId),
    query.limit,
    fromId === null ? OLDEST_UUID : idToUuid(fromId),
    ...(scheduleId === null ? [] : [idToUuid(scheduleId)]),
    ...(walked === null ? [] : [walked]),
    ...(word === "flow_and_tag" ? [tag] : []),
    ...(status !== null && isTerminal(status) ? [endedStatusCode(status)] : []),
  ]);
  const endId = rows[0]?.end_id ?? null;
  return {
    rows: rows.flatMap((row) => (row.id === null ? [] : [readSummary(row as SummaryRow)])),
    endId: endId === null ? null : uuidToId(JOB_PREFIX, endId),
  };
}

type ListedRow = { end_id?: string | null } & (SummaryRow | { id: null });

/** The row of each job of a page (p), looked up by its whole key. */
const ASKED = `LATERAL (
    SELECT project_no, environment, region, id, target_url, tags, run_at FROM jobs
     WHERE project_no = $1 AND environment = $2 AND region = p.region AND id = p.id OFFSET 0) j ON true`;

/** A page of the jobs that `from` selects, all of which fit. */
const exactPage = (from: string) => `
SELECT ${SUMMARY_COLUMNS}
  FROM (SELECT found.id, r.region
          FROM unnest($3::smallint[]) AS r (region)
         CROSS JOIN LATERAL (${from} LIMIT $5) AS found (id)
         ORDER BY found.id DESC LIMIT $5) p
  JOIN ${ASKED} ${STATE_JOINS}
 ORDER BY j.id DESC`;

/**
 * A page of the jobs for which `fits` holds, among the first that `from` selects of each region. If a region has more, the
 * page goes no further back than to the last job looked at there: it leaves out older jobs of the other regions.
 */
const cutPage = (from: string, fits: string) => `
WITH looked AS MATERIALIZED (
  SELECT found.id, found.n = ${LOOKED_AT_MAX} AS is_last, r.region
    FROM unnest($3::smallint[]) AS r (region)
   CROSS JOIN LATERAL (
     SELECT id, row_number() OVER (ORDER BY id DESC) AS n FROM (${from} LIMIT ${LOOKED_AT_MAX}) AS first (id)) found
)${pageOfLooked("id, region", fits)}`;

const pageOfLooked = (columns: string, fits: string) => `
SELECT edge.end_id, ${SUMMARY_COLUMNS}
  FROM (SELECT (SELECT id FROM looked WHERE is_last ORDER BY id DESC LIMIT 1) AS end_id) edge
  LEFT JOIN LATERAL (
    SELECT l.id, l.region
      FROM (SELECT ${columns} FROM looked WHERE edge.end_id IS NULL OR id >= edge.end_id ORDER BY id DESC OFFSET 0) l
     WHERE ${fits}
     ORDER BY l.id DESC LIMIT $5) p ON true
  LEFT JOIN ${ASKED} ${STATE_JOINS}
 ORDER BY j.id DESC`;

const IN_SCOPE = "project_no = $1 AND environment = $2";
const newest = (id: string) => `${id} < $4 AND ${id} >= $6 ORDER BY ${id} DESC`;

/**
 * Jobs of one schedule, all of which belong to one environment. The inner query can use only the index by schedule, and the
 * outer one checks that the jobs found belong to this environment.
 */
const ofSchedule = (from: string, id: string, limit: string) =>
  `SELECT ${id} FROM (SELECT ${id}, project_no, environment FROM ${from} AND ${newest(id)} LIMIT ${limit}) own WHERE ${IN_SCOPE}`;

// Scalars, because the planner might make a join of anything else and read all jobs of that state.
const IS_QUEUED = `(
  SELECT true FROM open_jobs q
   WHERE q.project_no = $1 AND q.environment = $2 AND q.region = l.region AND q.job_id = l.id AND q.run_id IS NULL AND NOT q.canceled)`;
const hasEnded = (status: string) => `(
  SELECT true FROM ended_jobs f
   WHERE f.project_no = $1 AND f.environment = $2 AND f.status = ${status} AND f.region = l.region AND f.job_id = l.id)`;

/**
 * Running jobs are in no index by their ids, since each claim would enter it. They are as few as a project's permits, and all
 * are read, unless many wait for an attempt that was asked for by hand. Then a page looks at RUNNING_WALKED_MAX jobs of each
 * region that are not over, and is short if few of them are running.
 */
const running = (ofJob: string) => `
WITH running AS MATERIALIZED (
  SELECT job_id, region, NOT canceled AND ${ofJob} AS fits
    FROM (SELECT * FROM open_jobs WHERE ${IN_SCOPE} AND run_id IS NOT NULL ORDER BY run_id DESC LIMIT ${RUNNING_MAX}) newest
), many AS MATERIALIZED (
  SELECT count(*) = ${RUNNING_MAX} AS are_many FROM running
), looked AS MATERIALIZED (
  SELECT job_id AS id, region, fits, false AS is_last
    FROM running
   WHERE NOT (SELECT are_many FROM many) AND region = ANY ($3) AND job_id < $4 AND job_id >= $6
  UNION ALL
  SELECT found.job_id, r.region, found.fits, found.n = ${RUNNING_WALKED_MAX}
    FROM unnest($3::smallint[]) AS r (region)
   CROSS JOIN LATERAL (
         SELECT job_id, run_id IS NOT NULL AND NOT canceled AND ${ofJob} AS fits, row_number() OVER (ORDER BY job_id DESC) AS n
           FROM (SELECT * FROM open_jobs WHERE ${IN_SCOPE} AND region = r.region AND ${newest("job_id")} LIMIT ${RUNNING_WALKED_MAX}) first) found
   WHERE (SELECT are_many FROM many)
)${pageOfLooked("id, region, fits", "l.fits")}`;

/**
 * Queued jobs are walked among all that are not over, and running ones are passed over, at most RUNNING_MAX in each region: a page is
 * short only where more than that wait for an attempt that was asked for by hand.
 */
const QUEUED = `
WITH looked AS MATERIALIZED (
  SELECT found.id, r.region, found.fits, found.n = ${RUNNING_MAX} AS is_last
    FROM unnest($3::smallint[]) AS r (region)
   CROSS JOIN LATERAL (
         SELECT job_id AS id, fits, n
           FROM (SELECT job_id, run_id IS NULL AND NOT canceled AS fits, row_number() OVER (ORDER BY job_id DESC) AS n
                   FROM (SELECT * FROM open_jobs WHERE ${IN_SCOPE} AND region = r.region AND ${newest("job_id")} LIMIT ${RUNNING_MAX}) first) walked
          WHERE fits OR n = ${RUNNING_MAX}
          ORDER BY job_id DESC LIMIT $5) found
)${pageOfLooked("id, region, fits", "l.fits")}`;

const tagged = (tag: string) => `job_tags WHERE ${IN_SCOPE} AND tag = ${tag} AND region = r.region`;
const taggedIn = (tag: string, state: string | number) =>
  `SELECT job_id FROM job_tag_states
    WHERE ${IN_SCOPE} AND tag = ${tag} AND state = ${state} AND region = r.region AND ${newest("job_id")}`;
const taggedOfSchedule = (limit: string) =>
  ofSchedule("job_tags WHERE schedule_id = $7 AND tag = $8 AND region = r.region", "job_id", limit);

/** A word's conditions on a running job (in open_jobs), and on a job found by its key (l). `at` is its first parameter. */
const WORDS: Record<Word, (at: number) => { running: string; fits: string | null; parameters: number }> = {
  tag: (at) => ({ running: `$${at} = ANY (tags)`, fits: null, parameters: 1 }),
  flow: (at) => ({ running: `' ' || flow_key = $${at}`, fits: null, parameters: 1 }),
  flow_and_tag: (at) => ({
    running: `' ' || flow_key = $${at} AND $${at + 1} = ANY (tags)`,
    fits: `(
  SELECT true FROM job_tags t
   WHERE t.project_no = $1 AND t.environment = $2 AND t.tag = $${at + 1} AND t.region = l.region AND t.job_id = l.id)`,
    parameters: 2,
  }),
};

function listsBy(word: Word): Record<Source, Record<By, string>> {
  const byTag = WORDS[word](7);
  const byBoth = WORDS[word](8);
  const statusOf = (by: { parameters: number }, at: number) => `$${at + by.parameters}`;
  const all = (...conditions: (string | null)[]) => conditions.filter((one) => one !== null).join(" AND ");
  /** All jobs of `from` fit, unless a second word is asked for. */
  const page = (from: string, { fits }: { fits: string | null }) =>
    fits === null ? exactPage(from) : cutPage(from, fits);
  const ofBoth = taggedOfSchedule(byBoth.fits === null ? "$5" : String(LOOKED_AT_MAX));
  const lookedAtOfBoth = taggedOfSchedule(String(LOOKED_AT_MAX));
  return {
    any: {
      all: exactPage(`SELECT id FROM jobs WHERE ${IN_SCOPE} AND region = r.region AND ${newest("id")}`),
      schedule: exactPage(ofSchedule("jobs WHERE schedule_id = $7 AND region = r.region", "id", "$5")),
      tag: page(`SELECT job_id FROM ${tagged("$7")} AND ${newest("job_id")}`, byTag),
      schedule_and_tag: page(ofBoth, byBoth),
    },
    queued: {
      all: QUEUED,
      schedule: exactPage(
        ofSchedule(
          "open_jobs WHERE schedule_id = $7 AND region = r.region AND run_id IS NULL",
          "job_id",
          "$5",
        ),
      ),
      tag: cutPage(taggedIn("$7", OPEN_STATE), all(IS_QUEUED, byTag.fits)),
      schedule_and_tag: cutPage(lookedAtOfBoth, all(IS_QUEUED, byBoth.fits)),
    },
    running: {
      all: running("true"),
      schedule: running("coalesce(schedule_id = $7, false)"),
      tag: running(`coalesce(${byTag.running}, false)`),
      schedule_and_tag: running(`coalesce(schedule_id = $7 AND ${byBoth.running}, false)`),
    },
    ended: {
      all: exactPage(`SELECT job_id FROM ended_jobs
                     WHERE ${IN_SCOPE} AND status = $7 AND region = r.region AND ${newest("job_id")}`),
      schedule: exactPage(
        ofSchedule("ended_jobs WHERE schedule_id = $7 AND status = $8 AND region = r.region", "job_id", "$5"),
      ),
      tag: page(taggedIn("$7", statusOf(byTag, 7)), byTag),
      schedule_and_tag: cutPage(lookedAtOfBoth, all(hasEnded(statusOf(byBoth, 8)), byBoth.fits)),
    },
  };
}

const LIST: Record<Word, Record<Source, Record<By, string>>> = {
  tag: listsBy("tag"),
  flow: listsBy("flow"),
  flow_and_tag: listsBy("flow_and_tag"),
};
