import { FLOW_CONCURRENCY_BOUNDS } from "../../domain/flow-key.ts";
import { REGIONS } from "../../domain/scope.ts";
import { type Database, epochMs } from "../database/database.ts";
import type { OnCalled } from "./claim.ts";
import { calledLanes, HEADS, roomOf, sameKey, startsGoneAt, startsLeft, USED_AT } from "./flow-gates.ts";
import { emptyCalls, LEFT_CALLS, takeCalls } from "./taken-calls.ts";

/**
 * Most statements change the gates of flow keys under the keys' locks. Cancels, retries by hand and parking at a host are rare
 * or take many jobs at once. Their statements write rows of gate_calls instead, which lock nothing, and delivery nodes empty
 * that table.
 */

/**
 * Tells the gates of jobs that these have left (`from` selects their rows of open_jobs as they were). Jobs that are over
 * (`isOver`) give their place back. Other jobs have only left the queue in which they stood.
 */
export const callGates = (from: string, { isOver = true } = {}): string => `left_gate AS MATERIALIZED (
  SELECT * FROM ${from}
), gate_call AS (
  INSERT INTO gate_calls (project_no, environment, gate, region, waiting_change, in_use_change)
  SELECT project_no, environment, 'k' || flow_key, region, CASE WHEN due_at IS NULL AND gate LIKE 'k%' THEN -1 ELSE 0 END,
         ${isOver ? "CASE WHEN has_place THEN -1 ELSE 0 END" : "0"}
    FROM left_gate WHERE flow_key IS NOT NULL
  UNION ALL
  SELECT project_no, environment, gate, region, CASE WHEN due_at IS NULL THEN -1 ELSE 0 END, 0 FROM left_gate WHERE gate LIKE 'h%'
)`;
/** Whether an open job may stand at a gate. */
export const HAS_GATE = "(flow_key IS NOT NULL OR gate IS NOT NULL)";

/** How many gates one statement takes. Each has up to HEADS attempts in each region to call. */
const GATES_MAX = 100;
/** How many attempts with a place are called at once in a region after a pause of the key. Without a limit there may be more. */
const HOLDERS_MAX = FLOW_CONCURRENCY_BOUNDS.max;

/**
 * Takes the rows of gate_calls that are for flow keys: corrects the gates' counts, and calls the attempts that may start next, which
 * `onCalled` gets. Each statement takes a few gates, and leaves rows that another node has taken. Lock order: gate_calls, flow_keys by
 * key, open jobs.
 */
export async function emptyGateCalls(db: Database, onCalled: OnCalled = () => undefined): Promise<void> {
  await emptyCalls(db, "empty_gate_calls", EMPTY, onCalled);
}

const waitingIn = (region: number) =>
  `greatest(k.waiting[${region + 1}] + k.changes[${region + 1}] - (SELECT count(*) FROM called c WHERE c.place = k.place AND c.region = ${region} AND NOT c.holds), 0)`;

