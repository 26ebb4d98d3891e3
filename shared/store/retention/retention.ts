import { sql } from "drizzle-orm";
import { firstIdAt, idTimeMs, idToUuid, PROJECT_PREFIX, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import { PLANS, type Plan, retainedSince } from "../../domain/plan.ts";
import { retentionClassOf } from "../database/codes.ts";
import { askTime, type Database, isLockedOut, type Transaction } from "../database/database.ts";

/**
 * The tables of ended runs. Each plan has one table for each stretch of time, by the times in the runs' ids, and a
 * DEFAULT for the runs that fall into none. Retention drops whole tables. A change of the tables gives way to
 * settlements after LOCK_TIMEOUT, so settlements wait for it no longer than that.
 */

const DAY_MS = 86_400_000;
/** The days in a table, chosen so that a list of runs reads few tables and few runs are kept beyond their time. */
const PARTITION_DAYS: Readonly<Record<Plan, number>> = { hobby: 1, pro: 5, scale: 15, enterprise: 60 };
/** The number of tables ready beyond the present one, so that the duty may fail for a while without harm. */
const PARTITIONS_AHEAD = 2;
/** Expired runs are kept for this long, for an upgrade that comes late. */
const GRACE_MS = DAY_MS;
/**
 * A new table takes over at most this many runs from DEFAULT, which is locked meanwhile. More runs than that stay in
 * DEFAULT.
 */
const ADOPTED_RUNS_MAX = 10_000;
const LOCK_TIMEOUT = "500ms";
/** The lock of the one transaction at a time that changes where runs are stored. */
export const RETENTION_LOCK = 0x72756e73;
/** The table in which a migration left the runs from before retention classes. */
const UNSORTED = "runs_unsorted";

/** The pool of a process, or the one connection of a migration. */
type Connection = Pick<Database, "transact">;
type Builder = Transaction["drizzle"];

/** The outcome of changes to some tables. A table that was in use is left to the next call. */
export interface Changed {
  names: string[];
  gaveWayCount: number;
}

/**
 * Makes the tables for the runs of now and of the near future, up to `tablesMax`. With `leavesGaps` a stretch of the past gets
 * no table if it has no run in DEFAULT: a test clock passes by months in seconds.
 */
export function createRunPartitions(
  db: Connection,
  now: number,
  tablesMax = Number.POSITIVE_INFINITY,
  leavesGaps = false,
): Promise<Changed> {
  const makes = PLANS.map((plan) => (tx: Builder) => createNextPartition(tx, plan, now, leavesGaps));
  return changeInTurns(db, makes, tablesMax);
}

async function createNextPartition(
  tx: Builder,
  plan: Plan,
  now: number,
  leavesGaps: boolean,
): Promise<string | null> {
  const widthMs = PARTITION_DAYS[plan] * DAY_MS;
  const endOf = (fromAt: number) => (Math.floor(fromAt / widthMs) + 1) * widthMs;
  const last = (await listPartitions(tx, plan)).at(-1);
  let fromAt = last?.untilAt ?? endOf(await findFirstInstant(tx, plan, now)) - widthMs;
  const presentAt = endOf(now) - widthMs;
  if (leavesGaps && fromAt < presentAt) {
    const firstAt = await findFirstInDefault(tx, plan, fromAt);
    fromAt = Math.max(fromAt, Math.min(presentAt, endOf(firstAt) - widthMs));
  }
  while (await isCrowded(tx, plan, fromAt, endOf(fromAt))) fromAt = endOf(fromAt);
  if (fromAt > now + PARTITIONS_AHEAD * widthMs) return null;

  const date = new Date(fromAt).toISOString().slice(0, 10);
  const name = `${tableOf(plan)}_${date.replaceAll("-", "")}`;
  const [made, all, rest] = [name, tableOf(plan), defaultOf(plan)].map((each) => sql.identifier(each));
  // The table is attached once it is complete: making it as a partition would keep all settlements of the class waiting.
  await tx.execute(sql`CREATE TABLE ${made} (LIKE ${all} INCLUDING DEFAULTS INCLUDING INDEXES)`);
  await tx.execute(sql`LOCK TABLE ${rest} IN ACCESS EXCLUSIVE MODE`);
  await tx.execute(sql`
    WITH adopted AS (DELETE FROM ${rest} WHERE ${isWithin(fromAt, endOf(fromAt))} RETURNING *)
    INSERT INTO ${made} SELECT * FROM adopted`);
  const [from, to] = [fromAt, endOf(fromAt)].map((at) => sql.raw(`('${firstUuidAt(at)}')`));
  await tx.execute(sql`ALTER TABLE ${all} ATTACH PARTITION ${made} FOR VALUES FROM ${from} TO ${to}`);
  return name;
}

/** The earliest time at which a run that a plan has to keep can have begun, for a plan without tables. */
async function findFirstInstant(tx: Builder, plan: Plan, now: number): Promise<number> {
  const { rows } = await tx.execute<{ id: string }>(sql`SELECT id FROM projects ORDER BY id LIMIT 1`);
  const firstProjectAt = rows[0] === undefined ? now : idTimeMs(uuidToId(PROJECT_PREFIX, rows[0].id));
  return Math.min(Math.max(firstProjectAt, retainedSince(plan, now)), now);
}

/** When the first run in a plan's DEFAULT from `fromAt` on began; Infinity if there is none. */
async function findFirstInDefault(tx: Builder, plan: Plan, fromAt: number): Promise<number> {
  const { rows } = await tx.execute<{ id: string }>(
    sql`SELECT id FROM ${sql.identifier(defaultOf(plan))} WHERE id >= ${firstUuidAt(fromAt)} ORDER BY id LIMIT 1`,
  );
  return rows[0] === undefined ? Number.POSITIVE_INFINITY : idTimeMs(uuidToId(RUN_PREFIX, rows[0].id));
}

async function isCrowded(tx: Builder, plan: Plan, fromAt: number, untilAt: number): Promise<boolean> {
  const { rows } = await tx.execute(
    sql`SELECT FROM ${sql.identifier(defaultOf(plan))} WHERE ${isWithin(fromAt, untilAt)} OFFSET ${ADOPTED_RUNS_MAX} LIMIT 1`,
  );
  return rows.length > 0;
}

/**
 * Drops the tables whose every run is older than its plan's retention and the grace, up to `tablesMax`. `onRuns`, if given, is
 * told how many runs go with each table, which takes as long as counting them.
 */
export function dropExpiredPartitions(
  db: Connection,
  now: number,
  tablesMax = Number.POSITIVE_INFINITY,
  onRuns?: (count: number) => void,
): Promise<Changed> {
  const drops = PLANS.map((plan) => (tx: Builder) => dropFirstPartition(tx, plan, now, onRuns));
  return changeInTurns(db, [...drops, dropUnsorted], tablesMax);
}

/**
 * A table with runs of a project that is noted to be moved is left until they have moved. A transaction that notes a
 * project meanwhile waits, so an upgrade is either seen here or comes after the drop. That transaction locks the
 * project's flow after run_moves, and settlements lock the flow before the tables of runs. So run_moves is locked first.
 */
async function dropFirstPartition(
  tx: Builder,
  plan: Plan,
  now: number,
  onRuns?: (count: number) => void,
): Promise<string | null> {
  const [first] = await listPartitions(tx, plan);
  if (first === undefined || first.untilAt > expiredAt(plan, now)) return null;
  await tx.execute(sql`LOCK TABLE run_moves IN SHARE MODE`);
  await tx.execute(sql`LOCK TABLE ONLY ${sql.identifier(tableOf(plan))} IN ACCESS EXCLUSIVE MODE`);
  const { rows } = await tx.execute(sql`
    SELECT FROM (${movingOutOf(plan)}) m
     CROSS JOIN LATERAL (SELECT FROM ${sql.identifier(first.name)} r WHERE r.project_no = m.project_no LIMIT 1) kept
     LIMIT 1`);
  if (rows.length > 0) return null;
  const table = sql.identifier(first.name);
  const counted = onRuns && (await tx.execute<{ count: number }>(sql`SELECT count(*)::int FROM ${table}`));
  await tx.execute(sql`DROP TABLE ${table}`);
  onRuns?.(counted?.rows[0]?.count ?? 0);
  return first.name;
}

/** Drops UNSORTED once it is empty. No run is ever written into this table, so it stays empty. */
async function dropUnsorted(tx: Builder): Promise<string | null> {
  const { rows: found } = await tx.execute(sql`SELECT WHERE to_regclass(${UNSORTED}) IS NOT NULL`);
  if (found.length === 0) return null;
  const { rows: left } = await tx.execute(sql`SELECT FROM ${sql.identifier(UNSORTED)} LIMIT 1`);
  if (left.length > 0) return null;
  await tx.execute(sql`DROP TABLE ${sql.identifier(UNSORTED)}`);
  return UNSORTED;
}

/** Deletes up to `limit` expired runs of each plan from its DEFAULT table. Answers how many. */
export async function purgeDefaults(db: Database, now: number, limit: number): Promise<number> {
  let purgedCount = 0;
  for (const plan of PLANS) {
    const rest = sql.identifier(defaultOf(plan));
    const { rows } = await db.drizzle.execute(sql`
      DELETE FROM ${rest} WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM ${rest} r
         WHERE id < ${firstUuidAt(expiredAt(plan, now))}
           AND NOT EXISTS (SELECT FROM (${movingOutOf(plan)}) m WHERE m.project_no = r.project_no)
         LIMIT ${limit}))
      RETURNING 1`);
    purgedCount += rows.length;
  }
  return purgedCount;
}

/** The number of seconds from now for which every plan has tables for its runs. */
export async function findRunTablesReadySeconds(db: Database): Promise<number> {
  const now = await askTime(db);
  let seconds = Number.POSITIVE_INFINITY;
  for (const plan of PLANS) {
    const last = (await listPartitions(db.drizzle, plan)).at(-1);
    seconds = Math.min(seconds, last === undefined ? 0 : (last.untilAt - now) / 1_000);
  }
  return Math.max(0, seconds);
}

/** The projects whose runs are to move from a plan's tables to another plan's. */
const movingOutOf = (plan: Plan) => sql`
  SELECT project_no FROM run_moves JOIN flows f USING (project_no) WHERE f.retention_class > ${retentionClassOf(plan)}`;

interface Partition {
  name: string;
  /** Milliseconds since 1970: the beginning of the next table. */
  untilAt: number;
}

/** The tables of a plan except DEFAULT, the oldest first. */
async function listPartitions(tx: Builder, plan: Plan): Promise<Partition[]> {
  const { rows } = await tx.execute<{ name: string; until: string }>(sql`
    SELECT c.relname AS name, b.bounds[1] AS until
      FROM pg_inherits i
      JOIN pg_class c ON c.oid = i.inhrelid
     CROSS JOIN LATERAL regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO [(]''(.*)''[)]') AS b (bounds)
     WHERE i.inhparent = to_regclass(${tableOf(plan)}) AND b.bounds IS NOT NULL
     ORDER BY 2`);
  return rows.map(({ name, until }) => ({ name, untilAt: idTimeMs(uuidToId(RUN_PREFIX, until)) }));
}

/**
 * Repeats each change, each time in a transaction of its own, until it answers null or a maximum is reached. Changes
 * nothing while another process changes tables.
 */
async function changeInTurns(
  db: Connection,
  changes: readonly ((tx: Builder) => Promise<string | null>)[],
  changesMax = Number.POSITIVE_INFINITY,
): Promise<Changed> {
  const changed: Changed = { names: [], gaveWayCount: 0 };
  const take = (change: (typeof changes)[number]) =>
    db.transact(async ({ drizzle: tx }) => {
      const { rows } = await tx.execute<{ mine: boolean }>(
        sql`SELECT pg_try_advisory_xact_lock(${RETENTION_LOCK}) AS mine, set_config('lock_timeout', ${LOCK_TIMEOUT}, true)`,
      );
      return rows[0]?.mine ? change(tx) : null;
    });
  for (const change of changes) {
    try {
      while (changed.names.length < changesMax) {
        const name = await take(change);
        if (name === null) break;
        changed.names.push(name);
      }
    } catch (error) {
      if (!isLockedOut(error)) throw error;
      changed.gaveWayCount++;
    }
  }
  return changed;
}

const tableOf = (plan: Plan) => `runs_${plan}`;
const defaultOf = (plan: Plan) => `${tableOf(plan)}_default`;
const expiredAt = (plan: Plan, now: number) => retainedSince(plan, now) - GRACE_MS;
const firstUuidAt = (at: number) => idToUuid(firstIdAt(RUN_PREFIX, at));
const isWithin = (fromAt: number, untilAt: number) =>
  sql`id >= ${firstUuidAt(fromAt)} AND id < ${firstUuidAt(untilAt)}`;
