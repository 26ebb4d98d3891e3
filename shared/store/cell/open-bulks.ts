import { sql } from "drizzle-orm";
import type { BulkAction, BulkStatus } from "../../domain/bulk.ts";
import { BULK_PREFIX, idToUuid, PROJECT_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { Environment } from "../../domain/scope.ts";
import { bulkActionOf, bulkStatusCode, bulkStatusOf, environmentOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { type OperatorCause, recordChange } from "../resources/audit.ts";

/** Bulk operations as operators see them, over all projects. */

export interface UnfinishedBulk {
  id: string;
  projectId: string;
  environment: Environment;
  action: BulkAction;
  status: BulkStatus;
  perSecond: number;
  matched: number | null;
  /** Members judged so far. */
  judged: number;
}

/** The bulk operations of the cell that are not over, the oldest first and at most `limit`. */
export async function listUnfinishedBulks(db: Database, limit: number): Promise<UnfinishedBulk[]> {
  const { rows } = await db.drizzle.execute<Row>(sql`
    SELECT b.id, p.id AS project_id, b.environment, b.action, b.status, b.per_second, b.matched::float8 AS matched,
           (b.done + b.skipped + b.failed)::float8 AS judged
      FROM bulk_operations b JOIN projects p ON p.no = b.project_no
     WHERE b.ended_at IS NULL ORDER BY b.id LIMIT ${limit}`);
  return rows.map((row) => ({
    id: uuidToId(BULK_PREFIX, row.id),
    projectId: uuidToId(PROJECT_PREFIX, row.project_id),
    environment: environmentOf(row.environment),
    action: bulkActionOf(row.action),
    status: bulkStatusOf(row.status),
    perSecond: row.per_second,
    matched: row.matched,
    judged: row.judged,
  }));
}

interface Row extends Record<string, unknown> {
  id: string;
  project_id: string;
  environment: number;
  action: number;
  status: number;
  per_second: number;
  matched: number | null;
  judged: number;
}

/** Ends a bulk operation, as its customer can. False if no unfinished operation has this id. */
export function abortAnyBulk(db: Database, id: string, cause: OperatorCause): Promise<boolean> {
  return db.transact(async (tx) => {
    const { rows } = await tx.drizzle.execute<{ project_no: number; environment: number }>(sql`
      UPDATE bulk_operations SET status = ${bulkStatusCode("aborted")}, ended_at = now(), leaves_members = NOT dry_run
       WHERE id = ${idToUuid(id)} AND ended_at IS NULL
      RETURNING project_no, environment`);
    const [row] = rows;
    if (row === undefined) return false;
    const { project_no: projectNo, environment } = row;
    const whose = { projectNo, environment: environmentOf(environment) };
    await recordChange(tx.drizzle, cause, { action: "bulk.abort", ...whose, subject: id });
    return true;
  });
}
