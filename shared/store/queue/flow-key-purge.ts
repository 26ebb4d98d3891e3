import { type Database, instant } from "../database/database.ts";
import { sameKey } from "./flow-gates.ts";
import { OPEN_STATE } from "./job-tags.ts";

/** A key that is not used for a day is forgotten. `used_at` may be an hour behind. */
const FORGOTTEN_AFTER = "interval '25 hours'";

/**
 * Forgets keys that were last used a day before `now` (milliseconds since 1970), unless they are pinned or paused, or some job
 * that is not over or some schedule names them. Looks at `limit` of them, and answers at how many it looked.
 */
export async function purgeFlowKeys(db: Database, limit: number, now: number): Promise<number> {
  const [row] = await db.run<{ looked: number }>("purge_flow_keys", PURGE, [instant(now), limit]);
  return row?.looked ?? 0;
}

// The purge waits for no locked key, since others lock keys in another order. A key that a job or a schedule names is looked at
// again after another day. A creation at the same time has changed used_at, or makes the key anew.
const IS_IDLE = `k.used_at < $1::timestamptz - ${FORGOTTEN_AFTER} AND NOT k.pinned AND NOT k.paused`;
const PURGE = `
WITH idle AS MATERIALIZED (
  SELECT k.project_no, k.environment, k.flow_key,
         k.in_use > 0 OR (SELECT sum(w) FROM unnest(k.waiting) AS w) > 0
         OR (SELECT true FROM job_tag_states t WHERE t.project_no = k.project_no AND t.environment = k.environment
                AND t.tag = ' ' || k.flow_key AND t.state = ${OPEN_STATE} LIMIT 1) IS NOT NULL
         OR (SELECT true FROM schedules s WHERE s.project_no = k.project_no AND s.environment = k.environment
                AND s.flow ->> 'key' = k.flow_key AND s.flow IS NOT NULL LIMIT 1) IS NOT NULL AS is_named
    FROM flow_keys k
   WHERE ${IS_IDLE}
   ORDER BY k.used_at LIMIT $2
     FOR UPDATE SKIP LOCKED
), kept AS (
  UPDATE flow_keys k SET used_at = now() FROM idle i WHERE i.is_named AND ${sameKey("k", "i")}
), forgotten AS (
  DELETE FROM flow_keys k USING idle i WHERE NOT i.is_named AND ${sameKey("k", "i")} AND ${IS_IDLE}
)
SELECT count(*)::int AS looked FROM idle`;
