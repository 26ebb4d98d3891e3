import { HEADS } from "../../../../shared/store/queue/flow-gates.ts";
import { type Instant, SECOND, toMs } from "./parameters.ts";
import { type FlowKeyRow, laneKey, type OpenJobRow, type Tables } from "./tables.ts";

/** How the gates of flow keys let attempts start (shared/store/queue/flow-gates.ts, migrations 0025 and 0028). */

const NO_END = 1_000_000;
const STARTS_REMEMBERED = 64;

export const gateOf = (key: string) => `k${key}`;
/** The gate of attempts that have their place and whose key is paused. */
export const holdersGateOf = (key: string) => `p${key}`;
/** Columns by which the rows of a gate are found. */
export type GateScope = Pick<OpenJobRow, "project_no" | "environment">;
export const flowKeyOf = ({ project_no, environment }: GateScope, key: string) =>
  `${project_no}/${environment}/${key}`;

/** A hash of a key. It is not that of Postgres, which no answer depends on. */
export const keyHashOf = (key: string): number => Bun.hash.crc32(key) & 0x7fffffff;

/** The order in which attempts stand at a gate. */
export const byTurn = (one: OpenJobRow, other: OpenJobRow): number =>
  (one.parked_due_at ?? 0) - (other.parked_due_at ?? 0) || (one.id < other.id ? -1 : 1);

export const rowsAtGate = (tables: Tables, { project_no, environment }: GateScope, gate: string) =>
  [...tables.open_jobs.values()].filter(
    (row) => row.gate === gate && row.project_no === project_no && row.environment === environment,
  );

/** The first attempts at a gate, `room` of each region, in the order of the gate. */
export function headsOf(tables: Tables, scope: GateScope, gate: string, room: number): OpenJobRow[] {
  const rows = rowsAtGate(tables, scope, gate).sort(byTurn);
  const counts = new Map<number, number>();
  return rows.filter(({ region }) => {
    const count = (counts.get(region) ?? 0) + 1;
    counts.set(region, count);
    return count <= room;
  });
}

/**
 * Makes the parked heads due, a microsecond apart and not before `notBefore`. The model has no locks of others, so no
 * head is missed.
 */
export function callGate(
  now: Instant,
  heads: readonly OpenJobRow[],
  notBefore: Instant | null = null,
): OpenJobRow[] {
  const called = heads.filter(({ due_at }) => due_at === null);
  for (const [index, row] of called.entries())
    row.due_at = Math.max(now, row.parked_due_at ?? now, notBefore ?? now) + index + 1;
  return called;
}

/** How many attempts of a key's queue are to be in the lane of a region, with `inUse` places in use. */
export function roomOf({ paused, concurrency, rate_count }: FlowKeyRow, inUse: number): number {
  if (paused) return 0;
  const free = concurrency === null ? NO_END : concurrency - inUse;
  return Math.max(Math.min(free, rate_count ?? HEADS, HEADS), 0);
}

export const placesLeft = ({ paused, concurrency, in_use }: FlowKeyRow): number =>
  paused ? 0 : concurrency === null ? NO_END : concurrency - in_use;

const windowOf = ({ rate_seconds }: FlowKeyRow): Instant => (rate_seconds ?? 0) * SECOND;

interface Starts {
  at: Instant;
  n: number;
}

function startsWithin(key: FlowKeyRow, at: Instant): Starts[] {
  return key.started_at
    .map((its, index) => ({ at: its, n: key.started[index] ?? 0 }))
    .filter((starts) => starts.at > at - windowOf(key))
    .map((starts) => ({ ...starts, at: Math.min(starts.at, at) }));
}

export function startsLeft(key: FlowKeyRow, at: Instant): number {
  if (key.rate_count === null) return NO_END;
  return key.rate_count - startsWithin(key, at).reduce((sum, { n }) => sum + n, 0);
}

/** The time at which `count` starts have left the window; null if there are fewer. */
export function startsGoneAt(key: FlowKeyRow, at: Instant, count: number): Instant | null {
  let gone = 0;
  for (const starts of startsWithin(key, at).sort((one, other) => one.at - other.at)) {
    gone += starts.n;
    if (gone >= count) return starts.at + windowOf(key);
  }
  return null;
}

export const windowEnd = (key: FlowKeyRow, at: Instant): Instant => at + windowOf(key);

/** Notes `count` more starts at an instant. Starts in one part of the window are kept as one, at their last instant. */
export function noteStarts(key: FlowKeyRow, at: Instant, count: number): void {
  const { rate_count, rate_seconds } = key;
  const isKept = rate_count !== null && rate_seconds !== null;
  const starts = isKept ? [...startsWithin(key, at), ...(count > 0 ? [{ at, n: count }] : [])] : [];
  const partOf = (its: Instant): bigint | Instant =>
    rate_count !== null && rate_count <= STARTS_REMEMBERED
      ? its
      : (BigInt(its) * BigInt(STARTS_REMEMBERED)) / BigInt(windowOf(key));
  const parts = [...Map.groupBy(starts, (its) => partOf(its.at)).values()]
    .map((part) => ({
      at: Math.max(...part.map((its) => its.at)),
      n: part.reduce((sum, { n }) => sum + n, 0),
    }))
    .sort((one, other) => one.at - other.at);
  key.started_at = parts.map((part) => part.at);
  key.started = parts.map(({ n }) => n);
}

export const anyWaits = ({ waiting }: FlowKeyRow): boolean =>
  waiting.reduce((sum, count) => sum + count, 0) > 0;

/** Called attempts no longer count as waiting. */
export function leaveQueue(key: FlowKeyRow, called: readonly OpenJobRow[]): void {
  for (const { region } of called) key.waiting[region] = (key.waiting[region] ?? 0) - 1;
}

/** The rows for called attempts, each with its place and the shard of its lane; none where the lane has no row. */
export const calledColumns = (tables: Tables, called: readonly OpenJobRow[]) =>
  called.flatMap((row) => {
    const lane = tables.lanes.get(laneKey(row));
    if (lane === undefined) return [];
    const { project_no, environment, region, id, attempt, due_at } = row;
    return [
      { project_no, environment, region, shard: lane.shard, id, attempt, due_at: toMs(due_at as Instant) },
    ];
  });

/** The same rows as arrays, as claims and the emptying of gate_calls answer them; null for none. */
export function calledArrays(tables: Tables, called: readonly OpenJobRow[]): unknown[][] | null {
  const rows = calledColumns(tables, called).map((row) => [
    ...[row.project_no, row.environment, row.region, row.shard, row.id, row.attempt, row.due_at],
  ]);
  return rows.length === 0 ? null : rows;
}
