import {
  ATTEMPT_PREFIX,
  DELIVERY_PREFIX,
  idToUuid,
  JOB_PREFIX,
  RUN_PREFIX,
  uuidToId,
} from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import { environmentOf, regionCode, regionOf } from "../database/codes.ts";
import { column, type Database, REAL_NOW } from "../database/database.ts";
import type { OperatorCause } from "../resources/audit.ts";
import { noteHere } from "./restored.ts";

export type NodeKind = "worker" | "delivery";

export interface NodeRow {
  id: number;
  kind: NodeKind;
  name: string;
  regions: Region[];
  process: string;
  dead: boolean;
  /** Milliseconds since its last heartbeat. */
  silentMs: number;
}

/** Adds a node. Answers its id, or null if a living node of this kind has the name. */
export async function addNode(
  db: Database,
  node: { kind: NodeKind; name: string; regions: readonly Region[]; process: string },
): Promise<number | null> {
  const values = [node.kind, node.name, column(node.regions.map(regionCode)), node.process];
  const [row] = await db.run<{ id: number }>("add_node", ADD, values);
  return row?.id ?? null;
}

const ADD = `
INSERT INTO nodes (kind, name, regions, process, seen_at) VALUES ($1, $2, $3::smallint[], $4, ${REAL_NOW})
    ON CONFLICT (kind, name) WHERE NOT dead DO NOTHING
RETURNING id`;

export async function findLivingNode(db: Database, kind: NodeKind, name: string): Promise<NodeRow | null> {
  const [row] = await db.run<Row>("find_node", `${SELECT} WHERE kind = $1 AND name = $2 AND NOT dead`, [
    kind,
    name,
  ]);
  return row === undefined ? null : readNode(row);
}

/** All nodes that are not dead, and dead nodes for an hour. */
export async function listNodes(db: Database): Promise<NodeRow[]> {
  const rows = await db.run<Row>(
    "list_nodes",
    `${SELECT} WHERE NOT dead OR seen_at > ${REAL_NOW} - interval '1 h' ORDER BY id`,
    [],
  );
  return rows.map(readNode);
}

const SELECT = `
SELECT id, kind, name, regions, process, dead, (extract(epoch FROM ${REAL_NOW} - seen_at) * 1000)::float8 AS silent_ms FROM nodes`;

/**
 * How Postgres took a node's beat. A dead node must claim nothing more. A node must stop claiming as well if its
 * Postgres lacks beats that the node knows to be committed (`restored`).
 */
export type Beaten = { kind: "alive"; beats: number } | { kind: "dead" } | { kind: "restored" };

/**
 * Says that a node is alive. `answered` is the number of its beats that the node knows to be committed. If this
 * Postgres has them all, Postgres was not restored, and the beat notes it as the one in use (restored.ts).
 */
export async function beatNode(db: Database, id: number, answered: number): Promise<Beaten> {
  const [row] = await db.run<{ is_whole: boolean; beats: number | null }>("beat_node", BEAT, [id, answered]);
  if (!row?.is_whole) return { kind: "restored" };
  return row.beats === null ? { kind: "dead" } : { kind: "alive", beats: row.beats };
}

const BEAT = `
WITH beaten AS (
  UPDATE nodes SET seen_at = ${REAL_NOW}, beats = beats + 1 WHERE id = $1 AND NOT dead AND beats >= $2 RETURNING beats::float8
), noted AS (${noteHere("SELECT FROM beaten")}
)
-- The row is read as it was when this statement began, so a death that is declared at this moment does not look like a restore.
-- A missing node was purged if it is older than all others; otherwise it was added after the backup.
SELECT CASE WHEN n.id IS NULL THEN $1 < (SELECT min(id) FROM nodes) ELSE n.beats >= $2 END AS is_whole,
       (SELECT beats FROM beaten) AS beats
  FROM (SELECT) one LEFT JOIN nodes n ON n.id = $1`;

