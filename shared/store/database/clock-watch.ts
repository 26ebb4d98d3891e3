import { type Database, epochMs, REAL_NOW } from "./database.ts";

/** Clocks that follow the database's clock differ by less than this. A smaller step is no leap. */
export const LEAP_MS = 10_000;
/** The clock may go unwatched for this long when workers change. How the clock ran in a longer gap is unknown. */
const UNSEEN_MS = 600_000;

/**
 * An SQL condition: Postgres' clock has run evenly for `forMs` (an SQL expression, milliseconds), as far as workers have
 * noted. A statement whose effect cannot be undone asks for it, so that a clock that is or was wrong does not cause the
 * effect. The condition is true while no worker has noted anything, and under a test clock that was put ahead.
 */
export const hasClockRunEvenly = (forMs: string): string => `(now() <> ${REAL_NOW} OR coalesce((
  SELECT steady_since <= ${REAL_NOW} - ${forMs}::float8 * interval '1 ms'
         AND seen_at BETWEEN ${REAL_NOW} - interval '${UNSEEN_MS} ms' AND ${REAL_NOW} + interval '${LEAP_MS} ms'
    FROM clock_watch), true))`;

/** Instants by the database's clock, in milliseconds since 1970. */
export interface ClockNote {
  now: number;
  /** The start of the clock's present run without a leap; -Infinity if no leap is known. */
  steadySince: number;
}

/**
 * Notes the database's time for the next caller: a process cannot know how the clock ran before the process began. The
 * present run without a leap began with the last leap that this caller (`leaptAt`) or one before it has seen. It begins
 * now if Postgres' clock is further from the last note of any caller than it can have run. Postgres reads its own clock,
 * so a caller that was frozen while the clock leapt takes no note back.
 */
export async function noteClock(db: Database, leaptAt: number | null): Promise<ClockNote> {
  const values = [leaptAt === null ? null : new Date(leaptAt).toISOString()];
  const [row] = await db.run<{ now: number; steady_since: number }>("note_clock", NOTE, values);
  if (row === undefined) throw new Error("a statement of one row brought none");
  return { now: row.now, steadySince: row.steady_since };
}

const NOTE = `
INSERT INTO clock_watch AS w (seen_at, steady_since) VALUES (${REAL_NOW}, least(${REAL_NOW}, coalesce($1::timestamptz, '-infinity')))
    ON CONFLICT (one) DO UPDATE
   SET seen_at = excluded.seen_at,
       steady_since = CASE WHEN excluded.seen_at BETWEEN w.seen_at - interval '${LEAP_MS} ms' AND w.seen_at + interval '${UNSEEN_MS} ms'
                           THEN least(excluded.seen_at, greatest(w.steady_since, $1::timestamptz)) ELSE excluded.seen_at END
RETURNING ${epochMs("seen_at")} AS now, ${epochMs("steady_since")} AS steady_since`;
