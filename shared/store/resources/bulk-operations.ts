import {
  type BulkAction,
  type BulkFilter,
  type BulkStatus,
  decideAbort,
  OPEN_BULKS_MAX,
} from "../../domain/bulk.ts";
import { BULK_PREFIX, idToUuid, NEWEST_UUID, uuidToId } from "../../domain/ids.ts";
import type { Scope } from "../../domain/scope.ts";
import {
  bulkActionCode,
  bulkActionOf,
  bulkStatusCode,
  bulkStatusOf,
  environmentCode,
} from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import { auditFrom, changeOf, type KeyCause } from "./audit.ts";
import { type KeyToTake, keepAnswer, keyOf, takeKeyFrom } from "./idempotency.ts";
import { lockProject } from "./lock-project.ts";

/** Bulk operations as clients ask for them and see them. The statements that carry them out are in queue/bulk/. */

/** A bulk operation. Instants are milliseconds since 1970. */
export interface BulkRow {
  id: string;
  action: BulkAction;
  filter: BulkFilter;
  dryRun: boolean;
  status: BulkStatus;
  perSecond: number;
  /** Null until all members are counted. */
  matched: number | null;
  done: number;
  skipped: number;
  failed: number;
  /** The oldest members: ids of jobs, or instants as the API writes them. */
  sample: string[];
  startedAt: number | null;
  endedAt: number | null;
}

/** A bulk operation as a client asks for it. The owner of the project's `shard` in the home region carries it out. */
export type BulkToCreate = Pick<BulkRow, "id" | "action" | "filter" | "dryRun" | "perSecond"> & {
  shard: number;
};

export type CreatedBulk = "created" | "limit_exceeded" | "key_taken";

/** A bulk operation as it is right after its creation. */
export const newBulk = ({ id, action, filter, dryRun, perSecond }: BulkToCreate): BulkRow => ({
  ...{
    id,
    action,
    filter,
    dryRun,
    perSecond,
    status: "counting",
    matched: null,
    done: 0,
    skipped: 0,
    failed: 0,
  },
  ...{ sample: [], startedAt: null, endedAt: null },
});

/**
 * Asks for a bulk operation. Creations of one project wait for each other at the project's row, so that an environment has
 * at most OPEN_BULKS_MAX operations that are not over.
 */
export function createBulk(
  db: Database,
  scope: Scope,
  bulk: BulkToCreate,
  cause: KeyCause,
  key: (KeyToTake & { answer: Buffer }) | null,
): Promise<CreatedBulk> {
  return db.transact(async (tx) => {
    await lockProject(tx, scope.projectNo);
    const { id, action, filter, dryRun, perSecond, shard } = bulk;
    const [row] = await tx.run<{ outcome: CreatedBulk }>("create_bulk", CREATE, [
      ...changeOf(scope, id, cause),
      ...keyOf(key, key?.answer),
      ...[shard, bulkActionCode(action), perSecond, dryRun, JSON.stringify(filter)],
      JSON.stringify({ action, filter, dry_run: dryRun, per_second: perSecond }),
    ]);
    if (row === undefined) throw new Error(`there is no project ${scope.projectNo}`);
    return row.outcome;
  });
}

const CREATE = `
WITH judged AS MATERIALIZED (
  SELECT count(*) < ${OPEN_BULKS_MAX} AS has_room
    FROM (SELECT FROM bulk_operations
           WHERE project_no = $1 AND environment = $2 AND ended_at IS NULL LIMIT ${OPEN_BULKS_MAX}) open
), found AS MATERIALIZED (
  SELECT FROM judged WHERE has_room
), ${takeKeyFrom("found")}, created AS (
  INSERT INTO bulk_operations (project_no, environment, id, shard, action, status, per_second, dry_run, filter)
  SELECT $1, $2, $3, $10, $11, ${bulkStatusCode("counting")}, $12, $13, $14::json FROM made
), ${auditFrom("bulk.create", "made", "$15")}
SELECT CASE WHEN NOT has_room THEN 'limit_exceeded' WHEN EXISTS (SELECT FROM made) THEN 'created' ELSE 'key_taken' END AS outcome
  FROM judged`;