/**
 * Declares a node dead. The statement waits for claims under way, and no claim of the node follows. Its attempts on the
 * wire are lost then and may be rescued. Only for a node whose death is proved, or on an operator's word.
 */
export async function declareNodeDead(
  db: Database,
  id: number,
  cause: OperatorCause | null = null,
): Promise<boolean> {
  const values = [id, cause === null ? null : idToUuid(cause.requestId), cause?.operator ?? null];
  const rows = await db.run("declare_dead", DECLARE_DEAD, values);
  return rows.length === 1;
}

const DECLARE_DEAD = `
WITH declared AS (
  UPDATE nodes SET dead = true WHERE id = $1 AND NOT dead RETURNING id, kind, name
), audited AS (
  INSERT INTO audit_entries (id, operator, action, subject, detail)
  SELECT $2, $3, 'node.declare_dead', name, json_build_object('id', id, 'kind', kind)
    FROM declared WHERE $2::uuid IS NOT NULL
)
SELECT id FROM declared`;

/** How long dead nodes are kept after their last beat. */
const DEAD_KEPT_DAYS = 31;

/**
 * Removes nodes that have been dead for long, the oldest first, as long as they are older than every node that stays: a
 * process that thaws after its node was purged is then told that it is dead, rather than that its database was
 * restored. Answers how many nodes were removed. A purged node that rows still name counts as dead.
 */
export async function purgeNodes(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_nodes", PURGE, [limit, new Date(now).toISOString()])).length;
}

const PURGE = `
DELETE FROM nodes WHERE id = ANY (ARRAY (
  SELECT id FROM nodes
   WHERE id < (SELECT min(id) FROM nodes WHERE NOT dead OR seen_at > $2::timestamptz - interval '${DEAD_KEPT_DAYS} days')
   ORDER BY id LIMIT $1))
RETURNING id`;

/** An attempt on the wire that its node will not settle. */
export interface LostAttempt {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  shard: number | null;
  jobId: string;
  runId: string;
  attempt: number;
  attemptsAllowed: number;
  /** 0 if the clock was set back meanwhile, to before its start. */
  elapsedMs: number;
  /** True if the node's death is proved; false if the attempt has outlived its deadline. */
  nodeDead: boolean;
}

/**
 * Attempts that are past their deadline: they began before `beganBefore` (milliseconds since 1970; -Infinity for none),
 * by the caller's estimate of the database's clock, and more than `afterMs` ago, by Postgres' own clock, which has run
 * evenly for as long (clock-watch.ts). So a clock that has been set, ahead or back, makes no attempt overdue for a
 * caller that has not measured it.
 */
export interface Overdue {
  beganBefore: number;
  afterMs: number;
}

/** Lists the attempts of dead nodes, and overdue attempts. The work grows with what is on the wire. */
export async function listLostAttempts(
  db: Database,
  overdue: Overdue,
  limit: number,
): Promise<LostAttempt[]> {
  const rows = await db.run<LostRow>("list_lost", LOST, lostValues(overdue, limit));
  return rows.map((row) => ({
    projectNo: row.project_no,
    environment: environmentOf(row.environment),
    region: regionOf(row.region),
    shard: row.shard,
    jobId: uuidToId(JOB_PREFIX, row.job_id),
    runId: uuidToId(RUN_PREFIX, row.run_id),
    attempt: row.attempt,
    attemptsAllowed: row.attempts_allowed,
    elapsedMs: row.elapsed_ms,
    nodeDead: row.node_dead,
  }));
}

const lostValues = ({ beganBefore, afterMs }: Overdue, limit: number) => [
  beganBefore === Number.NEGATIVE_INFINITY ? "-infinity" : new Date(beganBefore).toISOString(),
  limit,
  afterMs,
];

const AFTER = "$3::float8 * interval '1 ms'";
const IS_LOST = `(coalesce(n.dead, true) OR (o.started_at < least($1::timestamptz, now() - ${AFTER})
                                             AND (SELECT steady_since <= ${REAL_NOW} - ${AFTER} FROM clock_watch)))`;

