import { firstIdAt, idToUuid, JOB_PREFIX } from "../../domain/ids.ts";
import { bucketEnd, bucketStart } from "../../domain/insights/levels.ts";
import { column, type Database, epochMs, instant } from "../database/database.ts";
import type { Parts } from "./parts.ts";
import type { Progress } from "./progress.ts";

/** A stretch of time within one minute. Instants are milliseconds since 1970; the end is not part of it. */
interface Slice {
  fromAt: number;
  untilAt: number;
}

/** Adds the jobs whose ids are of that time, each to the minute in which it was created. */
export async function addNewJobs(db: Database, parts: Parts, progress: Progress, time: Slice): Promise<void> {
  for (const { key, count } of await countJobs(db, slicesOf(time))) {
    for (const { figures } of parts.ofMinute(key, progress)) figures.created += count;
  }
}

/**
 * Counts the jobs of whole minutes again, and adds the difference to the counts so far. A job's id is made before its row is stored, so
 * the row may come after its time was counted.
 */
export async function recountJobs(
  db: Database,
  parts: Parts,
  progress: Progress,
  { fromAt, untilAt }: Slice,
): Promise<void> {
  if (fromAt >= untilAt) return;
  const counted = await db.run<CountedRow>("find_counted_jobs", FIND_COUNTED, [
    new Date(fromAt).toISOString(),
    new Date(untilAt).toISOString(),
  ]);
  const lacking = counted.map((row) => ({ key: keyOf(row), count: -row.count }));
  for (const { key, count } of [...(await countJobs(db, slicesOf({ fromAt, untilAt }))), ...lacking]) {
    for (const { figures } of parts.ofMinute(key, progress)) figures.created += count;
  }
}

async function countJobs(db: Database, slices: readonly Slice[]) {
  if (slices.length === 0) return [];
  const firstUuidAt = (at: number) => idToUuid(firstIdAt(JOB_PREFIX, at));
  const rows = await db.run<CountedRow>("count_new_jobs", COUNT_NEW_JOBS, [
    column(slices.map(({ fromAt }) => instant(bucketStart(0, fromAt)))),
    column(slices.map(({ fromAt }) => firstUuidAt(fromAt))),
    column(slices.map(({ untilAt }) => firstUuidAt(untilAt))),
  ]);
  return rows.map((row) => ({ key: keyOf(row), count: row.count }));
}

/** Reads one range of the index of jobs for each lane and slice. */
const COUNT_NEW_JOBS = `
SELECT l.project_no, l.environment, l.region, ${epochMs("s.minute")} AS at, j.count::float8 AS count
  FROM unnest($1::timestamptz[], $2::uuid[], $3::uuid[]) AS s (minute, first, next)
 CROSS JOIN lanes l
 CROSS JOIN LATERAL (
       SELECT count(*) FROM jobs j
        WHERE j.project_no = l.project_no AND j.environment = l.environment AND j.region = l.region AND j.id >= s.first AND j.id < s.next) j
 WHERE j.count > 0`;

const FIND_COUNTED = `
SELECT l.project_no, l.environment, l.region, ${epochMs("i.at")} AS at, i.count
  FROM lanes l
 CROSS JOIN LATERAL (
       SELECT i.at, sum(i.created)::float8 AS count FROM insights i
        WHERE i.project_no = l.project_no AND i.environment = l.environment AND i.level = 0 AND i.region = l.region
          AND i.at >= $1::timestamptz AND i.at < $2::timestamptz
        GROUP BY i.at) i
 WHERE i.count <> 0`;

interface CountedRow {
  project_no: number;
  environment: number;
  region: number;
  at: number;
  count: number;
}

const keyOf = ({ project_no: projectNo, environment, region, at }: CountedRow) => ({
  projectNo,
  environment,
  region,
  at,
});

/** The time, cut at the full minutes. */
function slicesOf({ fromAt, untilAt }: Slice): Slice[] {
  const slices: Slice[] = [];
  for (let at = fromAt; at < untilAt; ) {
    const endAt = Math.min(bucketEnd(0, bucketStart(0, at)), untilAt);
    slices.push({ fromAt: at, untilAt: endAt });
    at = endAt;
  }
  return slices;
}
