import { sql } from "drizzle-orm";
import {
  type ProjectWaiting,
  type RegionWaiting,
  WAITING_COUNTED_MAX,
} from "../../domain/insights/waiting.ts";
import { REGIONS, type Region, type Scope } from "../../domain/scope.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { column, type Database, REAL_NOW } from "../database/database.ts";
import { HAS_QUOTA, MONTH_RUNS } from "../queue/month.ts";
import { NODE_SILENT } from "../resources/explain.ts";

/** Attempts are parked only at hosts that a node has full. Hosts beyond so many are not looked at. */
const PARKED_HOSTS_MAX = 1_000;

/** The waiting attempts of an environment, by what keeps them back. `isEstimated` if they are too many to count one by one. */
export async function findWaiting(
  db: Database,
  scope: Scope,
  region: Region | null,
): Promise<{ found: ProjectWaiting; isEstimated: boolean }> {
  const { projectNo } = scope;
  const environment = environmentCode(scope.environment);
  const codes = (region === null ? REGIONS : [region]).map(regionCode);
  const rows = await db.run<WaitingRow>("find_waiting", FIND, [projectNo, environment, column(codes)]);
  const [first] = rows;
  if (first === undefined) throw new Error("a project has no flow");
  let isEstimated = false;
  const estimate = (row: WaitingRow, condition: string) => {
    const lane = `project_no = ${projectNo} AND region = ${row.region} AND environment = ${environment}`;
    return estimateRows(db, `SELECT FROM open_jobs WHERE ${lane} AND ${condition}`);
  };
  const counted = async (count: number, row: WaitingRow, condition: string) => {
    if (count <= WAITING_COUNTED_MAX) return count;
    isEstimated = true;
    return Math.max(count, await estimate(row, condition));
  };
  const regions: RegionWaiting[] = [];
  if (first.by_hand_read >= COUNTED) isEstimated = true;
  for (const row of rows) {
    const atGate = async (count: number, gates: string) => {
      if (row.gates_read < GATES_READ_MAX) return count;
      isEstimated = true;
      // Postgres never expects fewer than one row, even if there is none.
      const expected = await estimate(row, `due_at IS NULL AND ${gates}`);
      return expected > 1 ? Math.max(count, expected) : count;
    };
    regions.push({
      isHeld: row.is_region_held,
      hasWorker: row.has_worker,
      hasDelivery: row.has_delivery,
      parked: (await counted(row.parked, row, IS_PARKED)) + (await atGate(row.at_hosts, AT_HOSTS)),
      parkedAtFlows: await atGate(row.at_flows, AT_FLOWS),
      due: await counted(row.due, row, IS_DUE),
      byHand: {
        parked: row.parked_by_hand + row.at_hosts_by_hand,
        parkedAtFlows: row.at_flows_by_hand,
        due: row.due_by_hand,
      },
      later: Math.max(0, (await counted(row.later, row, IS_LATER)) - row.put_off),
    });
  }
  const month = { runs: first.month_runs, max: first.month_runs_max };
  const { is_project_held: isHeld, concurrency, permits_in_use: permitsInUse } = first;
  return { found: { isHeld, month, concurrency, permitsInUse, regions }, isEstimated };
}

const IS_DUE = "due_at <= now()";
const IS_LATER = "due_at > now()";
const IS_PARKED = "due_at IS NULL AND node_id IS NULL AND gate IS NULL";
const COUNTED = WAITING_COUNTED_MAX + 1;
/** Twice as many are read at gates, because attempts that are not due stand there too. */
const GATES_READ_MAX = 2 * COUNTED;
const WAITS_AT_GATE = "parked_due_at <= now() AND coalesce(due_at > now(), true)";
const AT_HOSTS = "gate >= 'h' AND gate < 'i'";
const AT_FLOWS = "gate >= 'k' AND gate < 'q'";

const countInLane = (condition: string) => `
  SELECT count(*)::int
    FROM (SELECT FROM open_jobs o
           WHERE o.project_no = $1 AND o.region = r.region AND o.environment = $2 AND ${condition} LIMIT ${COUNTED}) counted`;

const countByHand = (condition: string) =>
  `(SELECT count(*)::int FROM by_hand b WHERE b.region = r.region AND ${condition})`;

