import pg from "pg";
import { HOME_REGION } from "../../domain/plan.ts";
import { regionCode } from "../database/codes.ts";
import { type Database, epochMs, StoreUnavailable } from "../database/database.ts";
import { OWED, type Owed } from "../queue/sweep.ts";

/**
 * The clock of a test clock's database. The one row of `test_clock.ahead` says how far it is ahead of the machine's clock.
 * Functions that stand before the catalogue's in the search path bring it into every statement, `DEFAULT now()` included. They
 * leave `transaction_timestamp()` alone, the time of leases and heartbeats (REAL_NOW).
 */

/**
 * `ready`: the database has a test clock, from now on or since its beginning. `none`: it has no test clock, and none is wanted.
 * `ordinary`: a test clock is wanted, but the database was used without one. `marked`: no test clock is wanted, but the database
 * has one, so its rows may lie in the future.
 */
export type TestClockState = "ready" | "none" | "ordinary" | "marked";

/** Gives an empty database a test clock, if one `isWanted`. Must be called before `migrate` and before any other connection. */
export async function prepareTestClock(url: string, isWanted: boolean): Promise<TestClockState> {
  const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 10_000 });
  // A connection that is lost fails its statement too, and an error event without a listener would end the process.
  client.on("error", () => undefined);
  await client.connect();
  try {
    const { rows } = await client.query<{ has_clock: boolean; is_used: boolean }>(
      `SELECT ${HAS_CLOCK} AS has_clock, to_regnamespace('drizzle') IS NOT NULL AS is_used`,
    );
    const { has_clock: hasClock = false, is_used: isUsed = false } = rows[0] ?? {};
    if (hasClock) return isWanted ? "ready" : "marked";
    if (!isWanted) return "none";
    if (isUsed) return "ordinary";
    await client.query(INSTALL_TEST_CLOCK);
    return "ready";
  } finally {
    await client.end();
  }
}

/** Whether the database belongs to a test clock. */
export async function hasTestClock(db: Database): Promise<boolean> {
  const [row] = await db.run<{ has_clock: boolean }>(
    "has_test_clock",
    `SELECT ${HAS_CLOCK} AS has_clock`,
    [],
  );
  return row?.has_clock ?? false;
}

const HAS_CLOCK = "to_regnamespace('test_clock') IS NOT NULL";

/**
 * Installs the test clock for all sessions that begin later. The statements come in one message, so they are one transaction.
 * New tables go into the first schema of the search path, which stays `public`.
 */
export const INSTALL_TEST_CLOCK = `
CREATE SCHEMA test_clock;
CREATE TABLE test_clock.ahead (one boolean PRIMARY KEY DEFAULT true CHECK (one), us bigint NOT NULL);
INSERT INTO test_clock.ahead (us) VALUES (0);
CREATE FUNCTION test_clock.now() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE COST 1 AS
  $$ SELECT pg_catalog.now() + (SELECT us FROM test_clock.ahead) * interval '1 us' $$;
CREATE FUNCTION test_clock.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE PARALLEL SAFE COST 1 AS
  $$ SELECT pg_catalog.statement_timestamp() + (SELECT us FROM test_clock.ahead) * interval '1 us' $$;
CREATE FUNCTION test_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE COST 1 AS
  $$ SELECT pg_catalog.clock_timestamp() + (SELECT us FROM test_clock.ahead) * interval '1 us' $$;
DO $$ BEGIN
  EXECUTE format('ALTER DATABASE %I SET search_path = public, test_clock, pg_catalog', current_database());
END $$`;

/** The machine's own time, in milliseconds since 1970, as its Postgres has it. */
export async function askRealTime(db: Database): Promise<number> {
  const text = `SELECT ${epochMs("pg_catalog.clock_timestamp()")} AS now`;
  const [row] = await db.run<{ now: number }>("ask_real_time", text, []);
  if (row === undefined) throw new StoreUnavailable("no answer to the question for the time");
  return row.now;
}

