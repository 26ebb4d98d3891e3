import type { BulkAction, BulkFilter, BulkStatus } from "../../../domain/bulk.ts";
import { BULK_PREFIX, uuidToId } from "../../../domain/ids.ts";
import type { Plan } from "../../../domain/plan.ts";
import type { Scope } from "../../../domain/scope.ts";
import { bulkActionOf, bulkStatusCode, bulkStatusOf, environmentOf } from "../../database/codes.ts";
import { column, type Database } from "../../database/database.ts";
import { RUNNING } from "./page.ts";

/** A bulk operation for which something is to be done now. */
export interface OpenBulk extends Scope {
  id: string;
  shard: number;
  action: BulkAction;
  filter: BulkFilter;
  status: Exclude<BulkStatus, "counted" | "done" | "aborted">;
  perSecond: number;
  /** The place that the counting has reached; null at its beginning. */
  countedTo: string | null;
  /** The project's plan, by which its runs and firings are shown. */
  plan: Plan;
}

/**
 * The bulk operations of these shards of the home region that can go on: in each environment those that are counted, at most
 * OPEN_BULKS_MAX, and the one that runs or is the first to wait.
 */
export async function listOpenBulks(db: Database, shards: readonly number[]): Promise<OpenBulk[]> {
  const rows = await db.run<Row>("list_open_bulks", LIST, [column(shards)]);
  return rows.map((row) => ({
    projectNo: row.project_no,
    environment: environmentOf(row.environment),
    id: uuidToId(BULK_PREFIX, row.id),
    shard: row.shard,
    action: bulkActionOf(row.action),
    filter: row.filter,
    status: bulkStatusOf(row.status) as OpenBulk["status"],
    perSecond: row.per_second,
    countedTo: row.counted_to,
    plan: row.plan,
  }));
}

const COUNTING = bulkStatusCode("counting");

const LIST = `
SELECT b.project_no, b.environment, b.id, b.shard, b.action, b.filter, b.status, b.per_second, b.counted_to, p.plan
  FROM (SELECT o.*, row_number() OVER (PARTITION BY o.project_no, o.environment, o.status = ${COUNTING}
                                       ORDER BY o.status <> ${RUNNING}, o.id) AS place
          FROM unnest($1::smallint[]) AS s (shard)
         CROSS JOIN LATERAL (
               SELECT * FROM bulk_operations WHERE shard = s.shard AND ended_at IS NULL OFFSET 0) o) b
  JOIN projects p ON p.no = b.project_no
 WHERE b.status = ${COUNTING} OR b.place = 1
 ORDER BY b.id`;

interface Row {
  project_no: number;
  environment: number;
  id: string;
  shard: number;
  action: number;
  filter: BulkFilter;
  status: number;
  per_second: number;
  counted_to: string | null;
  plan: Plan;
}
