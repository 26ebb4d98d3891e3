import type { Flow, FlowRate } from "../../../../shared/domain/flow-key.ts";
import { HEADS } from "../../../../shared/store/queue/flow-gates.ts";
import {
  calledArrays,
  callGate,
  flowKeyOf,
  type GateScope,
  gateOf,
  headsOf,
  holdersGateOf,
  leaveQueue,
  placesLeft,
  roomOf,
  startsGoneAt,
  startsLeft,
} from "./gates.ts";
import { type Instant, SECOND, toMsOrNull } from "./parameters.ts";
import type { FlowKeyRow, GateCallRow, JobRow, OpenJobRow, Statement, Tables } from "./tables.ts";

/**
 * The limits of flow keys, their changes, and the calls that are left to their gates
 * (shared/store/queue/given-flows.ts, gate-calls.ts, shared/store/resources/flow-keys.ts).
 */

const NO_END = 1_000_000;
const HOLDERS_MAX = 2_000;
const HASTENED_FROM: Instant = SECOND;

/** The limits of a key that jobs carry. */
interface Given {
  concurrency?: number | undefined;
  rate?: FlowRate | undefined;
}
type Limits = Pick<FlowKeyRow, "concurrency" | "rate_count" | "rate_seconds">;

const newKey = ({ project_no, environment }: GateScope, flow_key: string): FlowKeyRow => ({
  ...{ project_no, environment, flow_key, concurrency: null, rate_count: null, rate_seconds: null },
  ...{ paused: false, pinned: false, in_use: 0, waiting: [0, 0, 0, 0], started_at: [], started: [] },
});

/** The limits of a key after it is given others. A pinned key keeps its own. */
function limitsGiven(key: FlowKeyRow, { concurrency, rate }: Given): Limits {
  if (key.pinned) return key;
  return {
    concurrency: concurrency ?? key.concurrency,
    rate_count: rate?.count ?? key.rate_count,
    rate_seconds: rate?.per_seconds ?? key.rate_seconds,
  };
}

const setLimits = (key: FlowKeyRow, { concurrency, rate_count, rate_seconds }: Limits) =>
  Object.assign(key, { concurrency, rate_count, rate_seconds });

export const callLater = (tables: Tables, scope: GateScope, gate: string) =>
  tables.gate_calls.push({
    ...{ project_no: scope.project_no, environment: scope.environment, region: 0, gate },
    ...{ waiting_change: 0, in_use_change: 0 },
  });

export function findOrAddKey(tables: Tables, scope: GateScope, name: string): FlowKeyRow {
  const place = flowKeyOf(scope, name);
  const key = tables.flow_keys.get(place) ?? newKey(scope, name);
  tables.flow_keys.set(place, key);
  return key;
}

/**
 * Gives the limits of new jobs to their keys. Returns the jobs that the keys keep back. `isNew` tells which jobs come
 * to exist; only these are counted as waiting. If two jobs give the same limit, the last one counts.
 */
export function giveFlows(
  tables: Tables,
  now: Instant,
  jobs: readonly JobRow[],
  isNew: (job: JobRow) => boolean,
): Set<string> {
  const parked = new Set<string>();
  const keyed = jobs.filter(({ flow }) => flow !== null);
  for (const group of Map.groupBy(keyed, (job) => flowKeyOf(job, job.flow?.key ?? "")).values()) {
    const [first] = group;
    if (first?.flow == null) continue;
    const given = {
      concurrency: group.findLast(({ flow }) => flow?.concurrency !== undefined)?.flow?.concurrency,
      rate: group.findLast(({ flow }) => flow?.rate !== undefined)?.flow?.rate,
    };
    const isNewKey = !tables.flow_keys.has(flowKeyOf(first, first.flow.key));
    const key = findOrAddKey(tables, first, first.flow.key);
    const limits = limitsGiven(key, given);
    const isChanged = (["concurrency", "rate_count", "rate_seconds"] as const).some(
      (name) => limits[name] !== key[name],
    );
    if (isChanged && !isNewKey) callLater(tables, key, gateOf(key.flow_key));
    const due = group.filter(({ run_at }) => run_at <= now);
    for (const [region, ofRegion] of Map.groupBy(due, (job) => job.region)) {
      const room = roomForNew(key, limits, region);
      for (const [index, { id }] of ofRegion.sort(byId).entries()) if (index >= room) parked.add(id);
    }
    setLimits(key, limits);
    for (const job of due)
      if (parked.has(job.id) && isNew(job)) key.waiting[job.region] = (key.waiting[job.region] ?? 0) + 1;
  }
  return parked;
}

const byId = (one: JobRow, other: JobRow) => (one.id < other.id ? -1 : 1);

function roomForNew(key: FlowKeyRow, { concurrency, rate_count }: Limits, region: number): number {
  if (key.paused) return 0;
  if (concurrency === null && rate_count === null) return NO_END;
  if ((key.waiting[region] ?? 0) > 0) return 0;
  return Math.min(concurrency === null ? NO_END : concurrency - key.in_use, rate_count ?? HEADS, HEADS);
}

/** The limits of a schedule that was changed hold before it has fired. */
export function giveFlowOfSchedule(tables: Tables, scope: GateScope, flow: Flow): void {
  const key = findOrAddKey(tables, scope, flow.key);
  setLimits(key, limitsGiven(key, flow));
  callLater(tables, key, gateOf(flow.key));
}

/** The columns of a new open job that come from its flow. */
export const flowColumns = (flow: Flow | null, dueAt: Instant) => ({
  flow_key: flow?.key ?? null,
  gate: flow === null ? null : gateOf(flow.key),
  parked_due_at: flow === null ? null : dueAt,
  has_place: null,
});

