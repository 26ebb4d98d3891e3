import { SAMPLE_MAX } from "../../../domain/bulk.ts";
import { bulkStatusCode } from "../../database/codes.ts";
import { column, type Database } from "../../database/database.ts";
import { type BulkPlace, HAS_TURN, lockedBulk, placeOf, RUNNING, THE_BULK } from "./page.ts";

/** Members of a bulk operation, oldest first. */
export type NewMembers =
  | { kind: "jobs"; jobs: readonly { id: string; region: number }[] }
  /** Milliseconds since 1970. Pages of instants come newest first. */
  | { kind: "instants"; instants: readonly number[] };

/** One page of the counting: from `from` up to `to`, where the next one goes on. */
export interface CountedPage {
  /** Null for the first page. */
  from: string | null;
  /** Null if no page follows. */
  to: string | null;
  members: NewMembers;
  /** The oldest members of the page, as the API shows them. */
  sample: readonly string[];
}

/**
 * Writes a page of members and moves on to the next in one statement. It is compare-and-set on the place of the counting: if
 * two workers ask, or one asks twice, the page is written once. After the last page a dry run is over, and any other operation
 * runs or waits for its turn. A dry run writes no members. False if the counting stands elsewhere or has ended, or the shard
 * has another owner.
 */
export async function countMembers(
  db: Database,
  bulk: BulkPlace,
  { from, to, members, sample }: CountedPage,
): Promise<boolean> {
  const isOfJobs = members.kind === "jobs";
  const rows = await db.run("count_bulk_members", COUNT, [
    ...placeOf(bulk),
    from,
    to,
    isOfJobs ? members.jobs.length : members.instants.length,
    isOfJobs ? column(members.jobs.map(({ id }) => id)) : null,
    isOfJobs ? column(members.jobs.map(({ region }) => region)) : null,
    isOfJobs ? null : column(members.instants),
    sample,
  ]);
  return rows.length > 0;
}

const COUNTING = bulkStatusCode("counting");
const WAITING = bulkStatusCode("waiting");

const COUNT = `
WITH ${lockedBulk(`b.status = ${COUNTING} AND b.counted_to IS NOT DISTINCT FROM $6::text`)}, member AS (
  INSERT INTO bulk_members (bulk_id, position, job_id, region)
  SELECT b.id, coalesce(m.position, b.counted + m.n), m.job_id, m.region
    FROM bulk b CROSS JOIN unnest($9::uuid[], $10::smallint[], $11::bigint[]) WITH ORDINALITY AS m (job_id, region, position, n)
   WHERE NOT b.dry_run
)
UPDATE bulk_operations b
   SET counted = b.counted + $8::int, counted_to = $7,
       sample = (CASE WHEN $11::bigint[] IS NULL THEN b.sample || $12::text[] ELSE $12 || b.sample END)[:${SAMPLE_MAX}],
       matched = CASE WHEN $7::text IS NULL THEN b.counted + $8 END,
       status = CASE WHEN $7 IS NOT NULL THEN b.status WHEN b.dry_run THEN ${bulkStatusCode("counted")}
                     WHEN ${HAS_TURN} THEN ${RUNNING} ELSE ${WAITING} END,
       started_at = CASE WHEN $7 IS NULL AND NOT b.dry_run AND ${HAS_TURN} THEN now() END,
       ended_at = CASE WHEN $7 IS NULL AND b.dry_run THEN now() END
  FROM bulk
 WHERE ${THE_BULK}
RETURNING 1`;

/** Lets a bulk operation run if its turn has come. False if it has not come, or if the operation does not wait any more. */
export async function startBulk(db: Database, bulk: BulkPlace): Promise<boolean> {
  return (await db.run("start_bulk", START, placeOf(bulk))).length > 0;
}

const START = `
WITH ${lockedBulk(`b.status = ${WAITING}`)}
UPDATE bulk_operations b SET status = ${RUNNING}, started_at = now()
  FROM bulk
 WHERE ${THE_BULK} AND ${HAS_TURN}
RETURNING 1`;
