import { type Instant, instantOrNull, numbers, SECOND, toMs } from "./parameters.ts";
import {
  type NodeRow,
  type ShardRow,
  type Statement,
  type StatementTime,
  shardKey,
  type Tables,
} from "./tables.ts";

/** Shards, nodes, holds and the watch of the clock (shared/store/queue/shards.ts, shared/store/cell). */

const LISTED: Instant = 3_600 * SECOND;
const LEAP: Instant = 10 * SECOND;
const UNSEEN: Instant = 600 * SECOND;

export const createShards: Statement = (tables, _time, values) => {
  for (const region of numbers(values[0])) {
    for (let shard = 0; shard < Number(values[1]); shard++) {
      if (tables.shards.has(shardKey(region, shard))) continue;
      const lease_until = Number.NEGATIVE_INFINITY;
      tables.shards.set(shardKey(region, shard), { region, shard, epoch: 0, owner: null, lease_until });
    }
  }
  return [];
};

const isDead = (tables: Tables, nodeId: number | null) =>
  nodeId !== null && tables.nodes.get(nodeId)?.dead === true;

const isFree = (tables: Tables, { lease_until, owner }: ShardRow, { now }: StatementTime) =>
  lease_until <= now || isDead(tables, owner);

export const listFreeShards: Statement = (tables, time, values) => {
  const regions = numbers(values[0]);
  return [...tables.shards.values()]
    .filter((row) => regions.includes(row.region) && isFree(tables, row, time))
    .map(({ region, shard }) => ({ region, shard }));
};

function named(tables: Tables, regions: unknown, shards: unknown): (ShardRow | undefined)[] {
  const numbersOfShards = numbers(shards);
  return numbers(regions).map((region, index) =>
    tables.shards.get(shardKey(region, numbersOfShards[index] as number)),
  );
}

export const acquireShards: Statement = (tables, time, values) =>
  named(tables, values[0], values[1]).flatMap((row) => {
    if (row === undefined || !isFree(tables, row, time)) return [];
    row.epoch++;
    row.owner = Number(values[2]);
    row.lease_until = time.now + Number(values[3]) * 1_000;
    return [{ region: row.region, shard: row.shard, epoch: String(row.epoch) }];
  });

export const renewShards: Statement = (tables, { now }, values) => {
  const epochs = numbers(values[2]);
  return named(tables, values[0], values[1]).flatMap((row, index) => {
    if (row === undefined) return [];
    const { region, shard } = row;
    if (row.epoch !== epochs[index] || row.owner !== values[3]) return [{ region, shard }];
    row.lease_until = now + Number(values[4]) * 1_000;
    return [];
  });
};

export const resignShards: Statement = (tables, _time, values) => {
  const epochs = numbers(values[2]);
  for (const [index, row] of named(tables, values[0], values[1]).entries()) {
    if (row === undefined || row.epoch !== epochs[index] || row.owner !== values[3]) continue;
    row.owner = null;
    row.lease_until = Number.NEGATIVE_INFINITY;
  }
  return [];
};

const findLiving = (tables: Tables, kind: unknown, name: unknown) =>
  [...tables.nodes.values()].find((node) => node.kind === kind && node.name === name && !node.dead);

export const addNode: Statement = (tables, { now }, values) => {
  const [kind, name, regions, process] = values;
  // A refused insert has used up a number as well.
  const id = ++tables.node_count;
  if (findLiving(tables, kind, name) !== undefined) return [];
  const node = {
    id,
    kind: String(kind),
    name: String(name),
    regions: numbers(regions),
    process: String(process),
  };
  tables.nodes.set(id, { ...node, dead: false, seen_at: now, beats: 0 });
  return [{ id }];
};

const nodeColumns = ({ id, kind, name, regions, process, dead, seen_at }: NodeRow, now: Instant) => ({
  ...{ id, kind, name, regions, process, dead },
  silent_ms: toMs(now - seen_at),
});

export const findNode: Statement = (tables, { now }, [kind, name]) => {
  const node = findLiving(tables, kind, name);
  return node === undefined ? [] : [nodeColumns(node, now)];
};

export const listNodes: Statement = (tables, { now }) =>
  [...tables.nodes.values()]
    .filter((node) => !node.dead || node.seen_at > now - LISTED)
    .map((node) => nodeColumns(node, now));