/** Tells the gate at which a job stands that the job leaves. */
export function leaveGate(tables: Tables, row: OpenJobRow, { isOver = true } = {}): void {
  const { project_no, environment, region, flow_key, gate, due_at, has_place } = row;
  const place = { project_no, environment, region };
  const isParked = due_at === null;
  if (flow_key !== null)
    tables.gate_calls.push({
      ...{ ...place, gate: gateOf(flow_key) },
      waiting_change: isParked && gate?.startsWith("k") ? -1 : 0,
      in_use_change: isOver && has_place ? -1 : 0,
    });
  if (gate?.startsWith("h"))
    tables.gate_calls.push({ ...place, gate, waiting_change: isParked ? -1 : 0, in_use_change: 0 });
}

export const emptyGateCalls: Statement = (tables, { now, clock }) => {
  const [left, taken] = [[] as GateCallRow[], [] as GateCallRow[]];
  for (const row of tables.gate_calls) (row.gate.startsWith("h") ? left : taken).push(row);
  tables.gate_calls = left;
  const called: OpenJobRow[] = [];
  for (const [place, calls] of Map.groupBy(taken, (row) => flowKeyOf(row, row.gate.slice(1)))) {
    const key = tables.flow_keys.get(place);
    if (key === undefined) continue;
    called.push(...emptyCallsOf(tables, key, calls, { now, clock }));
  }
  return [{ next_after: null, is_more_left: false, called: calledArrays(tables, called) }];
};

function emptyCallsOf(
  tables: Tables,
  key: FlowKeyRow,
  calls: readonly GateCallRow[],
  { now, clock }: { now: Instant; clock: Instant },
): OpenJobRow[] {
  const { flow_key } = key;
  const left = startsLeft(key, clock);
  const notBefore = left <= 0 ? startsGoneAt(key, clock, 1 - left) : null;
  key.in_use = Math.max(
    calls.reduce((sum, { in_use_change }) => sum + in_use_change, key.in_use),
    0,
  );
  for (const { region, waiting_change } of calls)
    key.waiting[region] = (key.waiting[region] ?? 0) + waiting_change;
  const hastened = headsOf(tables, key, gateOf(flow_key), HEADS).flatMap((row, index) => {
    const soonest = Math.max(now, row.parked_due_at ?? now, notBefore ?? now);
    return row.due_at !== null && row.due_at > soonest + HASTENED_FROM
      ? [{ row, dueAt: soonest + index + 1 }]
      : [];
  });
  const next = callGate(now, headsOf(tables, key, gateOf(flow_key), roomOf(key, key.in_use)), notBefore);
  for (const { row, dueAt } of hastened) row.due_at = dueAt;
  leaveQueue(key, next);
  key.waiting = key.waiting.map((count) => Math.max(count, 0));
  const isHolders = !key.paused && calls.some(({ gate }) => gate.startsWith("p"));
  const holders = isHolders ? callGate(now, headsOf(tables, key, holdersGateOf(flow_key), HOLDERS_MAX)) : [];
  return [...hastened.map(({ row }) => row), ...next, ...holders];
}

export const changeFlowKey: Statement = (tables, { now }, values) => {
  const [project_no, environment] = values as [number, number];
  const [name, hasConcurrency, concurrency, hasRate, rateCount, rateSeconds, paused, pinned] = values.slice(
    5,
  ) as [
    string,
    boolean,
    number | null,
    boolean,
    number | null,
    number | null,
    boolean | null,
    boolean | null,
  ];
  const key = findOrAddKey(tables, { project_no, environment }, name);
  if (hasConcurrency) key.concurrency = concurrency;
  if (hasRate) Object.assign(key, { rate_count: rateCount, rate_seconds: rateSeconds });
  key.paused = paused ?? key.paused;
  key.pinned = pinned ?? key.pinned;
  callLater(tables, key, gateOf(name));
  callLater(tables, key, holdersGateOf(name));
  const { flow_key, rate_count, rate_seconds, in_use } = key;
  return [
    {
      ...{ flow_key, concurrency: key.concurrency, rate_count, rate_seconds },
      ...{ paused: key.paused, pinned: key.pinned, in_use, waiting: waitingOf(tables, key, now) },
      next_start_at: toMsOrNull(nextStartOf(key, now)),
    },
  ];
};

/** The number of attempts of a key that are parked, plus the due ones in their lanes beyond what the key lets start. */
function waitingOf(tables: Tables, key: FlowKeyRow, now: Instant): number {
  const heads = headsOf(tables, key, gateOf(key.flow_key), HEADS);
  const due = heads.filter(({ due_at, parked_due_at }) => due_at !== null && (parked_due_at ?? now) <= now);
  const free = Math.max(Math.min(placesLeft(key), startsLeft(key, now)), 0);
  return key.waiting.reduce((sum, count) => sum + count, Math.max(due.length - free, 0));
}

/** The time at which the rate of a key lets the next attempt start; null if the rate lets it start now. */
function nextStartOf({ rate_count, rate_seconds, started_at, started }: FlowKeyRow, now: Instant) {
  if (rate_count === null || rate_seconds === null) return null;
  let since = 0;
  for (let index = started.length - 1; index >= 0; index--) {
    since += started[index] ?? 0;
    if (since < rate_count) continue;
    const at = (started_at[index] as Instant) + rate_seconds * SECOND;
    return at > now ? at : null;
  }
  return null;
}
