import { ALL_REGIONS } from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import type { OnCalled } from "./claim.ts";
import { calledLanes, WITHOUT_NODES } from "./flow-gates.ts";
import { callInRamp, HOST_CODES, sameHost, secondAt, startsLeftIn } from "./host-gates.ts";
import { HAS_QUOTA } from "./month.ts";
import { emptyCalls, LEFT_CALLS, takeCalls } from "./taken-calls.ts";

/** How many hosts one statement takes. Each may have some hundred attempts in each region to call. */
const HOSTS_MAX = 20;
/** The most hosts for which one look writes rows of gate_calls. */
const LOOKED_AT_MAX = 1_000;
/** A look also writes a row for a down host whose probe is overdue by this. */
const PROBE_LATE = "interval '5 s'";
/** The next probe is chosen from so many waiting attempts of each region, and from so many retries by hand. */
const PROBES_MAX = 8;
/** Retries by hand are looked for among so many of a project's runs that have not ended, the oldest first. */
const RETRIES_READ_MAX = 200;

/**
 * Takes the rows of gate_calls that are for hosts (gate-calls.ts): counts the attempts that have left a host's gate, and calls
 * a probe where there is none, or the next of a ramp. If the probe's region is held, another attempt becomes the probe. If
 * nobody sends the probe, since its region has no delivery nodes or the month has no runs left, the oldest attempt that can be
 * sent becomes the probe. A claim that began before the hold, and is not committed yet, may send the first probe as well.
 * `onCalled` gets the called attempts. Lock order: gate_calls, target_hosts by key, open jobs.
 */
export async function emptyHostCalls(db: Database, onCalled: OnCalled = () => undefined): Promise<void> {
  await emptyCalls(db, "empty_host_calls", EMPTY, onCalled);
}

const { DOWN, OPENING, BREAKER } = HOST_CODES;

const HELD = "ARRAY (SELECT r.region FROM held_regions r)";
/** Whether somebody sends an attempt (o) for a host (t). The run of a retry by hand has been counted already. */
const IS_SENT = `(o.region <> ALL (${WITHOUT_NODES}) AND (t.has_quota OR o.run_id IS NOT NULL))`;

