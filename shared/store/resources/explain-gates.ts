import { AHEAD_MAX, type FlowSurroundings, type OwedFacts, type Surroundings } from "../../domain/explain.ts";
import { ALL_REGIONS, hostCauseOf, hostStateOf } from "../database/codes.ts";
import { epochMs } from "../database/database.ts";
import { nextStartOf } from "../queue/flow-start.ts";
import { readRate } from "./flow-keys.ts";

/**
 * The part of a job's explanation that concerns its gates, the flow key and the host, in the words of the statement (explain.ts):
 * the job's row is `o`, its project, environment and id are $1 to $3, and its host is $5.
 */

/** How many attempts go before the job's row at a gate, over all regions. Each region counts up to AHEAD_MAX + 1. */
const AHEAD_AT_GATE = `(
  SELECT sum(n.count)::int
    FROM unnest(${ALL_REGIONS}::smallint[]) AS r (region)
   CROSS JOIN LATERAL (
         SELECT count(*)
           FROM (SELECT FROM open_jobs q
                  WHERE q.project_no = $1 AND q.environment = $2 AND q.gate = coalesce(o.gate, 'k' || o.flow_key) AND q.region = r.region
                    AND (q.parked_due_at, q.job_id) < (coalesce(o.parked_due_at, o.due_at), $3)
                  LIMIT ${AHEAD_MAX + 1}) before) n)`;

/** Whether the attempt is parked. What the ramp of a host has put off until one of its next seconds waits as what is parked there does. */
export const IS_PARKED = "(o.due_at IS NULL OR o.due_at > now() AND o.gate >= 'h' AND o.gate < 'i')";

export const GATE_COLUMNS = `t.state AS host_state, t.by AS host_by, ${epochMs("t.next_probe_at")} AS host_next_probe_at, o.gate, o.has_place, k.flow_key, k.concurrency AS flow_concurrency, k.rate_count, k.rate_seconds, k.paused AS flow_paused,
       k.in_use AS flow_in_use, ${epochMs(nextStartOf("k"))} AS flow_next_start_at,
       CASE WHEN o.gate IS NOT NULL OR o.flow_key IS NOT NULL THEN ${AHEAD_AT_GATE} END AS ahead_at_gate`;

export const GATE_JOINS = `LEFT JOIN flow_keys k ON k.project_no = $1 AND k.environment = $2 AND k.flow_key = o.flow_key
  LEFT JOIN target_hosts t ON t.project_no = $1 AND t.environment = $2 AND t.host = $5 AND t.state IS NOT NULL`;

export interface GateRow {
  /** Null, like the next two, for a host that is well. */
  host_state: number | null;
  host_by: number;
  host_next_probe_at: number | null;
  gate: string | null;
  has_place: boolean | null;
  /** Null, like all columns up to `flow_next_start_at`, for a job without a flow key. */
  flow_key: string | null;
  flow_concurrency: number | null;
  rate_count: number | null;
  rate_seconds: number | null;
  flow_paused: boolean;
  flow_in_use: number;
  flow_next_start_at: number | null;
  ahead_at_gate: number | null;
}

export function readFlow(row: GateRow): FlowSurroundings | null {
  if (row.flow_key === null) return null;
  return {
    ...{ key: row.flow_key, concurrency: row.flow_concurrency, rate: readRate(row), paused: row.flow_paused },
    ...{ inUse: row.flow_in_use, nextStartAt: row.flow_next_start_at },
  };
}

export function readHostStanding(row: GateRow): Surroundings["hostStanding"] {
  if (row.host_state === null) return null;
  const [state, by] = [hostStateOf(row.host_state), hostCauseOf(row.host_by)];
  return { state, by, nextProbeAt: row.host_next_probe_at };
}

/** The reason for which a parked attempt waits, by the gate at which it stands. */
export function parkedForOf({ gate }: GateRow): NonNullable<OwedFacts["parkedFor"]> {
  if (gate === null) return "full_host";
  return gate.startsWith("h") ? "host" : "flow";
}
