import { environmentOfClass, type FlowKind } from "../../domain/flow-class.ts";
import { idToUuid, uuidToId, WEBHOOK_PREFIX } from "../../domain/ids.ts";
import type { OwedAttempt, Placed } from "../../domain/owed.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import { hostOfTarget } from "../../domain/target.ts";
import { environmentCode, environmentOf, flowClassNamed, regionCode, regionOf } from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { RUNS_LEFT } from "./month.ts";
import { OWED, type Owed, type OwedRow, readOwed } from "./sweep.ts";

/**
 * Releases attempts that parking.ts has parked: makes them due from the moment of the release on, so that every sweep
 * finds them.
 */

const isParked = "o.due_at IS NULL AND o.node_id IS NULL";

/** A bound that is never met: operators limit few hosts, and a node can be full for two or three. */
const HOSTS_MAX = 1_000;

/** The hosts at which attempts of a kind are parked, in all regions. */
export async function listParkedHosts(db: Database, kind: FlowKind): Promise<string[]> {
  const rows = await db.run<{ parked_host: string }>(`list_parked_${kind}`, LIST[kind], [HOSTS_MAX]);
  return rows.map((row) => row.parked_host);
}

// One look into the index for each host, however much is parked there.
const list = ({ table }: Owed) => {
  const hostAfter = (before: string) => `
  SELECT o.parked_host FROM ${table} o
   WHERE ${isParked} AND o.parked_host > ${before} ORDER BY o.parked_host LIMIT 1`;
  return `
WITH RECURSIVE host AS (
  (${hostAfter("''")})
  UNION ALL
  SELECT n.* FROM host CROSS JOIN LATERAL (${hostAfter("host.parked_host")}) n
)
SELECT parked_host FROM host LIMIT $1`;
};
const LIST: Record<FlowKind, string> = { jobs: list(OWED.jobs), webhooks: list(OWED.webhooks) };

/** A lane with parked attempts. The next release begins after the last lane of the one before. */
export interface ParkedLane {
  projectNo: ProjectNo;
  region: Region;
  environment: Environment;
}

/**
 * Releases up to `count` of the attempts parked at a host: the oldest ones of each lane after `after`, the same number
 * of each, so that no project's backlog stands before another's. A lane gets at most as many as its project has permits
 * free, and a lane of jobs at most as many as the quota leaves. `countMin` are allowed in any case.
 */
export async function releaseParked(
  db: Database,
  kind: FlowKind,
  {
    host,
    regions,
    after,
    count,
    countMin,
  }: {
    host: string;
    regions: readonly Region[];
    after: ParkedLane | null;
    count: number;
    countMin: number;
  },
): Promise<{ attempts: Placed<OwedAttempt>[]; last: ParkedLane | null }> {
  const rows = await db.run<OwedRow>(`release_${kind}`, RELEASE[kind], [
    host,
    column(regions.map(regionCode)),
    after?.projectNo ?? -1,
    after === null ? 0 : regionCode(after.region),
    after === null ? 0 : environmentCode(after.environment),
    count,
    countMin,
  ]);
  const last = rows.reduce<OwedRow | undefined>(
    (latest, row) => (latest === undefined || compareLanes(row, latest) > 0 ? row : latest),
    undefined,
  );
  return { attempts: rows.map(readOwed), last: last === undefined ? null : laneOf(last) };
}

const compareLanes = (one: OwedRow, other: OwedRow): number =>
  one.project_no - other.project_no || one.region - other.region || one.flow_class - other.flow_class;
const laneOf = ({ project_no, region, flow_class }: OwedRow): ParkedLane => ({
  projectNo: project_no,
  region: regionOf(region),
  environment: environmentOfClass(flowClassNamed(flow_class)),
});

/** A released attempt comes back to its flow key's queue, perhaps before the queue's low-water mark (claim-keyed.ts). */
const COMES_BACK = `, came_back AS (
  INSERT INTO gate_calls (project_no, environment, gate, comes_back)
  SELECT DISTINCT project_no, environment, gate, true FROM released WHERE gate IS NOT NULL
)`;