export const beatNode: Statement = (tables, { now }, values) => {
  const [id, answered] = values.map(Number) as [number, number];
  const node = tables.nodes.get(id);
  if (node === undefined) {
    const oldest = [...tables.nodes.keys()][0];
    return [{ is_whole: oldest !== undefined && id < oldest, beats: null }];
  }
  const is_whole = node.beats >= answered;
  if (node.dead || !is_whole) return [{ is_whole, beats: null }];
  node.seen_at = now;
  node.beats++;
  return [{ is_whole, beats: node.beats }];
};

export const declareDead: Statement = (tables, _time, values) => {
  const node = tables.nodes.get(Number(values[0]));
  if (node === undefined || node.dead) return [];
  node.dead = true;
  return [{ id: node.id }];
};

export const listHeldRegions: Statement = (tables) =>
  [...tables.held_regions].sort().map((region) => ({ region, held_at: 0, restored: false }));

export const holdRegions: Statement = (tables, _time, values) => {
  const changed = numbers(values[0]).filter((region) => !tables.held_regions.has(region));
  for (const region of changed) tables.held_regions.add(region);
  return changed.sort().map((region) => ({ region }));
};

export const resumeRegions: Statement = (tables, _time, values) =>
  numbers(values[0])
    .sort()
    .filter((region) => tables.held_regions.delete(region))
    .map((region) => ({ region }));

export const setProjectHeld: Statement = (tables, _time, values) => {
  const project = [...tables.projects.values()].find(({ id }) => id === values[0]);
  const flow = project && tables.flows.get(project.no);
  if (flow === undefined) return [];
  flow.held = Boolean(values[1]);
  return [{}];
};

export const listHostLimits: Statement = (tables) =>
  [...tables.host_limits]
    .sort(([one], [other]) => (one < other ? -1 : 1))
    .map(([host, requests]) => ({ host, requests, limited_at: 0 }));

export const setHostLimit: Statement = (tables, _time, values) => {
  tables.host_limits.set(String(values[0]), Number(values[1]));
  return [];
};

export const clearHostLimit: Statement = (tables, _time, values) => {
  const host = String(values[0]);
  return tables.host_limits.delete(host) ? [{ host }] : [];
};

export function hasClockRunEvenly({ clock_watch }: Tables, span: Instant, now: Instant): boolean {
  if (clock_watch === null) return true;
  const { steady_since, seen_at } = clock_watch;
  return steady_since <= now - span && seen_at >= now - UNSEEN && seen_at <= now + LEAP;
}

export const noteClock: Statement = (tables, { now }, values) => {
  const leaptAt = instantOrNull(values[0]);
  const before = tables.clock_watch;
  const isSteady = before !== null && now >= before.seen_at - LEAP && now <= before.seen_at + UNSEEN;
  const known = before === null ? Number.NEGATIVE_INFINITY : isSteady ? before.steady_since : now;
  const steady_since = Math.min(now, Math.max(known, leaptAt ?? known));
  tables.clock_watch = { seen_at: now, steady_since };
  return [{ now: toMs(now), steady_since: toMs(steady_since) }];
};

export const listMiscountedFlows: Statement = (tables) =>
  [...tables.flows.values()].flatMap(({ project_no, in_use }) => {
    const on_wire = [0, 0, 0, 0];
    const count = (project: number, code: number) => {
      if (project === project_no) on_wire[code] = (on_wire[code] ?? 0) + 1;
    };
    for (const row of tables.open_jobs.values())
      if (row.node_id !== null) count(row.project_no, row.environment);
    for (const row of tables.open_deliveries.values())
      if (row.node_id !== null) count(row.project_no, row.environment + 2);
    return on_wire.every((value, code) => value === in_use[code]) ? [] : [{ project_no, in_use, on_wire }];
  });

/** The rows on the wire whose node is dead, or that began before an instant; the oldest first. */
export function lostRows<Row extends { node_id: number | null; started_at: Instant | null; id: string }>(
  tables: Tables,
  rows: Iterable<Row>,
  beganBefore: Instant,
): { row: Row; nodeDead: boolean }[] {
  const lost: { row: Row; nodeDead: boolean }[] = [];
  for (const row of rows) {
    if (row.node_id === null) continue;
    const nodeDead = tables.nodes.get(row.node_id)?.dead ?? true;
    if (nodeDead || (row.started_at ?? 0) < beganBefore) lost.push({ row, nodeDead });
  }
  return lost.sort(
    ({ row: one }, { row: other }) =>
      (one.started_at ?? 0) - (other.started_at ?? 0) || (one.id < other.id ? -1 : 1),
  );
}
