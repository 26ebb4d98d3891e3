import type { OwedAttempt, Placed } from "../../domain/owed.ts";
import { ALL_REGIONS } from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import { type CalledRow, readCalled } from "./called.ts";
import { calledLanes } from "./flow-gates.ts";
import { callInRamp, HOST_CODES, sameHost, secondAt, startsLeftIn } from "./host-gates.ts";

/** How many rows of gate_calls one statement takes. */
const CALLS_MAX = 1_000;
/** How late a probe may be before its host is looked at. */
const PROBE_LATE = "interval '5 s'";

/**
 * Takes the rows of gate_calls that are for hosts (gate-calls.ts): counts the attempts that have left a host's gate, and calls
 * a probe where there is none, or the next of a ramp. A probe in a region that is held keeps no other from being the probe. A
 * claim that began before the hold, and is not committed yet, may send the first one as well. Answers the called attempts, and
 * whether more rows are left. Lock order: gate_calls, target_hosts by key, open jobs.
 */
export async function emptyHostCalls(
  db: Database,
): Promise<{ owed: Placed<OwedAttempt>[]; isMoreLeft: boolean }> {
  const [row] = await db.run<{ taken: number; called: CalledRow[] | null }>("empty_host_calls", EMPTY, [
    CALLS_MAX,
  ]);
  return {
    owed: (row?.called ?? []).flatMap(readCalled),
    isMoreLeft: (row?.taken ?? 0) >= CALLS_MAX,
  };
}

const { DOWN, OPENING, BREAKER } = HOST_CODES;

const EMPTY = `
WITH taken AS MATERIALIZED (
  DELETE FROM gate_calls WHERE id = ANY (ARRAY (SELECT id FROM gate_calls WHERE gate LIKE 'h%' ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))
  RETURNING *
), host AS MATERIALIZED (
  SELECT g.change, t.*
    FROM (SELECT project_no, environment, substr(gate, 2) AS host, sum(waiting_change)::int AS change
            FROM taken GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
   CROSS JOIN LATERAL (
         SELECT t.* FROM target_hosts t
          WHERE t.project_no = ANY (ARRAY[g.project_no]) AND t.environment = g.environment AND t.host = g.host AND t.state IS NOT NULL
            FOR NO KEY UPDATE) t
), host_state AS MATERIALIZED (
  SELECT t.*, n.second AS now_second, ${startsLeftIn("n.second", "0")} AS starts_left,
         (SELECT true FROM open_jobs o
           WHERE o.project_no = t.project_no AND o.environment = t.environment AND o.region = ANY (${ALL_REGIONS}) AND o.job_id = t.probe
             AND (o.node_id IS NOT NULL
                  OR o.gate = 'h' || t.host AND o.due_at IS NOT NULL AND o.region <> ALL (ARRAY (SELECT r.region FROM held_regions r)))
           LIMIT 1) IS NOT NULL AS has_probe
    FROM host t
   CROSS JOIN LATERAL (SELECT ${secondAt("clock_timestamp()")} AS second OFFSET 0) n
), called AS MATERIALIZED (
  -- The probe that was to come when the host was opened by hand.
  SELECT t.project_no, t.environment, t.host, c.*
    FROM host_state t CROSS JOIN LATERAL call_oldest(t.project_no, t.environment, 'h' || t.host, NULL) c
   WHERE t.state = ${OPENING} AND t.starts_left > 0
  UNION ALL
  SELECT t.project_no, t.environment, t.host, c.*, true AS was_parked
    FROM host_state t CROSS JOIN LATERAL ${callInRamp("t.now_second", "t.starts_left", "")} c
   WHERE t.state = ${OPENING}
  UNION ALL
  SELECT t.project_no, t.environment, t.host, c.*
    FROM host_state t CROSS JOIN LATERAL call_oldest(t.project_no, t.environment, 'h' || t.host, t.next_probe_at) c
   WHERE t.state = ${DOWN} AND t.by = ${BREAKER} AND NOT t.has_probe
), noted AS (
  UPDATE target_hosts f SET parked = s.parked, probe = s.probe, state = s.state
    FROM (SELECT t.project_no, t.environment, t.host, c.parked,
                 CASE WHEN t.state = ${DOWN} AND NOT t.has_probe THEN c.job_id ELSE t.probe END AS probe,
                 CASE WHEN t.state = ${DOWN} OR c.parked > 0 OR EXISTS (SELECT FROM gate_heads(t.project_no, t.environment, 'h' || t.host, 1))
                      THEN t.state END AS state
            FROM host_state t
           CROSS JOIN LATERAL (
                 SELECT greatest(t.parked + t.change - count(*) FILTER (WHERE c.was_parked), 0) AS parked, (array_agg(c.job_id))[1] AS job_id
                   FROM called c WHERE ${sameHost("c", "t")}) c
          OFFSET 0) s
   WHERE ${sameHost("f", "s")}
)
SELECT (SELECT count(*) FROM taken)::int AS taken,
       (SELECT json_agg(json_build_array(project_no, environment, region, shard, job_id, attempt, ${epochMs("due_at")})) FROM ${calledLanes()} c) AS called`;

/**
 * Writes rows of gate_calls for hosts that open, and for hosts whose probe is late: its region may be held, or have no nodes. A
 * down host where nothing waits is left out: the next attempt that comes is its probe. The hosts are drawn by lot if they are
 * more than one look takes, so that none waits for ever.
 */
export async function lookAtHosts(db: Database): Promise<void> {
  await db.run("look_at_hosts", LOOK, [CALLS_MAX]);
}

const LOOK = `
INSERT INTO gate_calls (project_no, environment, gate)
SELECT project_no, environment, 'h' || host FROM target_hosts
 WHERE state = ${OPENING} OR state = ${DOWN} AND by = ${BREAKER} AND next_probe_at < now() - ${PROBE_LATE} AND (parked > 0 OR probe IS NOT NULL)
 ORDER BY random() LIMIT $1`;
