import { keptSince, LEVELS } from "../../domain/insights/levels.ts";
import type { Database } from "../database/database.ts";

/**
 * Removes up to `limit` rows of each level that no period reaches at `now` (milliseconds since 1970) any more, once the next level has
 * them. Answers how many in the level of which most were removed.
 */
export async function purgeInsights(db: Database, limit: number, now: number): Promise<number> {
  let mostRemoved = 0;
  for (let level = 0; level < LEVELS.length; level++) {
    const before = new Date(keptSince(level, now)).toISOString();
    const removed = await db.run("purge_insights", PURGE, [level, before, limit]);
    mostRemoved = Math.max(mostRemoved, removed.length);
  }
  return mostRemoved;
}

const PURGE = `
DELETE FROM insights
 WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM insights
        WHERE level = $1 AND at < least($2::timestamptz, (SELECT coalesce(closed_until[$1 + 1], 'infinity') FROM insight_progress))
        ORDER BY at LIMIT $3 FOR UPDATE SKIP LOCKED))
RETURNING 1`;