const EMPTY = `
WITH RECURSIVE ${takeCalls("hosts", { gatesMax: HOSTS_MAX })}, host AS MATERIALIZED (
  SELECT g.change, t.*
    FROM (SELECT project_no, environment, substr(gate, 2) AS host, sum(waiting_change)::int AS change
            FROM taken GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
   CROSS JOIN LATERAL (
         SELECT t.* FROM target_hosts t
          WHERE t.project_no = ANY (ARRAY[g.project_no]) AND t.environment = g.environment AND t.host = g.host AND t.state IS NOT NULL
            FOR NO KEY UPDATE) t
), host_state AS MATERIALIZED (
  -- The column probe_goes is null where there is no probe, and false where nobody sends it.
  SELECT t.*,
         (SELECT o.node_id IS NOT NULL OR ${IS_SENT} FROM open_jobs o
           WHERE o.project_no = t.project_no AND o.environment = t.environment AND o.region = ANY (${ALL_REGIONS}) AND o.job_id = t.probe
             AND (o.node_id IS NOT NULL OR o.gate = 'h' || t.host AND o.due_at IS NOT NULL AND o.region <> ALL (${HELD}))
           LIMIT 1) AS probe_goes
    FROM (SELECT t.*, n.second AS now_second, ${startsLeftIn("n.second", "0")} AS starts_left, f.has_quota
            FROM host t
           CROSS JOIN LATERAL (SELECT ${secondAt("clock_timestamp()")} AS second OFFSET 0) n
           CROSS JOIN LATERAL (SELECT (SELECT ${HAS_QUOTA} FROM flows f WHERE f.project_no = t.project_no) AS has_quota OFFSET 0) f) t
), next_probe AS MATERIALIZED (
  -- The oldest that can be sent. Where there is no probe, and none can be sent, it is the oldest.
  SELECT t.project_no, t.environment, t.host, t.next_probe_at, p.*
    FROM host_state t
   CROSS JOIN LATERAL (
         SELECT o.region, o.job_id, o.was_parked
           FROM (SELECT h.region, h.job_id, h.due_at FROM gate_heads(t.project_no, t.environment, 'h' || t.host, ${PROBES_MAX}) h
                  UNION ALL
                 (SELECT o.region, o.job_id, o.parked_due_at
                    FROM (SELECT o.* FROM open_jobs o
                           WHERE NOT t.has_quota AND o.project_no = t.project_no AND o.environment = t.environment AND o.run_id IS NOT NULL
                           ORDER BY o.run_id LIMIT ${RETRIES_READ_MAX}) o
                   WHERE o.gate = 'h' || t.host LIMIT ${PROBES_MAX})) h
          CROSS JOIN LATERAL (
                SELECT o.region, o.job_id, o.gate, o.run_id, o.due_at IS NULL AS was_parked FROM open_jobs o
                 WHERE o.project_no = t.project_no AND o.environment = t.environment AND o.region = h.region AND o.job_id = h.job_id
                   FOR NO KEY UPDATE SKIP LOCKED) o
          WHERE h.region <> ALL (${HELD}) AND o.gate = 'h' || t.host AND (${IS_SENT} OR t.probe_goes IS NULL)
          ORDER BY ${IS_SENT} DESC, h.due_at, h.job_id LIMIT 1) p
   WHERE t.state = ${DOWN} AND t.by = ${BREAKER} AND t.probe_goes IS NOT TRUE
), probing AS (
  UPDATE open_jobs o SET due_at = greatest(now(), p.next_probe_at)
    FROM next_probe p
   WHERE o.project_no = ANY (ARRAY[p.project_no]) AND o.environment = p.environment AND o.region = p.region AND o.job_id = p.job_id
  RETURNING o.project_no, o.environment, p.host, o.region, o.job_id, o.attempt, o.due_at, p.was_parked
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
  SELECT * FROM probing
), noted AS (
  UPDATE target_hosts f SET parked = s.parked, probe = s.probe, state = s.state
    FROM (SELECT t.project_no, t.environment, t.host, c.parked,
                 CASE WHEN t.state <> ${DOWN} OR t.probe_goes THEN t.probe
                      ELSE coalesce(c.job_id, CASE WHEN t.probe_goes IS NOT NULL THEN t.probe END) END AS probe,
                 CASE WHEN t.state = ${DOWN} OR c.parked > 0 OR EXISTS (SELECT FROM gate_heads(t.project_no, t.environment, 'h' || t.host, 1))
                      THEN t.state END AS state
            FROM host_state t
           CROSS JOIN LATERAL (
                 SELECT greatest(t.parked + t.change - count(*) FILTER (WHERE c.was_parked), 0) AS parked, (array_agg(c.job_id))[1] AS job_id
                   FROM called c WHERE ${sameHost("c", "t")}) c
          OFFSET 0) s
   WHERE ${sameHost("f", "s")}
)
SELECT ${LEFT_CALLS},
       (SELECT json_agg(json_build_array(project_no, environment, region, shard, job_id, attempt, ${epochMs("due_at")})) FROM ${calledLanes()} c) AS called`;

/**
 * Writes rows of gate_calls for hosts that open, and for hosts whose probe is late: its region may be held, or have no nodes. A
 * down host where nothing waits is left out: the next attempt that comes is its probe. The hosts are drawn by lot if they are
 * more than one look takes, so that none waits for ever.
 */
export async function lookAtHosts(db: Database): Promise<void> {
  await db.run("look_at_hosts", LOOK, [LOOKED_AT_MAX]);
}

const LOOK = `
INSERT INTO gate_calls (project_no, environment, gate)
SELECT project_no, environment, 'h' || host FROM target_hosts
 WHERE state = ${OPENING} OR state = ${DOWN} AND by = ${BREAKER} AND next_probe_at < now() - ${PROBE_LATE} AND (parked > 0 OR probe IS NOT NULL)
 ORDER BY random() LIMIT $1`;