/** How far the test clock is ahead of the machine's clock, in microseconds. */
export async function readAhead(db: Database): Promise<number> {
  const [row] = await db.run<{ us: number }>(
    "read_ahead",
    "SELECT us::float8 AS us FROM test_clock.ahead",
    [],
  );
  if (row === undefined) throw new Error("test_clock.ahead has no row");
  return row.us;
}

/**
 * Puts the clock ahead to the instant `at` (milliseconds since 1970), as far as `aheadMax` (microseconds) allows, and never
 * back. Answers how far the clock is ahead now, in microseconds. The service sees the new time only once it is committed.
 */
export async function moveAhead(db: Database, at: number, aheadMax: number): Promise<number> {
  const [row] = await db.run<{ us: number }>("move_ahead", MOVE, [new Date(at).toISOString(), aheadMax]);
  if (row === undefined) throw new Error("test_clock.ahead has no row");
  return row.us;
}

const MOVE = `
UPDATE test_clock.ahead
   SET us = greatest(us, least(ceil(extract(epoch FROM $1::timestamptz - pg_catalog.clock_timestamp()) * 1000000)::bigint, $2::bigint))
RETURNING us::float8 AS us`;

/** The work that the clock would pass by if it were put ahead. */
export interface Outlook {
  /** When the next attempt or firing comes due, in milliseconds since 1970, among those not due yet; Infinity if there is none. */
  nextAt: number;
  /** True if an attempt or a firing is due and has not begun. It may have to wait for a limit. */
  isDue: boolean;
  /** True if an attempt is on the wire, of this process or of a process that is gone. */
  isOnWire: boolean;
  /** True if an attempt is parked until its host has room. */
  isParked: boolean;
}

export async function lookOut(db: Database): Promise<Outlook> {
  const [row] = await db.run<OutlookRow>("look_out", LOOK_OUT, []);
  if (row === undefined) throw new Error("a statement of one row brought none");
  const { next_at: nextAt, is_due: isDue, is_on_wire: isOnWire, is_parked: isParked } = row;
  return { nextAt: nextAt ?? Number.POSITIVE_INFINITY, isDue, isOnWire, isParked };
}

const nextInLane = ({ table }: Owed, condition: string) => `
  SELECT min(o.due_at) AS at
    FROM lanes l
   CROSS JOIN LATERAL (
         SELECT due_at FROM ${table} o
          WHERE o.project_no = l.project_no AND o.region = l.region AND o.environment = l.environment AND o.due_at ${condition}
          ORDER BY o.due_at LIMIT 1) o`;
const nextOfShard = (condition: string) => `
  SELECT min(d.next_run_at) AS at
    FROM shards s
   CROSS JOIN LATERAL (
         SELECT next_run_at FROM schedules WHERE shard = s.shard AND next_run_at ${condition}
          ORDER BY next_run_at LIMIT 1) d
   WHERE s.region = ${regionCode(HOME_REGION)}`;
const nextOfAll = (condition: string) =>
  [...Object.values(OWED).map((owed) => nextInLane(owed, condition)), nextOfShard(condition)].join(
    " UNION ALL ",
  );

const IS_PARKED = "due_at IS NULL AND node_id IS NULL AND parked_host IS NOT NULL";

const LOOK_OUT = `
SELECT ${epochMs(`(SELECT min(at) FROM (${nextOfAll("> now()")}) later)`)} AS next_at,
       (SELECT min(at) FROM (${nextOfAll("<= now()")}) due) IS NOT NULL AS is_due,
       EXISTS (SELECT FROM (SELECT node_id FROM open_jobs WHERE run_id IS NOT NULL OFFSET 0) o WHERE node_id IS NOT NULL)
         OR EXISTS (SELECT FROM open_deliveries WHERE node_id IS NOT NULL) AS is_on_wire,
       EXISTS (SELECT FROM open_jobs WHERE ${IS_PARKED}) OR EXISTS (SELECT FROM open_deliveries WHERE ${IS_PARKED}) AS is_parked`;

interface OutlookRow {
  next_at: number | null;
  is_due: boolean;
  is_on_wire: boolean;
  is_parked: boolean;
}