const FIND = `
WITH RECURSIVE host AS (
  (SELECT parked_host FROM open_jobs WHERE parked_host > '' AND ${IS_PARKED} ORDER BY parked_host LIMIT 1)
  UNION ALL
  SELECT n.parked_host FROM host CROSS JOIN LATERAL (
         SELECT o.parked_host FROM open_jobs o WHERE o.parked_host > host.parked_host AND ${IS_PARKED} ORDER BY o.parked_host LIMIT 1) n
), parked_host AS MATERIALIZED (
  SELECT parked_host FROM host LIMIT ${PARKED_HOSTS_MAX}
), gate AS MATERIALIZED (
  -- An attempt that a gate has put off stands in its lane: parked_due_at has come, and due_at is later.
  SELECT region, gate, ${WAITS_AT_GATE} AS waits, due_at FROM open_jobs
   WHERE project_no = $1 AND environment = $2 AND (${AT_HOSTS} OR ${AT_FLOWS})
   LIMIT ${GATES_READ_MAX}
), by_hand AS MATERIALIZED (
  -- Retries by hand, read by the index of runs that have not ended.
  SELECT o.* FROM flows f CROSS JOIN LATERAL (
         SELECT region, gate, due_at, parked_due_at FROM open_jobs
          WHERE project_no = $1 AND environment = $2 AND run_id IS NOT NULL AND node_id IS NULL
          ORDER BY run_id LIMIT ${COUNTED}) o
   WHERE f.project_no = $1 AND NOT ${HAS_QUOTA}
)
SELECT r.region, due.count AS due, later.count AS later, parked.count AS parked,
       (SELECT count(*)::int FROM by_hand) AS by_hand_read, ${countByHand(IS_DUE)} AS due_by_hand, ${countByHand("due_at IS NULL AND gate IS NULL")} AS parked_by_hand,
       ${countByHand(`${WAITS_AT_GATE} AND ${AT_HOSTS}`)} AS at_hosts_by_hand, ${countByHand(`${WAITS_AT_GATE} AND ${AT_FLOWS}`)} AS at_flows_by_hand,
       (SELECT count(*)::int FROM gate) AS gates_read,
       (SELECT count(*)::int FROM gate g WHERE g.region = r.region AND g.waits AND ${AT_HOSTS}) AS at_hosts,
       (SELECT count(*)::int FROM gate g WHERE g.region = r.region AND g.waits AND ${AT_FLOWS}) AS at_flows,
       (SELECT count(*)::int FROM gate g WHERE g.region = r.region AND g.waits AND g.due_at IS NOT NULL) AS put_off,
       f.held AS is_project_held, EXISTS (SELECT FROM held_regions h WHERE h.region = r.region) AS is_region_held,
       (${MONTH_RUNS})::float8 AS month_runs, f.month_runs_max::float8 AS month_runs_max, f.concurrency,
       f.development_jobs + f.production_jobs + f.development_webhooks + f.production_webhooks AS permits_in_use,
       EXISTS (SELECT FROM lanes l
                 JOIN shards s ON s.region = l.region AND s.shard = l.shard
                 JOIN nodes n ON n.id = s.owner AND NOT n.dead
                WHERE l.project_no = $1 AND l.region = r.region AND l.environment = $2 AND s.lease_until > ${REAL_NOW}) AS has_worker,
       EXISTS (SELECT FROM nodes n
                WHERE n.kind = 'delivery' AND NOT n.dead AND r.region = ANY (n.regions) AND n.seen_at > ${REAL_NOW} - ${NODE_SILENT}) AS has_delivery
  FROM flows f
 CROSS JOIN unnest($3::smallint[]) AS r (region)
 CROSS JOIN LATERAL (${countInLane(IS_DUE)}) due
 CROSS JOIN LATERAL (${countInLane(IS_LATER)}) later
 CROSS JOIN LATERAL (
       SELECT count(*)::int
         FROM (SELECT FROM parked_host h
                CROSS JOIN LATERAL (
                      SELECT FROM open_jobs o
                       WHERE o.parked_host = h.parked_host AND o.project_no = $1 AND o.region = r.region AND o.environment = $2 AND ${IS_PARKED}
                       LIMIT ${COUNTED}) o
                LIMIT ${COUNTED}) p) parked
 WHERE f.project_no = $1`;

interface WaitingRow {
  region: number;
  due: number;
  later: number;
  parked: number;
  /** Retries by hand: how many were read, and those among the attempts of each kind. They are read only if no quota is left. */
  by_hand_read: number;
  due_by_hand: number;
  parked_by_hand: number;
  at_hosts_by_hand: number;
  at_flows_by_hand: number;
  /** Attempts that were read at gates and wait: here for hosts that are down or come back, next for flow keys. */
  at_hosts: number;
  at_flows: number;
  /** How many of `at_hosts` and `at_flows` are in their lane. */
  put_off: number;
  gates_read: number;
  is_project_held: boolean;
  is_region_held: boolean;
  month_runs: number;
  month_runs_max: number | null;
  concurrency: number;
  permits_in_use: number;
  has_worker: boolean;
  has_delivery: boolean;
}

/** How many rows Postgres expects, by the statistics that it keeps. The text holds no value of a client's. */
async function estimateRows(db: Database, text: string): Promise<number> {
  const { rows } = await db.drizzle.execute<{ "QUERY PLAN": [{ Plan: { "Plan Rows": number } }] }>(
    sql.raw(`EXPLAIN (FORMAT JSON) ${text}`),
  );
  return rows[0]?.["QUERY PLAN"][0].Plan["Plan Rows"] ?? 0;
}