const EMPTY = `
WITH RECURSIVE ${takeCalls("keys", { gatesMax: GATES_MAX, isDear: "c.gate LIKE 'p%'" })}, gate AS MATERIALIZED (
  SELECT g.place, g.in_use_change, g.calls_holders, g.changes, k.*
    FROM (SELECT project_no, environment, substr(gate, 2) AS flow_key, row_number() OVER (ORDER BY project_no, environment, substr(gate, 2)) AS place,
                 sum(in_use_change)::int AS in_use_change, bool_or(gate LIKE 'p%') AS calls_holders,
                 ARRAY[${REGIONS.map((_, region) => `coalesce(sum(waiting_change) FILTER (WHERE region = ${region}), 0)`).join(", ")}] AS changes
            FROM taken GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
   CROSS JOIN LATERAL (
         SELECT k.* FROM flow_keys k
          WHERE k.project_no = ANY (ARRAY[g.project_no]) AND k.environment = g.environment AND k.flow_key = g.flow_key
            FOR NO KEY UPDATE) k
), state AS MATERIALIZED (
  SELECT k.*, CASE WHEN ${startsLeft("k.at")} <= 0 THEN ${startsGoneAt("k.at", `1 - ${startsLeft("k.at")}`)} END AS not_before
    FROM (SELECT k.*, greatest(k.in_use + k.in_use_change, 0) AS used, clock_timestamp() AS at FROM gate k) k
), late AS MATERIALIZED (
  -- The first attempts of the queue may stand in their lanes, put off by a rate. These are the ones that were put off for longer
  -- than the rate asks for now. They may be more than the limits let start by now: a claim parks the others.
  SELECT h.*, greatest(now(), h.parked_due_at, k.not_before) + h.rank * interval '1 us' AS new_due_at
    FROM state k
   CROSS JOIN LATERAL (
         SELECT o.*, h.rank
           FROM (SELECT h.*, row_number() OVER (ORDER BY h.due_at, h.job_id) AS rank
                   FROM gate_heads(k.project_no, k.environment, 'k' || k.flow_key, ${HEADS}) h) h
          CROSS JOIN LATERAL (
                SELECT o.project_no, o.environment, o.region, o.job_id, o.gate, o.due_at, o.parked_due_at FROM open_jobs o
                 WHERE o.project_no = k.project_no AND o.environment = k.environment AND o.region = h.region AND o.job_id = h.job_id
                   FOR NO KEY UPDATE SKIP LOCKED) o
          WHERE h.in_lane AND o.gate = 'k' || k.flow_key) h
   WHERE h.due_at > greatest(now(), h.parked_due_at, k.not_before) + interval '1 s'
), hastened AS (
  UPDATE open_jobs o SET due_at = l.new_due_at FROM late l
   WHERE o.project_no = ANY (ARRAY[l.project_no]) AND o.environment = l.environment AND o.region = l.region AND o.job_id = l.job_id
  RETURNING o.project_no, o.environment, o.region, o.job_id, o.attempt, o.due_at
), called AS MATERIALIZED (
  SELECT k.place, k.project_no, k.environment, false AS holds, h.*
    FROM state k
   CROSS JOIN LATERAL call_gate(k.project_no, k.environment, 'k' || k.flow_key, ${roomOf("k.used")} + 0 * (SELECT count(*) FROM late)::int,
           k.not_before) h
  UNION ALL
  SELECT k.place, k.project_no, k.environment, true, h.*
    FROM state k
   CROSS JOIN LATERAL call_gate(k.project_no, k.environment, 'p' || k.flow_key, ${HOLDERS_MAX}, NULL) h
   WHERE k.calls_holders AND NOT k.paused
), left_over AS (
  -- A key with HOLDERS_MAX holders in a region is called again.
  INSERT INTO gate_calls (project_no, environment, gate)
  SELECT project_no, environment, 'p' || flow_key FROM state k
   WHERE k.calls_holders AND NOT k.paused
     AND EXISTS (SELECT FROM gate_heads(k.project_no, k.environment, 'p' || k.flow_key, ${HOLDERS_MAX}) h
                  GROUP BY h.region HAVING count(*) >= ${HOLDERS_MAX})
), noted AS (
  UPDATE flow_keys f SET used_at = s.used_at, in_use = s.used, waiting = s.waiting, queue_since = '-infinity'
    FROM (SELECT k.project_no, k.environment, k.flow_key, ${USED_AT} AS used_at, k.used, ARRAY[${REGIONS.map((_, region) => waitingIn(region)).join(", ")}] AS waiting
            FROM state k OFFSET 0) s
   WHERE ${sameKey("f", "s")}
)
SELECT ${LEFT_CALLS},
       (SELECT json_agg(json_build_array(project_no, environment, region, shard, job_id, attempt, ${epochMs("due_at")})) FROM ${calledLanes("hastened")} c) AS called`;