const LOST = `
SELECT o.project_no, o.environment, o.region, l.shard, o.job_id, o.run_id, o.attempt, o.attempts_allowed,
       greatest(0, (extract(epoch FROM now() - o.started_at) * 1000)::float8) AS elapsed_ms, coalesce(n.dead, true) AS node_dead
  FROM (SELECT * FROM open_jobs WHERE run_id IS NOT NULL OFFSET 0) o
  LEFT JOIN nodes n ON n.id = o.node_id
  LEFT JOIN lanes l ON l.project_no = o.project_no AND l.region = o.region AND l.environment = o.environment
 WHERE o.node_id IS NOT NULL
   AND ${IS_LOST}
 ORDER BY o.started_at
 LIMIT $2`;

interface LostRow {
  project_no: number;
  environment: number;
  region: number;
  shard: number | null;
  job_id: string;
  run_id: string;
  attempt: number;
  attempts_allowed: number;
  elapsed_ms: number;
  node_dead: boolean;
}

/** An attempt of a delivery on the wire that its node will not settle. */
export interface LostDelivery extends Omit<LostAttempt, "jobId" | "runId" | "attemptsAllowed"> {
  deliveryId: string;
  attemptId: string;
  /** Milliseconds since 1970, like `firstStartedAt`. */
  startedAt: number;
  firstStartedAt: number;
  waits: number;
  byHand: boolean;
}

/** Lists lost attempts of deliveries, as listLostAttempts does for jobs. */
export async function listLostDeliveries(
  db: Database,
  overdue: Overdue,
  limit: number,
): Promise<LostDelivery[]> {
  const rows = await db.run<LostDeliveryRow>(
    "list_lost_deliveries",
    LOST_DELIVERIES,
    lostValues(overdue, limit),
  );
  return rows.map((row) => ({
    projectNo: row.project_no,
    environment: environmentOf(row.environment),
    region: regionOf(row.region),
    shard: row.shard,
    deliveryId: uuidToId(DELIVERY_PREFIX, row.id),
    attemptId: uuidToId(ATTEMPT_PREFIX, row.attempt_id),
    attempt: row.attempt,
    startedAt: row.started_at,
    firstStartedAt: row.first_started_at,
    waits: row.waits,
    byHand: row.by_hand,
    elapsedMs: row.elapsed_ms,
    nodeDead: row.node_dead,
  }));
}

const LOST_DELIVERIES = `
SELECT o.project_no, o.environment, o.region, l.shard, o.id, o.attempt_id, o.attempt, o.waits, o.by_hand,
       (extract(epoch FROM o.started_at) * 1000)::float8 AS started_at,
       (extract(epoch FROM o.first_started_at) * 1000)::float8 AS first_started_at,
       greatest(0, (extract(epoch FROM now() - o.started_at) * 1000)::float8) AS elapsed_ms, coalesce(n.dead, true) AS node_dead
  FROM (SELECT * FROM open_deliveries WHERE node_id IS NOT NULL OFFSET 0) o
  LEFT JOIN nodes n ON n.id = o.node_id
  LEFT JOIN lanes l ON l.project_no = o.project_no AND l.region = o.region AND l.environment = o.environment
 WHERE ${IS_LOST}
 ORDER BY o.started_at
 LIMIT $2`;

interface LostDeliveryRow {
  project_no: number;
  environment: number;
  region: number;
  shard: number | null;
  id: string;
  attempt_id: string;
  attempt: number;
  waits: number;
  by_hand: boolean;
  started_at: number;
  first_started_at: number;
  elapsed_ms: number;
  node_dead: boolean;
}

interface Row {
  id: number;
  kind: NodeKind;
  name: string;
  regions: number[];
  process: string;
  dead: boolean;
  silent_ms: number;
}

function readNode(row: Row): NodeRow {
  return {
    id: row.id,
    kind: row.kind,
    name: row.name,
    regions: row.regions.map(regionOf),
    process: row.process,
    dead: row.dead,
    silentMs: row.silent_ms,
  };
}