const COLUMNS = `id, action, filter, dry_run, status, per_second, matched::float8 AS matched, done::float8 AS done,
       skipped::float8 AS skipped, failed::float8 AS failed, sample, ${epochMs("started_at")} AS started_at,
       ${epochMs("ended_at")} AS ended_at`;

/** One bulk operation, or null if this environment has none with this id. */
export async function findBulk(
  db: Pick<Database, "run">,
  { projectNo, environment }: Scope,
  id: string,
): Promise<BulkRow | null> {
  const [row] = await db.run<Row>("find_bulk", FIND, [projectNo, environmentCode(environment), idToUuid(id)]);
  return row === undefined ? null : readBulk(row);
}

const FIND = `SELECT ${COLUMNS} FROM bulk_operations WHERE project_no = $1 AND environment = $2 AND id = $3`;

/** A page of an environment's bulk operations, newest first. */
export async function listBulk(
  db: Database,
  { projectNo, environment, beforeId, limit }: Scope & { beforeId: string | null; limit: number },
): Promise<BulkRow[]> {
  const rows = await db.run<Row>("list_bulk", LIST, [
    projectNo,
    environmentCode(environment),
    beforeId === null ? NEWEST_UUID : idToUuid(beforeId),
    limit,
  ]);
  return rows.map(readBulk);
}

const LIST = `
SELECT ${COLUMNS} FROM bulk_operations
 WHERE project_no = $1 AND environment = $2 AND id < $3
 ORDER BY id DESC LIMIT $4`;

/**
 * Ends a bulk operation, and keeps the answer of `answerOf` under `key`. A page of members that is being judged locks the operation's
 * row, so `done` counts all that was done, and no member is judged after the answer. Throws ApiError for an operation that is over.
 */
export function abortBulk(
  db: Database,
  scope: Scope,
  id: string,
  cause: KeyCause,
  key: (KeyToTake & { answerOf: (bulk: BulkRow) => Buffer }) | null,
): Promise<BulkRow | "not_found" | "key_taken"> {
  return db.transact(async (tx) => {
    const values = [scope.projectNo, environmentCode(scope.environment), idToUuid(id)];
    const [row] = await tx.run<Row & { now: number }>("lock_bulk", LOCK, values);
    if (row === undefined) return "not_found";
    const bulk = readBulk(row);
    decideAbort(bulk);
    const aborted: BulkRow = { ...bulk, status: "aborted", endedAt: row.now };
    if (key !== null && !(await keepAnswer(tx, scope, key, key.answerOf(aborted)))) return "key_taken";
    await tx.run("abort_bulk", ABORT, changeOf(scope, id, cause));
    return aborted;
  });
}

const LOCK = `
SELECT ${COLUMNS}, ${epochMs("now()")} AS now FROM bulk_operations
 WHERE project_no = $1 AND environment = $2 AND id = $3 FOR NO KEY UPDATE`;

const ABORT = `
WITH aborted AS (
  UPDATE bulk_operations SET status = ${bulkStatusCode("aborted")}, ended_at = now(), leaves_members = NOT dry_run
   WHERE project_no = $1 AND environment = $2 AND id = $3
  RETURNING id
), ${auditFrom("bulk.abort", "aborted")}
SELECT FROM aborted`;

interface Row {
  id: string;
  action: number;
  filter: BulkFilter;
  dry_run: boolean;
  status: number;
  per_second: number;
  matched: number | null;
  done: number;
  skipped: number;
  failed: number;
  sample: string[];
  started_at: number | null;
  ended_at: number | null;
}

const readBulk = (row: Row): BulkRow => ({
  id: uuidToId(BULK_PREFIX, row.id),
  action: bulkActionOf(row.action),
  filter: row.filter,
  dryRun: row.dry_run,
  status: bulkStatusOf(row.status),
  perSecond: row.per_second,
  matched: row.matched,
  done: row.done,
  skipped: row.skipped,
  failed: row.failed,
  sample: row.sample,
  startedAt: row.started_at,
  endedAt: row.ended_at,
});
