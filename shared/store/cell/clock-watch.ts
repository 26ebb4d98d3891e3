import type { Database } from "../database/database.ts";

/** Clocks that follow the database's clock differ by less than this. A smaller step is no leap. */
export const LEAP_MS = 10_000;
/** The clock may go unwatched for this long when workers change. How the clock ran in a longer gap is unknown. */
const UNSEEN_MS = 600_000;

/**
 * Notes the clock's time for the next caller: a process cannot know how the clock ran before the process began. Answers
 * the start of the clock's present run without a leap: the leap that the caller has seen after its last note
 * (`leaptAt`), or this call if a leap lies between the last note of any caller and this one, or -Infinity if no leap is
 * known. Instants are milliseconds since 1970 by the database's clock.
 */
export async function noteClock(
  db: Database,
  { now, leaptAt }: { now: number; leaptAt: number | null },
): Promise<number> {
  const [row] = await db.run<{ steady_since: number }>("note_clock", NOTE, [
    new Date(now).toISOString(),
    leaptAt === null ? null : new Date(leaptAt).toISOString(),
  ]);
  if (row === undefined) throw new Error("a statement of one row brought none");
  return row.steady_since;
}

const NOTE = `
INSERT INTO clock_watch AS w (seen_at, steady_since) VALUES ($1, coalesce($2::timestamptz, '-infinity'))
    ON CONFLICT (one) DO UPDATE
   SET seen_at = excluded.seen_at,
       steady_since = CASE WHEN $2 IS NOT NULL THEN $2::timestamptz
                           WHEN excluded.seen_at BETWEEN w.seen_at - interval '${LEAP_MS} ms' AND w.seen_at + interval '${UNSEEN_MS} ms'
                           THEN w.steady_since ELSE excluded.seen_at END
RETURNING (extract(epoch FROM steady_since) * 1000)::float8 AS steady_since`;
