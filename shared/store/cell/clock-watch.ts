import type { Database } from "../database/database.ts";

/** Clocks that follow the database's differ by less than this, and what runs on within it is no leap. */
export const LEAP_MS = 10_000;
/** For so long nobody looks at the clock when workers change. After more than that nobody knows how it went on. */
const UNSEEN_MS = 600_000;

/**
 * Notes how late it is, for whoever looks next: another process cannot know what went on before it began. Answers since when
 * the clock has run as clocks do, which is from the leap on that the caller has seen since its last note, or that lies
 * between the last look of all and this one. -Infinity if none is known. Instants are milliseconds since 1970 by the database's clock.
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
