import type { ProjectNo } from "../../domain/scope.ts";
import { type Column, int4Column } from "../database/columns.ts";
import { type Database, epochMs, isTakenKey } from "../database/database.ts";
import { HAS_QUOTA } from "../queue/month.ts";
import { newJobOfKnownLane, newJobsOfKnownLanes, type WithTags } from "../queue/new-jobs.ts";
import { SEEM_FREE } from "../queue/permits.ts";

/**
 * The short way of createJobs (job-creation.ts). It takes jobs without an Idempotency-Key whose lanes have their rows. The
 * statement creates all of them if every project's month has runs left and no id exists already. Otherwise it creates none, and
 * the long way answers each of them.
 *
 * The quota is read once for each project instead of for each job. Ids are not looked up before they are inserted, and the
 * answer is one row however many jobs there are.
 *
 * `columns` are the first 14 parameters of the long way, and `tags` the jobs' tags, null if no job has any. Answers the
 * instant from which jobs that are due already are owed, in milliseconds since 1970, and how many permits of each project
 * seem free; null if no job was created.
 */
export async function createOrdinaryJobs(
  db: Database,
  columns: readonly unknown[],
  tags: Column,
  projects: ReadonlySet<ProjectNo>,
): Promise<{ now: number; permitsOf: ReadonlyMap<ProjectNo, number | null> } | null> {
  const values = [...columns, int4Column([...projects])];
  const created =
    tags === null
      ? db.run<OrdinaryRow>("create_ordinary_jobs", CREATE_ORDINARY, values)
      : db.run<OrdinaryRow>("create_ordinary_jobs_tagged", CREATE_TAGGED, [...values, tags]);
  const [row] = await created.catch(noneIfIdExists);
  if (!row?.all_free) return null;
  const { now, project_nos: numbers, permits } = row;
  return { now, permitsOf: new Map(numbers.map((projectNo, index) => [projectNo, permits[index] ?? null])) };
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

interface OrdinaryRow {
  all_free: boolean;
  now: number;
  project_nos: number[];
  permits: (number | null)[];
}

function noneIfIdExists(error: unknown): [] {
  if (isTakenKey(error)) return [];
  throw error;
}

// As items of a SELECT, arrays are taken apart in step. As a FROM item, each would first be written to a store of its own.
const creationOf = (withTags: WithTags) => `
WITH quota AS MATERIALIZED (
  SELECT count(*) = cardinality($15::int[]) AS all_free, array_agg(f.project_no) AS project_nos, array_agg(${SEEM_FREE}) AS permits
    FROM flows f WHERE f.project_no = ANY ($15::int[]) AND ${HAS_QUOTA}
), ${newJobsOfKnownLanes(
  `(
  SELECT unnest($1::int[]) AS project_no, unnest($2::smallint[]) AS environment, unnest($3::smallint[]) AS region,
         unnest($4::uuid[]) AS id, unnest($5::text[]) AS target_url, unnest($6::text[]) AS payload,
         unnest($7::timestamptz[]) AS run_at, unnest($8::smallint[]) AS max_attempts, unnest($9::int[]) AS base_seconds,
         unnest($10::int[]) AS cap_seconds, unnest($11::int[]) AS key_no, unnest($12::uuid[]) AS request_id,
         unnest($13::uuid[]) AS schedule_id, unnest($14::text[]) AS trace${withTags.tags ? ", unnest($16::text[])::text[] AS tags" : ""}
) item WHERE (SELECT all_free FROM quota)`,
  withTags,
)}
SELECT all_free, ${epochMs("now()")} AS now, project_nos, permits FROM quota`;

const CREATE_ORDINARY = creationOf({ tags: false });
const CREATE_TAGGED = creationOf({ tags: true });
const CREATE_ONE = newJobOfKnownLane(
  `flow AS MATERIALIZED (
  SELECT f.project_no, ${HAS_QUOTA} AS has_quota, ${SEEM_FREE} AS permits FROM flows f WHERE f.project_no = $1
)`,
  `(
  SELECT f.project_no, $2::smallint AS environment, $3::smallint AS region, $4::uuid AS id, $5::text AS target_url, $6::text AS payload,
         $7::timestamptz AS run_at, $8::smallint AS max_attempts, $9::int AS base_seconds, $10::int AS cap_seconds, $11::int AS key_no,
         $12::uuid AS request_id, $13::uuid AS schedule_id, $14::text AS trace
    FROM flow f WHERE f.has_quota
) item`,
  `${epochMs("due_at")} AS due_at, (SELECT permits FROM flow) AS permits`,
);
