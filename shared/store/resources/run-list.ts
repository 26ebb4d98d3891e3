import { idToUuid, NEWEST_UUID, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import { RUN_STATUSES, type RunStatus, START_SHIFT_MS } from "../../domain/run.ts";
import { ALL_REGIONS, environmentCode, runStatusCode } from "../database/codes.ts";
import { column, type Database, instant } from "../database/database.ts";
import { type CutPage, LOOKED_AT_MAX } from "./job-list.ts";
import {
  ENDED_COLUMNS,
  firstUuidAt,
  type RetainedScope,
  RUNNING,
  RUNNING_COLUMNS,
  type RunColumns,
  type RunRow,
  readRun,
} from "./runs.ts";

export interface RunListQuery extends RetainedScope {
  jobId: string | null;
  status: RunStatus | null;
  tag?: string | null;
  scheduleId?: string | null;
  /** Milliseconds since 1970. A run that started at this very instant is left out, as with `startedBefore`. */
  startedAfter?: number | null;
  startedBefore?: number | null;
  beforeId: string | null;
  limit: number;
}

/** The filters of a list beside status and time. */
type By = "all" | "schedule" | "tag" | "schedule_and_tag";

/**
 * A page of an environment's runs, newest first by their ids; runs in progress stand in the same order. One filter, or two,
 * walk indexes that hold nothing else.
 */
export async function listRuns(db: Database, query: RunListQuery): Promise<CutPage<RunRow>> {
  const { jobId, tag = null, scheduleId = null, startedAfter = null, startedBefore = null } = query;
  if (jobId !== null) return whole(await listRunsOfJob(db, query, jobId));
  const isTimed = startedAfter !== null || startedBefore !== null;
  if (tag === null && scheduleId === null && !isTimed) {
    return whole((await db.run<RunColumns>("list_runs", LIST, valuesOf(query))).map(readRun));
  }
  return findRuns(db, query, isTimed);
}

const whole = (rows: RunRow[]): CutPage<RunRow> => ({ rows, endId: null });

/** The first six parameters of each statement. */
function valuesOf({ projectNo, environment, status, beforeId, limit, sinceAt }: RunListQuery) {
  return [
    projectNo,
    environmentCode(environment),
    status === null ? column(RUN_STATUSES.map(runStatusCode)) : column([runStatusCode(status)]),
    beforeId === null ? NEWEST_UUID : idToUuid(beforeId),
    limit,
    firstUuidAt(sinceAt),
  ];
}

const newestInProgress = (limit: string | number) =>
  `(SELECT * FROM open_jobs WHERE project_no = $1 AND environment = $2 AND run_id < $4 AND ${RUNNING} = ANY ($3::smallint[])
     ORDER BY run_id DESC LIMIT ${limit})`;

const LIST = `
SELECT * FROM (
  SELECT ${RUNNING_COLUMNS} FROM ${newestInProgress("$5")} running
  UNION ALL
  SELECT found.*
    FROM unnest($3::smallint[]) AS s (status)
   CROSS JOIN LATERAL (
     SELECT ${ENDED_COLUMNS} FROM runs
      WHERE project_no = $1 AND environment = $2 AND status = s.status AND id < $4 AND id >= $6
      ORDER BY id DESC LIMIT $5) found
) page ORDER BY id DESC LIMIT $5`;

async function listRunsOfJob(db: Database, query: RunListQuery, jobId: string): Promise<RunRow[]> {
  const { tag = null, scheduleId = null } = query;
  const rows = await db.run<RunColumns>("list_runs_of_job", LIST_OF_JOB, [
    ...valuesOf(query),
    idToUuid(jobId),
    ...startsOf(query),
    tag,
    scheduleId === null ? null : idToUuid(scheduleId),
  ]);
  return rows.map(readRun);
}

/** The last instant whose text Postgres can read. */
const LAST_INSTANT = Date.UTC(9999, 11, 31);

/** The first start that a page may show, and the first later one that it may not. Starts are shown in whole milliseconds. */
function startsOf({
  startedAfter = null,
  startedBefore = null,
}: RunListQuery): [from: string, before: string] {
  const bounded = (at: number) => instant(Math.min(Math.max(at, 0), LAST_INSTANT));
  return [
    startedAfter === null ? "-infinity" : bounded(startedAfter + 1),
    startedBefore === null ? "infinity" : bounded(startedBefore),
  ];
}

const startedIn = (from: string, before: string) =>
  `started_at >= ${from}::timestamptz AND started_at < ${before}::timestamptz`;

// A job has few runs: the index by job finds all of them, and the filters are applied to those. The job's tag and schedule are
// checked once.
const LIST_OF_JOB = `
SELECT * FROM (
  SELECT ${RUNNING_COLUMNS}
    FROM (SELECT * FROM open_jobs
           WHERE project_no = $1 AND environment = $2 AND region = ANY (${ALL_REGIONS}) AND job_id = $7 OFFSET 0) own
   WHERE ${RUNNING} = ANY ($3::smallint[]) AND run_id < $4 AND ${startedIn("$8", "$9")}
  UNION ALL
  SELECT ${ENDED_COLUMNS}
    FROM (SELECT * FROM runs WHERE job_id = $7 AND id >= $6 OFFSET 0) ended
   WHERE project_no = $1 AND environment = $2 AND status = ANY ($3::smallint[]) AND id < $4 AND ${startedIn("$8", "$9")}
) page
 WHERE ($10::text IS NULL AND $11::uuid IS NULL)
    OR (SELECT coalesce($10 = ANY (j.tags), $10 IS NULL) AND coalesce(j.schedule_id = $11, $11 IS NULL)
          FROM jobs j
         WHERE j.project_no = $1 AND j.environment = $2 AND j.region = ANY (${ALL_REGIONS}) AND j.id = $7)
 ORDER BY id DESC LIMIT $5`;

/** A run's id tells when the run started, except for the runs that are noted as shifted. */
async function findRuns(db: Database, query: RunListQuery, isTimed: boolean): Promise<CutPage<RunRow>> {
  const { tag = null, scheduleId = null, startedAfter = null, startedBefore = null, sinceAt } = query;
  const by: By =
    scheduleId === null ? (tag === null ? "all" : "tag") : tag === null ? "schedule" : "schedule_and_tag";
  const name = `find_runs_by_${by}${isTimed ? "_and_time" : ""}` as const;
  const values = [
    ...valuesOf(query),
    ...(scheduleId === null ? [] : [idToUuid(scheduleId)]),
    ...(tag === null ? [] : [tag]),
  ];
  if (isTimed) {
    const fromAt = Math.max(sinceAt, (startedAfter ?? 0) - START_SHIFT_MS);
    const before =
      startedBefore === null ? NEWEST_UUID : firstUuidAt(Math.max(0, startedBefore + START_SHIFT_MS));
    values.push(...startsOf(query), firstUuidAt(fromAt), before);
  }
  const rows = await db.run<FoundRow>(name, FIND[isTimed ? "timed" : "untimed"][by], values);
  const endId = rows[0]?.end_id ?? null;
  return {
    rows: rows.flatMap((row) => (row.id === null ? [] : [readRun(row as RunColumns)])),
    endId: endId === null ? null : uuidToId(RUN_PREFIX, endId),
  };
}

const FIND: Record<"timed" | "untimed", Record<By, string>> = {
  untimed: findTexts(false),
  timed: findTexts(true),
};

function findTexts(isTimed: boolean): Record<By, string> {
  const text = (by: By, hasSchedule: boolean, hasTag: boolean) => {
    const schedule = "$7";
    const tag = hasSchedule ? "$8" : "$7";
    const first = 7 + Number(hasSchedule) + Number(hasTag);
    const times = isTimed ? [0, 1, 2, 3].map((place) => `$${first + place}`) : null;
    return findText(by, { schedule, tag, times });
  };
  return {
    all: text("all", false, false),
    schedule: text("schedule", true, false),
    tag: text("tag", false, true),
    schedule_and_tag: text("schedule_and_tag", true, true),
  };
}

/**
 * Looks at LOOKED_AT_MAX ids of each status, newest first, and reads as many of their runs as the page has room for. Runs in
 * progress have no index by tag or schedule, so LOOKED_AT_MAX of them are looked at whether they fit or not. The shifted runs
 * that the times in their ids would hide are added. The page goes no further back than to where one of these looks ended.
 */
function findText(
  by: By,
  { schedule, tag, times }: { schedule: string; tag: string; times: string[] | null },
) {
  const [from, before, fromId, beforeId] = times ?? ["", "", "$6", "$4"];
  const inTime = times === null ? "" : ` AND ${startedIn(from ?? "", before ?? "")}`;
  const ofSchedule = by === "schedule" || by === "schedule_and_tag" ? ` AND schedule_id = ${schedule}` : "";
  const ofTag = by === "tag" || by === "schedule_and_tag" ? ` AND ${tag} = ANY (tags)` : "";
  const newest = `id < least($4::uuid, ${beforeId}::uuid) AND id >= ${fromId} ORDER BY id DESC LIMIT ${LOOKED_AT_MAX}`;
  const shifted = `
  UNION ALL
  SELECT status, id, n, (id < ${fromId} OR id >= ${beforeId})${inTime}${ofSchedule}${ofTag} AND status = ANY ($3::smallint[])
    FROM (SELECT *, row_number() OVER (ORDER BY id DESC) AS n
            FROM (SELECT * FROM shifted_runs
                   WHERE project_no = $1 AND environment = $2 AND id < $4 AND id >= $6
                   ORDER BY id DESC LIMIT ${LOOKED_AT_MAX}) first) shifted`;
  return `
WITH looked AS MATERIALIZED (
  SELECT s.status, found.id, found.n, true AS fits
    FROM unnest($3::smallint[]) AS s (status)
   CROSS JOIN LATERAL (SELECT id, row_number() OVER (ORDER BY id DESC) AS n FROM (${idsOf(by, { schedule, tag, newest })}) first) found${times === null ? "" : shifted}
), running AS MATERIALIZED (
  SELECT *, row_number() OVER (ORDER BY run_id DESC) AS n FROM ${newestInProgress(LOOKED_AT_MAX)} first
)
SELECT l.end_id, page.*
  FROM (SELECT greatest((SELECT id FROM looked WHERE n = ${LOOKED_AT_MAX} ORDER BY id DESC LIMIT 1),
                        (SELECT run_id FROM running WHERE n = ${LOOKED_AT_MAX})) AS end_id) l
  LEFT JOIN LATERAL (
    SELECT * FROM (
      (SELECT ${RUNNING_COLUMNS}
         FROM running
        WHERE (l.end_id IS NULL OR run_id >= l.end_id)${inTime}${ofSchedule}${ofTag}
        ORDER BY run_id DESC LIMIT $5)
      UNION ALL
      (SELECT found.*
         FROM (SELECT status, id FROM looked WHERE fits AND (l.end_id IS NULL OR id >= l.end_id) ORDER BY id DESC OFFSET 0) first
        CROSS JOIN LATERAL (
              SELECT ${ENDED_COLUMNS} FROM runs
               WHERE project_no = $1 AND environment = $2 AND status = first.status AND id = first.id${inTime} OFFSET 0) found
        ORDER BY first.id DESC LIMIT $5)
    ) either ORDER BY id DESC LIMIT $5) page ON true
 ORDER BY page.id DESC`;
}

/**
 * The ids of ended runs of one status. The runs of a schedule belong to one environment. Their inner query can use only the
 * index by schedule, and the outer one checks that the runs found belong to this environment.
 */
function idsOf(by: By, { schedule, tag, newest }: { schedule: string; tag: string; newest: string }): string {
  const own = (from: string) =>
    `SELECT id FROM (SELECT id, project_no, environment FROM ${from} AND ${newest}) own WHERE project_no = $1 AND environment = $2`;
  switch (by) {
    case "all":
      return `SELECT id FROM runs WHERE project_no = $1 AND environment = $2 AND status = s.status AND ${newest}`;
    case "schedule":
      return own(`runs WHERE schedule_id = ${schedule} AND status = s.status`);
    case "tag":
      return `SELECT id FROM run_tags
               WHERE project_no = $1 AND environment = $2 AND tag = ${tag} AND status = s.status AND ${newest}`;
    case "schedule_and_tag":
      return own(`run_tags WHERE schedule_id = ${schedule} AND tag = ${tag} AND status = s.status`);
  }
}

type FoundRow = { end_id: string | null } & (RunColumns | { id: null });
