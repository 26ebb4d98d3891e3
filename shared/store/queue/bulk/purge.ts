import { BULK_KEPT_DAYS } from "../../../domain/bulk.ts";
import type { Database } from "../../database/database.ts";

/** How many aborted operations are looked at together. */
const ABORTED_MAX = 100;

/** Removes up to `limit` members of aborted operations, which are not judged any more; answers how many. */
export async function purgeBulkMembers(db: Database, limit: number): Promise<number> {
  return (await db.run("purge_bulk_members", PURGE_MEMBERS, [limit])).length;
}

const PURGE_MEMBERS = `
WITH aborted AS MATERIALIZED (
  SELECT id FROM bulk_operations WHERE leaves_members ORDER BY id LIMIT ${ABORTED_MAX} FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM bulk_members
   WHERE ctid = ANY (ARRAY (SELECT m.ctid FROM aborted a JOIN bulk_members m ON m.bulk_id = a.id LIMIT $1))
  RETURNING 1
), emptied AS (
  UPDATE bulk_operations b SET leaves_members = false
    FROM aborted a
   WHERE b.id = a.id AND b.leaves_members AND NOT EXISTS (SELECT FROM bulk_members m WHERE m.bulk_id = a.id)
)
TABLE gone`;

/** Removes up to `limit` operations that are not shown any more at `now` (milliseconds since 1970); answers how many. */
export async function purgeBulkOperations(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_bulk_operations", PURGE_OPERATIONS, [limit, new Date(now).toISOString()]))
    .length;
}

const PURGE_OPERATIONS = `
DELETE FROM bulk_operations
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM bulk_operations
                           WHERE ended_at < $2::timestamptz - interval '${BULK_KEPT_DAYS} days' AND NOT leaves_members
                           ORDER BY ended_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;
