import pg from "pg";
import { type Clock, startClock } from "../../shared/platform/clock.ts";
import { INSTALL_TEST_CLOCK } from "../../shared/store/cell/test-clock.ts";

/** A clock that runs at the usual speed and leaps forward when told; the database's clock leaps with it. */
export interface ManualClock extends Clock {
  /** Leaps to that instant, in milliseconds since 1970. It never goes back. */
  leapTo(at: number): Promise<void>;
}

const LEAP_REAL_TIME = `
CREATE FUNCTION test_clock.transaction_timestamp() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT test_clock.now()'`;

/**
 * Replaces the clock of a database. Functions that come before the catalogue's in the search path add the leaps to the
 * time of every statement, in all sessions that begin from now on. With `isReal` the time of leases and of the clock's watch
 * leaps too (REAL_NOW), as when the machine's clock is set.
 */
export async function startManualClock(
  url: string,
  { isReal = false }: { isReal?: boolean } = {},
): Promise<ManualClock> {
  const client = new pg.Client({ connectionString: url });
  // The database is dropped while this client is connected.
  client.on("error", () => undefined);
  await client.connect();
  await client.query(INSTALL_TEST_CLOCK);
  if (isReal) await client.query(LEAP_REAL_TIME);
  const clock = await startClock(async () => {
    const { rows } = await client.query(
      "SELECT (extract(epoch FROM pg_catalog.clock_timestamp()) * 1000)::float8 AS at",
    );
    return rows[0].at;
  });
  let leaptMs = 0;
  const now = () => clock.now() + leaptMs;
  return {
    now,
    async leapTo(at) {
      const leapMs = at - now();
      if (leapMs <= 0) return;
      // The database leaps first: a service ahead of it would be answered that it is early.
      await client.query("UPDATE test_clock.ahead SET us = us + ($1::float8 * 1000)::bigint", [leapMs]);
      leaptMs += leapMs;
    },
    stop() {
      clock.stop();
      client.end().catch(() => undefined);
    },
  };
}
