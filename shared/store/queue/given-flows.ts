import { REGIONS } from "../../domain/scope.ts";
import { HEADS, USED_AT } from "./flow-gates.ts";

/**
 * New jobs at their flow keys, as parts of the statements that make jobs. The limits that a job gives hold from then on. A job
 * that is due at once is parked if the key has no place for it, or keeps others waiting in its region. So a million jobs of one
 * key never stand in the way of others. The claim parks a job that is due later, when its time has come.
 */

/** Whether a new job is parked, by its id. */
export const IS_PARKED = "coalesce(id = ANY ((SELECT ids FROM kept_back)::uuid[]), false)";

const NO_END = 1_000_000;
const KEY = "project_no, environment, flow_key";
/** Assignments of given limits to a key (k). Limits that were left out, and all limits of a pinned key, stay as they were. */
const LIMITS_GIVEN = `used_at = ${USED_AT},
         concurrency = CASE WHEN k.pinned THEN k.concurrency ELSE coalesce(excluded.concurrency, k.concurrency) END,
         rate_count = CASE WHEN k.pinned THEN k.rate_count ELSE coalesce(excluded.rate_count, k.rate_count) END,
         rate_seconds = CASE WHEN k.pinned THEN k.rate_seconds ELSE coalesce(excluded.rate_seconds, k.rate_seconds) END`;

/**
 * The limits that a schedule gives hold from its creation or change on, before it has fired. `from` selects the project, the
 * environment and the schedule's flow. emptyGateCalls (gate-calls.ts) calls the attempts that they let start.
 */
export const giveFlowOfSchedule = (from: string): string => `given AS (
  INSERT INTO flow_keys AS k (${KEY}, concurrency, rate_count, rate_seconds)
  SELECT project_no, environment, flow ->> 'key', (flow ->> 'concurrency')::int, (flow -> 'rate' ->> 'count')::int,
         (flow -> 'rate' ->> 'per_seconds')::int
    FROM (${from}) s WHERE flow IS NOT NULL
      ON CONFLICT (${KEY}) DO UPDATE SET ${LIMITS_GIVEN}
  RETURNING ${KEY}
), raised AS (
  INSERT INTO gate_calls (project_no, environment, gate) SELECT project_no, environment, 'k' || flow_key FROM given
)`;

/**
 * Stands behind the rows that `from` selects (a FROM with a WHERE), with columns as of jobs and `n`, their order: the last job
 * that gives a limit counts. Keys are locked in their order; a new key has no row to lock.
 */
export const giveFlows = (from: string): string => `flowing AS MATERIALIZED (
  SELECT e.*, e.is_due AND row_number() OVER (PARTITION BY ${KEY}, region, is_due ORDER BY id) > e.room AS parks
    FROM (SELECT g.project_no, g.environment, g.flow_key, g.concurrency, g.rate, a.id, a.region, a.is_due,
                 CASE WHEN k.paused THEN 0
                      WHEN l.concurrency IS NULL AND l.rate_count IS NULL THEN ${NO_END}
                      WHEN k.waiting[a.region + 1] > 0 THEN 0
                      ELSE least(coalesce(l.concurrency - coalesce(k.in_use, 0), ${NO_END}), coalesce(l.rate_count, ${HEADS}), ${HEADS}) END AS room
            FROM (SELECT project_no, environment, flow ->> 'key' AS flow_key,
                         ((array_agg(flow ->> 'concurrency' ORDER BY n DESC) FILTER (WHERE flow ->> 'concurrency' IS NOT NULL))[1])::int AS concurrency,
                         (array_agg(flow -> 'rate' ORDER BY n DESC) FILTER (WHERE flow ->> 'rate' IS NOT NULL))[1] AS rate,
                         array_agg(id) AS ids, array_agg(region) AS regions, array_agg(run_at <= now()) AS dues
                    FROM ${from} AND flow IS NOT NULL
                   GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
            LEFT JOIN LATERAL (
                 SELECT k.* FROM flow_keys k
                  WHERE k.project_no = ANY (ARRAY[g.project_no]) AND k.environment = g.environment AND k.flow_key = g.flow_key
                    FOR NO KEY UPDATE) k ON true
           CROSS JOIN LATERAL (
                 SELECT CASE WHEN k.pinned THEN k.concurrency ELSE coalesce(g.concurrency, k.concurrency) END AS concurrency,
                        CASE WHEN k.pinned OR g.rate IS NULL THEN k.rate_count ELSE (g.rate ->> 'count')::int END AS rate_count) l
           CROSS JOIN LATERAL unnest(g.ids, g.regions, g.dues) AS a (id, region, is_due)) e
), kept_back AS MATERIALIZED (
  SELECT array_agg(id) FILTER (WHERE parks) AS ids FROM flowing
)`;

/**
 * Stands behind giveFlows and `job`, which returns the jobs that are new. Only these count, not an id that came to exist
 * meanwhile or an instant that was fired before.
 */
export const NOTE_FLOWS = `given AS (
  INSERT INTO flow_keys AS k (${KEY}, concurrency, rate_count, rate_seconds, waiting)
  SELECT ${KEY}, max(concurrency), max((rate ->> 'count')::int), max((rate ->> 'per_seconds')::int),
         ARRAY[${REGIONS.map((_, region) => `count(*) FILTER (WHERE parks AND region = ${region} AND id IN (SELECT id FROM job))`).join(", ")}]
    FROM flowing GROUP BY ${KEY} ORDER BY ${KEY}
      ON CONFLICT (${KEY}) DO UPDATE
     SET ${LIMITS_GIVEN},
         waiting = ARRAY[${REGIONS.map((_, region) => `k.waiting[${region + 1}] + excluded.waiting[${region + 1}]`).join(", ")}]
  RETURNING ${KEY}, old.flow_key IS NOT NULL AND (old.concurrency, old.rate_count, old.rate_seconds)
                                                 IS DISTINCT FROM (new.concurrency, new.rate_count, new.rate_seconds) AS is_changed
), raised AS (
  -- Other limits may let some of those start that are parked, or that the rate before has put off. A new key has none of these.
  INSERT INTO gate_calls (project_no, environment, gate) SELECT project_no, environment, 'k' || flow_key FROM given WHERE is_changed
)`;
