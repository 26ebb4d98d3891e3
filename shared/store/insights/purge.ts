import { keptSince, LEVELS } from "../../domain/insights/levels.ts";
import { column, type Database, instant } from "../database/database.ts";

/**
 * Removes up to `limit` rows that no period reaches at `now` (milliseconds since 1970) any more, once the next level has them. Answers
 * how many.
 */
export async function purgeInsights(db: Database, limit: number, now: number): Promise<number> {
  const levels = [...LEVELS.keys()];
  const removed = await db.run("purge_insights", PURGE, [
    column(levels),
    column(levels.map((level) => instant(keptSince(level, now)))),
    limit,
  ]);
  return removed.length;
}

const PURGE = `
DELETE FROM insights
 WHERE ctid = ANY (ARRAY (
       SELECT i.id
         FROM unnest($1::smallint[], $2::timestamptz[]) AS kept (level, since)
        CROSS JOIN insight_progress p
        CROSS JOIN lanes l
        CROSS JOIN LATERAL (
              SELECT i.ctid AS id FROM insights i
               WHERE i.project_no = l.project_no AND i.environment = l.environment AND i.level = kept.level AND i.region = l.region
                 AND i.at < least(kept.since, coalesce(p.closed_until[kept.level + 1], 'infinity'))
               ORDER BY i.at LIMIT $3) i
        LIMIT $3))
RETURNING 1`;