// The attempts are due a microsecond apart, so that they keep their order.
const released = ({ table, id, firstClass, keyHash }: Owed) => `released AS (
  UPDATE ${table} o SET due_at = greatest(now(), p.parked_due_at) + p.place * interval '1 us'${table === "open_jobs" ? ", gate = CASE WHEN o.has_place IS NULL THEN 'k' || o.flow_key END" : ""}
    FROM picked p
   WHERE o.project_no = ANY (ARRAY[p.project_no]) AND o.environment = p.environment AND o.region = p.region
     AND o.${id} = p.id
  RETURNING o.*
)${table === "open_jobs" ? COMES_BACK : ""}
SELECT r.project_no, (r.environment + ${firstClass})::smallint AS flow_class, r.region, l.shard, r.${id} AS id, r.attempt,
       ${epochMs("r.due_at")} AS due_at, ${keyHash("r")} AS key_hash
  FROM released r
  JOIN lanes l ON l.project_no = r.project_no AND l.region = r.region AND l.environment = r.environment
 ORDER BY r.due_at`;

const PERMITS_FREE =
  "f.concurrency - f.development_jobs - f.production_jobs - f.development_webhooks - f.production_webhooks";

// LEAST ignores the null of a project without a quota.
const release = (owed: Owed, allowed: string) => {
  const { table, id } = owed;
  const laneAfter = (place: string) => `
  SELECT o.project_no, o.region, o.environment FROM ${table} o
   WHERE o.parked_host = $1 AND ${isParked} AND (o.project_no, o.region, o.environment) > (${place})
   ORDER BY o.project_no, o.region, o.environment LIMIT 1`;
  return `
WITH RECURSIVE lane AS (
  (${laneAfter("$3::int, $4::smallint, $5::smallint")})
  UNION ALL
  SELECT n.* FROM lane CROSS JOIN LATERAL (${laneAfter("lane.project_no, lane.region, lane.environment")}) n
), chosen AS MATERIALIZED (
  SELECT c.*, count(*) OVER () AS lane_count
    FROM (SELECT lane.*, p.count AS permit_count
            FROM lane
            JOIN flows f USING (project_no)
           CROSS JOIN LATERAL (
                 SELECT greatest(least(${allowed}), $7::int) AS count) p
           WHERE region = ANY ($2::smallint[]) AND region <> ALL (ARRAY (SELECT h.region FROM held_regions h))
             AND NOT f.held AND p.count > 0
           LIMIT $6::int) c
), picked AS MATERIALIZED (
  SELECT c.project_no, c.region, c.environment, o.*, row_number() OVER (ORDER BY o.parked_due_at) AS place
    FROM chosen c
   CROSS JOIN LATERAL (
         SELECT o.${id} AS id, o.parked_due_at FROM ${table} o
          WHERE o.parked_host = $1 AND ${isParked} AND o.project_no = c.project_no AND o.region = c.region
            AND o.environment = c.environment
          ORDER BY o.parked_due_at
          LIMIT least(ceil($6::float8 / c.lane_count), c.permit_count)
            FOR NO KEY UPDATE SKIP LOCKED) o
   ORDER BY row_number() OVER (PARTITION BY c.project_no, c.region, c.environment ORDER BY o.parked_due_at), o.parked_due_at
   LIMIT $6::int
), ${released(owed)}`;
};
const RELEASE: Record<FlowKind, string> = {
  jobs: release(OWED.jobs, `${PERMITS_FREE}, ${RUNS_LEFT}`),
  webhooks: release(OWED.webhooks, PERMITS_FREE),
};

/** A host to which an endpoint used to lead. */
export interface LeftHost {
  projectNo: ProjectNo;
  environment: Environment;
  webhookId: string;
  host: string;
  /** The endpoint's present URL; null if the endpoint is deleted. */
  url: string | null;
  /** Identifies this departure: a later one has another time. */
  leftAt: string;
}

