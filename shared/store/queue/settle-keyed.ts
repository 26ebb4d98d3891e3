import { JOB_PREFIX, uuidToId } from "../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import { REGIONS } from "../../domain/scope.ts";
import { environmentOf, HOSTS_WATCHED, regionOf } from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import { calledLanes, roomOf, sameKey, USED_AT } from "./flow-gates.ts";
import { isInTime, moveTags, OPEN_STATE } from "./job-tags.ts";
import type { SettledItem } from "./settle.ts";
import {
  END_ATTEMPTS,
  ENDS_HEARD,
  type LastSettlement,
  lastSettlements,
  ordinaryClasses,
  readSettled,
  SETTLED_ITEMS,
  type SettledRow,
} from "./settle-ordinary.ts";

/**
 * The short way of a settlement that ends a job with a flow key. In projects that are ordinary by settle-ordinary.ts and whose
 * hosts are not watched, it settles, gives the place back and calls the next that wait for the key. It leaves the rest to
 * settleAttempts, unchanged: jobs with tags or without a key, keys that have a rate, and attempts that started at another time
 * than their run's id tells. For each settlement that it makes, settleAttempts would have answered the same and left the same
 * rows.
 *
 * One self-committing statement, with the locks of settleAttempts in their order; for the rest see settle-ordinary.ts and
 * claim-keyed.ts.
 *
 * Answers come in the order of the settlements; one that is left has null. `owed` are the attempts that were called.
 */
export async function settleKeyed(
  db: Database,
  settlements: readonly LastSettlement[],
): Promise<{ items: (SettledItem | null)[]; owed: Placed<OwedAttempt>[] }> {
  const { values, ordered } = lastSettlements(settlements);
  const rows = await db.run<Row>("settle_keyed", SETTLE_KEYED, values);
  const owed = rows.flatMap((row) => {
    if (row.shard === null) return [];
    const { project_no: projectNo, shard, attempt, due_at: dueAt } = row;
    const place = {
      projectNo,
      environment: environmentOf(row.environment),
      region: regionOf(row.region),
      shard,
    };
    const id = uuidToId(JOB_PREFIX, row.job_id);
    return oweAttempt("jobs", place, { id, attempt, dueAt, isGated: true });
  });
  return { items: readSettled(settlements.length, ordered, rows), owed };
}

/** A settlement, or with `n` 0 an attempt that was called. */
type Row = SettledRow &
  (
    | { shard: null }
    | {
        shard: number;
        project_no: number;
        environment: number;
        region: number;
        job_id: string;
        due_at: number;
      }
  );

const byRegion = (text: (region: number) => string, between = ", ") =>
  REGIONS.map((_, region) => text(region)).join(between);

const SETTLE_KEYED = `
WITH locked AS MATERIALIZED (
  SELECT ${ordinaryClasses(ENDS_HEARD | HOSTS_WATCHED)} AS classes OFFSET 0
), named AS MATERIALIZED (
  SELECT a.*, l.classes[a.place] AS retention_class, o.flow_key
    FROM locked l
   CROSS JOIN ${SETTLED_ITEMS}
   CROSS JOIN LATERAL (
         SELECT o.flow_key FROM open_jobs o
          WHERE o.project_no = a.project_no AND o.environment = a.environment AND o.region = a.region AND o.job_id = a.job_id OFFSET 0) o
   WHERE l.classes[a.place] IS NOT NULL AND o.flow_key IS NOT NULL
), gate AS MATERIALIZED (
  SELECT g.*, k.concurrency, k.rate_count, k.paused, k.in_use, k.waiting
    FROM (SELECT project_no, environment, flow_key, row_number() OVER (ORDER BY project_no, environment, flow_key) AS key_place, array_agg(n) AS ns
            FROM named GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
   CROSS JOIN LATERAL (
         SELECT k.* FROM flow_keys k
          WHERE k.project_no = ANY (ARRAY[g.project_no]) AND k.environment = g.environment AND k.flow_key = g.flow_key
            FOR NO KEY UPDATE) k
   WHERE k.rate_count IS NULL
), keyed AS MATERIALIZED (
  SELECT array_agg(a.n) AS ns, array_agg(g.key_place) AS places FROM gate g CROSS JOIN LATERAL unnest(g.ns) AS a (n)
), attempt AS (
  DELETE FROM open_jobs o
   USING (SELECT i.*, k.places[array_position(k.ns, i.n)] AS key_place FROM keyed k CROSS JOIN named i OFFSET 0) i
   WHERE i.key_place IS NOT NULL
     AND o.project_no = ANY (ARRAY[i.project_no]) AND o.environment = i.environment AND o.region = i.region
     AND o.job_id = i.job_id AND coalesce(o.run_id = i.run_id AND o.node_id IS NOT NULL AND ${isInTime("o")}, false)
     AND o.tags IS NULL
  RETURNING i.*, o.attempt, o.started_at, o.canceled, o.schedule_id, o.has_place
), ${END_ATTEMPTS}, ${moveTags("(SELECT *, NULL::text[] AS tags FROM attempt WHERE NOT canceled) plain", String(OPEN_STATE), "job_status")}, left_places AS MATERIALIZED (
  SELECT key_place, count(*) FILTER (WHERE has_place)::int AS freed FROM attempt GROUP BY key_place
), waiting AS MATERIALIZED (
  SELECT array_agg(k.key_place) AS key_places, array_agg(k.project_no) AS projects, array_agg(k.environment) AS environments,
         array_agg('k' || k.flow_key) AS gates, array_agg(w.region) AS regions, array_agg(k.room) AS rooms
    FROM (SELECT k.*, ${roomOf("k.in_use - l.freed")} AS room FROM gate k JOIN left_places l USING (key_place)) k
   CROSS JOIN LATERAL (SELECT w.count, (w.n - 1)::smallint AS region FROM unnest(k.waiting) WITH ORDINALITY AS w (count, n)) w
   WHERE w.count > 0 AND k.room > 0
), called AS MATERIALIZED (
  SELECT w.key_places[c.place] AS key_place, w.projects[c.place] AS project_no, w.environments[c.place] AS environment, c.region, c.job_id,
         c.attempt, c.due_at
    FROM waiting w
   CROSS JOIN LATERAL call_gates(w.projects, w.environments, w.gates, w.regions, w.rooms) c
   WHERE w.gates IS NOT NULL
), noted AS (
  UPDATE flow_keys k
     SET used_at = ${USED_AT}, in_use = greatest(k.in_use - s.freed, 0),
         waiting = ARRAY[${byRegion((region) => `k.waiting[${region + 1}] - s.called_${region}`)}]
    FROM (SELECT g.project_no, g.environment, g.flow_key, c.*
            FROM (SELECT key_place, sum(freed)::int AS freed, ${byRegion((region) => `sum(called_${region}) AS called_${region}`)}
                    FROM (SELECT key_place, freed, ${byRegion((region) => `0 AS called_${region}`)} FROM left_places
                          UNION ALL
                          SELECT key_place, 0, ${byRegion((region) => `(region = ${region})::int`)} FROM called) changes
                   GROUP BY key_place) c
            JOIN gate g USING (key_place)
          OFFSET 0) s
   WHERE ${sameKey("k", "s")}
)
SELECT n::int AS n, attempt, canceled, NULL::int AS project_no, NULL::smallint AS environment, NULL::smallint AS region, NULL::smallint AS shard,
       NULL::uuid AS job_id, NULL::float8 AS due_at
  FROM attempt
 UNION ALL
SELECT 0, attempt, false, project_no, environment, region, shard, job_id, ${epochMs("due_at")} FROM ${calledLanes()} c`;
