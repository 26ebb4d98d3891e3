import { FLOW_CLASSES, type FlowClass, type FlowKind } from "../../domain/flow-class.ts";
import { HOME_REGION } from "../../domain/plan.ts";
import type { Region } from "../../domain/scope.ts";
import { regionCode, regionOf } from "../database/codes.ts";
import { type Database, REAL_NOW } from "../database/database.ts";
import { findRunTablesReadySeconds } from "../retention/retention.ts";
import type { NodeKind } from "./nodes.ts";

/** The state of the cell over all projects and nodes, at one moment. */
export interface CellState {
  permitsInUse: Record<FlowClass, number>;
  /** The sum over all lanes, each counted up to DUE_PER_LANE_MAX, like `webhookDeliveriesDue`. */
  jobsDue: number;
  webhookDeliveriesDue: number;
  /** Each counts up to PARKED_MAX. */
  attemptsParked: Record<FlowKind, number>;
  /** Nodes that were not declared dead. A silent node has not beaten for SILENT_SECONDS. */
  nodes: { kind: NodeKind; alive: number; silent: number }[];
  /** One entry for each region that has shards. */
  shardsUnowned: { region: Region; count: number }[];
  holds: Record<"region" | "project" | "host", number>;
  runTablesReadySeconds: number;
  /** How long the oldest due firing has been waiting to be made; 0 if none is due. */
  firingsOverdueSeconds: number;
  /** How long the sealing key has been in use; null while no key is known. */
  secretsKeyAgeSeconds: number | null;
}

/** A lane is counted up to here: the sum is large either way, and the work stays bounded. */
const DUE_PER_LANE_MAX = 1_000;
const PARKED_MAX = 10_000;
/** Ten heartbeats. */
const SILENT_SECONDS = 5;
/**
 * A lease that ended just now may be an offer to another worker: its owner still acts for the shard, and ends the lease
 * anew with each of its ticks.
 */
const UNOWNED_AFTER_SECONDS = 5;

const countParked = (table: string) => `
         (SELECT count(*) FROM (SELECT FROM ${table}
                                 WHERE parked_host > '' AND due_at IS NULL AND node_id IS NULL LIMIT ${PARKED_MAX}) p)`;

/** The work grows with the numbers of projects and lanes. Due and parked rows add up to their limits only. */
export async function lookAtCell(db: Database): Promise<CellState> {
  const [row] = await db.run<Row>("look_at_cell", LOOK, []);
  if (row === undefined) throw new Error("a statement of one row brought none");
  return {
    permitsInUse: Object.fromEntries(
      FLOW_CLASSES.map((name, place) => [name, row.in_use[place]]),
    ) as CellState["permitsInUse"],
    jobsDue: row.jobs_due,
    webhookDeliveriesDue: row.deliveries_due,
    attemptsParked: row.parked,
    nodes: (["worker", "delivery"] as const).map((kind) => ({
      kind,
      alive: row.nodes[`${kind}_alive`],
      silent: row.nodes[`${kind}_silent`],
    })),
    shardsUnowned: row.unowned.map(({ region, count }) => ({ region: regionOf(region), count })),
    holds: row.holds,
    secretsKeyAgeSeconds: row.key_age,
    runTablesReadySeconds: await findRunTablesReadySeconds(db),
    firingsOverdueSeconds: row.firings_overdue,
  };
}

interface Row {
  in_use: number[];
  jobs_due: number;
  deliveries_due: number;
  parked: CellState["attemptsParked"];
  nodes: Record<`${NodeKind}_${"alive" | "silent"}`, number>;
  unowned: { region: number; count: number }[];
  holds: CellState["holds"];
  key_age: number | null;
  firings_overdue: number;
}

const LOOK = `
SELECT (SELECT ARRAY[coalesce(sum(development_jobs), 0), coalesce(sum(production_jobs), 0),
                     coalesce(sum(development_webhooks), 0), coalesce(sum(production_webhooks), 0)]::int[]
          FROM flows) AS in_use,
       (SELECT count(*)::int
          FROM lanes l
         CROSS JOIN LATERAL (SELECT
                  FROM open_deliveries o
                 WHERE o.project_no = l.project_no AND o.region = l.region AND o.environment = l.environment
                   AND o.due_at <= now()
                 LIMIT ${DUE_PER_LANE_MAX}) due
         WHERE l.has_deliveries) AS deliveries_due,
       (SELECT count(*)::int
          FROM lanes l
         CROSS JOIN LATERAL (SELECT
                  FROM open_jobs o
                 WHERE o.project_no = l.project_no AND o.region = l.region AND o.environment = l.environment
                   AND o.due_at <= now()
                 LIMIT ${DUE_PER_LANE_MAX}) due) AS jobs_due,
       json_build_object('jobs', ${countParked("open_jobs")}, 'webhooks', ${countParked("open_deliveries")}) AS parked,
       (SELECT coalesce(json_agg(u), '[]')
          FROM (SELECT s.region, count(*) FILTER (WHERE s.lease_until <= ${REAL_NOW} - interval '${UNOWNED_AFTER_SECONDS} s'
                                                    OR coalesce(n.dead, false))
                  FROM shards s LEFT JOIN nodes n ON n.id = s.owner GROUP BY s.region ORDER BY s.region) u) AS unowned,
       json_build_object('region', (SELECT count(*) FROM held_regions),
                         'project', (SELECT count(*) FROM flows WHERE held),
                         'host', (SELECT count(*) FROM host_limits WHERE requests = 0)) AS holds,
       (SELECT coalesce(greatest(extract(epoch FROM now() - min(first.next_run_at)), 0), 0)::float8
          FROM shards s
         CROSS JOIN LATERAL (SELECT next_run_at FROM schedules
                              WHERE shard = s.shard AND next_run_at IS NOT NULL ORDER BY next_run_at LIMIT 1) first
         WHERE s.region = ${regionCode(HOME_REGION)}) AS firings_overdue,
       (SELECT extract(epoch FROM now() - first_used_at)::float8 FROM secrets_keys WHERE seals) AS key_age,
       (SELECT json_build_object(
                 'worker_alive', count(*) FILTER (WHERE kind = 'worker' AND NOT silent),
                 'worker_silent', count(*) FILTER (WHERE kind = 'worker' AND silent),
                 'delivery_alive', count(*) FILTER (WHERE kind = 'delivery' AND NOT silent),
                 'delivery_silent', count(*) FILTER (WHERE kind = 'delivery' AND silent))
          FROM (SELECT kind, seen_at < ${REAL_NOW} - interval '${SILENT_SECONDS} s' AS silent
                  FROM nodes WHERE NOT dead) n) AS nodes`;