/** Some of the hosts that endpoints have left and at which their deliveries may still be parked. */
export async function listLeftHosts(db: Database, limit: number): Promise<LeftHost[]> {
  const rows = await db.run<{
    project_no: number;
    environment: number;
    webhook_id: string;
    host: string;
    url: string | null;
    left_at: string;
  }>("list_left_hosts", LIST_LEFT, [limit]);
  return rows.map((row) => ({
    projectNo: row.project_no,
    environment: environmentOf(row.environment),
    webhookId: uuidToId(WEBHOOK_PREFIX, row.webhook_id),
    host: row.host,
    url: row.url,
    leftAt: row.left_at,
  }));
}

const LIST_LEFT = `
SELECT l.project_no, l.environment, l.webhook_id, l.host, l.left_at::text, w.url
  FROM (SELECT * FROM left_hosts LIMIT $1) l
  LEFT JOIN webhooks w ON w.project_no = l.project_no AND w.environment = l.environment AND w.id = l.webhook_id`;

/**
 * Forgets up to `limit` left hosts at which nothing is parked for the endpoint that left. An endpoint whose URL changes
 * all day leaves many of these, and those of others would wait behind them.
 */
export async function forgetIdleLeftHosts(db: Database, limit: number): Promise<void> {
  await db.run("forget_idle_left_hosts", FORGET_IDLE, [limit]);
}

// A statement that sees the departure also sees what was parked before it. An endpoint that leaves again has another
// left_at. NOT EXISTS would be planned as a join that reads everything parked at each host.
const FORGET_IDLE = `
WITH idle AS MATERIALIZED (
  SELECT l.webhook_id, l.host, l.left_at FROM left_hosts l
   WHERE (SELECT o.id FROM open_deliveries o
           WHERE o.parked_host = l.host AND o.project_no = l.project_no AND o.environment = l.environment
             AND o.webhook_id = l.webhook_id AND ${isParked} LIMIT 1) IS NULL
   LIMIT $1
)
DELETE FROM left_hosts l USING idle i WHERE l.webhook_id = i.webhook_id AND l.host = i.host AND l.left_at = i.left_at`;

/**
 * Releases up to `limit` deliveries of the endpoint at the host that it left. Fewer than `limit` means that none is
 * left there, and the host is forgotten. If the endpoint leads to the host again, its deliveries stay parked.
 */
export async function releaseLeft(
  db: Database,
  left: LeftHost,
  limit: number,
): Promise<Placed<OwedAttempt>[]> {
  const { host, projectNo, url, leftAt } = left;
  const webhook = idToUuid(left.webhookId);
  const forget = () => db.run("forget_left_host", FORGET_LEFT, [webhook, host, leftAt]);
  if (url !== null && hostOfTarget(url) === host) {
    await forget();
    return [];
  }
  const rows = await db.run<OwedRow>("release_left", RELEASE_LEFT, [
    host,
    projectNo,
    environmentCode(left.environment),
    webhook,
    limit,
  ]);
  if (rows.length < limit) await forget();
  return rows.map(readOwed);
}

// The statement waits for locked rows: a skipped row would stay parked, since no later look finds it there.
const RELEASE_LEFT = `
WITH picked AS MATERIALIZED (
  SELECT o.*, row_number() OVER (ORDER BY o.parked_due_at) AS place
    FROM (SELECT o.project_no, o.environment, o.region, o.id, o.parked_due_at FROM open_deliveries o
           WHERE o.parked_host = $1 AND o.project_no = $2 AND o.environment = $3 AND o.webhook_id = $4 AND ${isParked}
           ORDER BY o.id LIMIT $5
             FOR NO KEY UPDATE) o
), ${released(OWED.webhooks)}`;
const FORGET_LEFT =
  "DELETE FROM left_hosts WHERE webhook_id = $1 AND host = $2 AND left_at = $3::timestamptz";
