import { type Database, instant } from "../database/database.ts";
import { HOST_KEY, sameHost } from "./host-gates.ts";

/** A host that is well is looked at so long after the last look. */
const LOOKED_AFTER = "interval '25 hours'";
/**
 * A row of failures may take any time until the host is down. A host that is sent something once a day is down after 20 days. One
 * that was sent less in a month, or nothing more, is forgotten.
 */
const FAILURES_FORGOTTEN_AFTER = "interval '31 days'";

/**
 * Forgets hosts that are well: by `now` (milliseconds since 1970) they have had no row of failures for a day, or their row of
 * failures has begun a month before. Looks at `limit` of them, and answers at how many it looked.
 */
export async function purgeTargetHosts(db: Database, limit: number, now: number): Promise<number> {
  const [row] = await db.run<{ looked: number }>("purge_target_hosts", PURGE, [instant(now), limit]);
  return row?.looked ?? 0;
}

// `since` has no other use for a host that is well, so it delays the next look at one that fails now and then by a day.
const IS_WELL = `t.state IS NULL AND t.since < $1::timestamptz - ${LOOKED_AFTER}`;
const PURGE = `
WITH looked AS MATERIALIZED (
  SELECT ${HOST_KEY}, t.parked > 0 OR t.failures > 0 AND coalesce(t.failing_since >= $1::timestamptz - ${FAILURES_FORGOTTEN_AFTER}, false) AS is_kept
    FROM target_hosts t
   WHERE ${IS_WELL}
   ORDER BY t.since LIMIT $2
     FOR NO KEY UPDATE SKIP LOCKED
), kept AS (
  UPDATE target_hosts t SET since = now() FROM looked l WHERE l.is_kept AND ${sameHost("t", "l")}
), forgotten AS (
  DELETE FROM target_hosts t USING looked l WHERE NOT l.is_kept AND ${sameHost("t", "l")}
)
SELECT count(*)::int AS looked FROM looked`;
