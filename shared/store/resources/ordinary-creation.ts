import type { ProjectNo } from "../../domain/scope.ts";
import { type Column, int4Column } from "../database/columns.ts";
import { type Database, epochMs, isTakenKey } from "../database/database.ts";
import { HAS_QUOTA } from "../queue/month.ts";
import { newJobOfKnownLane, newJobsOfKnownLanes, type WithTags } from "../queue/new-jobs.ts";
import { FREE_FOR_ANY } from "../queue/permits.ts";

/**
 * The short way of createJobs (job-creation.ts). It takes jobs that have no Idempotency-Key, no flow key and no schedule, and
 * whose lanes have their rows. The statement creates all of them if every project's month has runs left and no id exists
 * already. Otherwise it creates none, and the long way answers each of them.
 *
 * The quota is read once for each project instead of for each job. Ids are not looked up before they are inserted, and the
 * answer is one row for each project. Uniform jobs (areUniform in job-creation.ts), as the jobs of one client mostly are, have a
 * statement of their own. It takes what they have in common as scalars, which cost less than arrays.
 *
 * `columns` are the first 13 parameters: those of the long way, or with scalars if `uniform` is true. `tags` are the jobs' tags,
 * null if no job has any. Answers the instant from which jobs that are due already are owed, in milliseconds since 1970, and how
 * many permits of each project seem free; null if no job was created.
 */
export async function createOrdinaryJobs(
  db: Database,
  columns: readonly unknown[],
  tags: Column,
  projects: ReadonlySet<ProjectNo>,
  uniform: boolean,
): Promise<{ now: number; permitsOf: ReadonlyMap<ProjectNo, number | null> } | null> {
  const values = [...columns, int4Column([...projects]), ...(tags === null ? [] : [tags])];
  const name = `create_${uniform ? "uniform" : "ordinary"}_jobs${tags === null ? "" : "_tagged"}` as const;
  const rows = await db.run<OrdinaryRow>(name, CREATE[name], values).catch(noneIfIdExists);
  const [first] = rows;
  if (first === undefined || rows.length < projects.size) return null;
  return { now: first.now, permitsOf: new Map(rows.map((row) => [row.project_no, row.permits])) };
}

/**
 * The same for one job without tags, the most frequent statement while few clients ask at once. Its parameters are no arrays, and
 * the statement has half as many parts to start. `values` have the order of the long way's columns. Answers when the job's
 * attempt is due, in milliseconds since 1970, and how many permits of its project seem free; null if the job was not created.
 */
export async function createOrdinaryJob(
  db: Database,
  values: readonly unknown[],
): Promise<{ dueAt: number; permits: number | null } | null> {
  const [row] = await db
    .run<{ due_at: number; permits: number | null }>("create_ordinary_job", CREATE_ONE, [...values])
    .catch(noneIfIdExists);
  return row === undefined ? null : { dueAt: row.due_at, permits: row.permits };
}

/** A project whose month has runs left. */
interface OrdinaryRow {
  project_no: ProjectNo;
  permits: number | null;
  now: number;
}

function noneIfIdExists(error: unknown): [] {
  if (isTakenKey(error)) return [];
  throw error;
}

// As items of a SELECT, arrays are taken apart in step. As a FROM item, each would first be written to a store of its own.
const creationOf = (withTags: WithTags, uniform: boolean) => {
  const common = (place: number, type: string) =>
    uniform ? `$${place}::${type}` : `unnest($${place}::${type}[])`;
  return `
WITH quota AS MATERIALIZED (
  SELECT f.project_no, ${FREE_FOR_ANY} AS permits FROM flows f WHERE f.project_no = ANY ($14::int[]) AND ${HAS_QUOTA}
), ${newJobsOfKnownLanes(
    `(
  SELECT ${common(1, "int")} AS project_no, ${common(2, "smallint")} AS environment, ${common(3, "smallint")} AS region,
         unnest($4::uuid[]) AS id, unnest($5::text[]) AS target_url, unnest($6::text[]) AS payload,
         unnest($7::timestamptz[]) AS run_at, ${common(8, "smallint")} AS max_attempts, ${common(9, "int")} AS base_seconds,
         ${common(10, "int")} AS cap_seconds, ${common(11, "int")} AS key_no, unnest($12::uuid[]) AS request_id,
         unnest($13::text[]) AS trace${withTags.tags ? ", unnest($15::text[])::text[] AS tags" : ""}
) item WHERE (SELECT count(*) = cardinality($14::int[]) FROM quota)`,
    withTags,
  )}
SELECT project_no, permits, ${epochMs("now()")} AS now FROM quota`;
};

const [PLAIN, TAGGED] = [{ tags: false }, { tags: true }];
const CREATE = {
  create_ordinary_jobs: creationOf(PLAIN, false),
  create_ordinary_jobs_tagged: creationOf(TAGGED, false),
  create_uniform_jobs: creationOf(PLAIN, true),
  create_uniform_jobs_tagged: creationOf(TAGGED, true),
};
const CREATE_ONE = newJobOfKnownLane(
  `flow AS MATERIALIZED (
  SELECT f.project_no, ${HAS_QUOTA} AS has_quota, ${FREE_FOR_ANY} AS permits FROM flows f WHERE f.project_no = $1
)`,
  `(
  SELECT f.project_no, $2::smallint AS environment, $3::smallint AS region, $4::uuid AS id, $5::text AS target_url, $6::text AS payload,
         $7::timestamptz AS run_at, $8::smallint AS max_attempts, $9::int AS base_seconds, $10::int AS cap_seconds, $11::int AS key_no,
         $12::uuid AS request_id, $13::text AS trace
    FROM flow f WHERE f.has_quota
) item`,
  `${epochMs("due_at")} AS due_at, (SELECT permits FROM flow) AS permits`,
);
