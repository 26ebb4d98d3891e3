import { HEADS } from "../../../../shared/store/queue/flow-gates.ts";
import {
  type Asked,
  byProject,
  grant,
  isLiving,
  isOwed,
  judge,
  type Met,
  meet,
  quotaOf,
  readAsked,
  readOrdinary,
  takeOrdinary,
} from "./claims.ts";
import {
  anyWaits,
  byTurn,
  calledArrays,
  callGate,
  flowKeyOf,
  gateOf,
  headsOf,
  holdersGateOf,
  keyHashOf,
  leaveQueue,
  noteStarts,
  placesLeft,
  roomOf,
  rowsAtGate,
  startsGoneAt,
  startsLeft,
  windowEnd,
} from "./gates.ts";
import { callHosts, judgeByHosts, turnAway, type VerdictAtHost } from "./host-gates.ts";
import { type Instant, SECOND, textsOrNull } from "./parameters.ts";
import type { Refusal } from "./permits.ts";
import {
  type FlowKeyRow,
  type OpenJobRow,
  rowAt,
  type Statement,
  type StatementTime,
  type Tables,
} from "./tables.ts";

/**
 * Claims of attempts that pass gates, and how they judge and change the gates of flow keys
 * (shared/store/queue/flow-gates.ts, claim-keyed.ts).
 */

const TURN_MS = { min: 100, max: 1_000 };
const MS: Instant = 1_000;
const UNSEEN: Instant = 10 * SECOND;

/** A key at which attempts are asked for, with the first of its queue. */
interface KeyState {
  key: FlowKeyRow;
  free: number;
  startsLeft: number;
  room: number;
  /** The rank of each of the first attempts: over all regions among those that could start, and within its region. */
  ranks: ReadonlyMap<string, { rank: number | null; regionRank: number }>;
}

/** The verdict of an attempt's key: how it refuses the attempt, null if the attempt passes. */
interface KeyVerdict {
  state: KeyState;
  refusal: Refusal | null;
}

const isLimited = ({ concurrency, rate_count, paused }: FlowKeyRow) =>
  concurrency !== null || rate_count !== null || paused;

/**
 * The keys of the asked jobs of one project, also of jobs whose attempts are no longer owed. `fromHosts` are the
 * attempts that stand at the gates of hosts and may pass there now.
 */
function readKeys(
  tables: Tables,
  asked: readonly Asked[],
  fromHosts: readonly OpenJobRow[],
  time: StatementTime,
): ReadonlyMap<string, KeyState> {
  const keyed = asked.flatMap((item) => {
    const key = rowAt(tables.open_jobs, item, item.id)?.flow_key ?? null;
    const row = key === null ? undefined : tables.flow_keys.get(flowKeyOf(item, key));
    return row === undefined ? [] : [{ item, key: row }];
  });
  const states = [...Map.groupBy(keyed, ({ key }) => key)].map(
    ([key, items]) =>
      [
        flowKeyOf(key, key.flow_key),
        readState(
          tables,
          key,
          items.map(({ item }) => item),
          fromHosts.filter((row) => row.flow_key === key.flow_key && row.environment === key.environment),
          time,
        ),
      ] as const,
  );
  return new Map(states);
}

function readState(
  tables: Tables,
  key: FlowKeyRow,
  asked: readonly Asked[],
  fromHosts: readonly OpenJobRow[],
  { now, clock }: StatementTime,
): KeyState {
  const regions = new Set(asked.map(({ region }) => region));
  const ownHeads = isLimited(key) ? headsOf(tables, key, gateOf(key.flow_key), HEADS + asked.length) : [];
  const heads = isLimited(key) ? [...ownHeads, ...fromHosts].sort(byTurn) : [];
  const regionRanks = new Map<number, number>();
  let rank = 0;
  const ranks = heads.map((row) => {
    const regionRank = (regionRanks.get(row.region) ?? 0) + 1;
    regionRanks.set(row.region, regionRank);
    const canStart =
      (row.parked_due_at ?? 0) <= now &&
      !tables.held_regions.has(row.region) &&
      (regions.has(row.region) || hasNode(tables, row.region, now));
    if (canStart) rank++;
    return [row.id, { rank: canStart ? rank : null, regionRank }] as const;
  });
  return {
    key,
    free: placesLeft(key),
    startsLeft: startsLeft(key, clock),
    room: roomOf(key, key.in_use),
    ranks: new Map(ranks),
  };
}

/** Whether a delivery node of the region has given a sign of life of late. */
export const hasNode = (tables: Tables, region: number, now: Instant): boolean =>
  [...tables.nodes.values()].some(
    ({ kind, dead, regions, seen_at }) =>
      kind === "delivery" && !dead && regions.includes(region) && seen_at > now - UNSEEN,
  );

/** Judges attempts by their keys. An attempt that has its place asks only for a start, before the others. */
function judgeByKeys(
  states: ReadonlyMap<string, KeyState>,
  met: readonly Met<OpenJobRow>[],
  passesHost: (item: Met<OpenJobRow>) => boolean,
  { now, clock }: StatementTime,
): ReadonlyMap<Met<OpenJobRow>, KeyVerdict> {
  const verdicts = new Map<Met<OpenJobRow>, KeyVerdict>();
  const turnMs = (at: Instant, { parked_due_at }: OpenJobRow): number =>
    Math.max(TURN_MS.min, Math.min(Math.round((at - (parked_due_at ?? at)) / (10 * MS)), TURN_MS.max));
  const keyed = met.flatMap((item) => {
    const { flow_key } = item.row;
    const state = flow_key === null ? undefined : states.get(flowKeyOf(item.row, flow_key));
    return state === undefined ? [] : [{ item, state, asks: item.due && !item.isHeld && passesHost(item) }];
  });
  for (const [state, items] of Map.groupBy(keyed, (each) => each.state)) {
    const holders = items.filter(({ asks, item }) => asks && item.row.has_place);
    const inOrder = holders.map(({ item }) => item.row).sort(byTurn);
    for (const { item, asks } of items) {
      const { row } = item;
      const { rank = null, regionRank = null } = state.ranks.get(row.id) ?? {};
      const mayPlace = row.has_place === true || (rank !== null && rank <= state.free);
      const startPlace = row.has_place
        ? inOrder.indexOf(row) + 1
        : (rank ?? Number.POSITIVE_INFINITY) + holders.length;
      const mayStart = !state.key.paused && mayPlace && startPlace <= state.startsLeft;
      const passes = !asks || !isLimited(state.key) || mayStart;
      const stays = row.has_place === true || (regionRank !== null && regionRank <= state.room);
      const goneAt = startsGoneAt(state.key, clock, startPlace - state.startsLeft);
      const until = mayPlace ? (goneAt ?? windowEnd(state.key, clock)) : now + turnMs(now, row) * MS;
      const parks = state.key.paused || !stays;
      const refusal: Refusal = parks ? { kind: "parked" } : { kind: "put_off", until };
      verdicts.set(item, { state, refusal: passes ? null : refusal });
    }
  }
  return verdicts;
}

interface KeyedVerdict extends VerdictAtHost {
  byKey: KeyVerdict | null;
  /** Whether the attempt had its place before. */
  hadPlace: boolean;
}

/** Sets aside the attempts that did not pass. */
function putOff(verdicts: readonly KeyedVerdict[]): void {
  for (const { kind, byKey, hadPlace, met } of verdicts) {
    if (kind !== "parked" && kind !== "put_off") continue;
    const { row } = met;
    const until = byKey?.refusal?.kind === "put_off" ? byKey.refusal.until : null;
    const key = row.flow_key ?? "";
    const ofHolder = until === null ? holdersGateOf(key) : null;
    Object.assign(row, { due_at: until, parked_host: null, gate: hadPlace ? ofHolder : gateOf(key) });
  }
}

/** An attempt that did not pass, and the gate that refused it. */
export interface Refused {
  id: string;
  by: "host" | "pause" | "rate" | "key";
  isParked: boolean;
}

function refusedOf({ byKey, kind, met: { row } }: KeyedVerdict): Refused[] {
  const isParked = kind.endsWith("parked");
  if (kind.startsWith("host")) return [{ id: row.id, by: "host", isParked }];
  if (byKey === null || (kind !== "parked" && kind !== "put_off")) return [];
  const { rate_count, paused } = byKey.state.key;
  return [{ id: row.id, by: paused ? "pause" : rate_count === null ? "key" : "rate", isParked }];
}

/** Notes granted and parked attempts in their keys. Returns the attempts that the keys let start next. */
function passKeys(
  tables: Tables,
  verdicts: readonly KeyedVerdict[],
  { now, clock }: StatementTime,
): OpenJobRow[] {
  const keyed = verdicts.filter((verdict) => verdict.byKey !== null);
  return [...Map.groupBy(keyed, ({ byKey }) => byKey?.state as KeyState)].flatMap(([state, items]) => {
    const { key } = state;
    const taken = items.filter((verdict) => verdict.taken);
    const places = taken.filter(({ hadPlace }) => !hadPlace).length;
    const parks = items.some(({ kind }) => kind === "parked");
    const mayCall = parks || (anyWaits(key) && (state.free > HEADS || key.rate_count !== null));
    const notBefore =
      taken.length >= state.startsLeft ? startsGoneAt(key, clock, taken.length - state.startsLeft + 1) : null;
    const heads = mayCall ? headsOf(tables, key, gateOf(key.flow_key), roomOf(key, key.in_use + places)) : [];
    const called = callGate(now, heads, notBefore);
    key.in_use += places;
    for (const { kind, hadPlace, region } of items)
      if (kind === "parked" && !hadPlace) key.waiting[region] = (key.waiting[region] ?? 0) + 1;
    leaveQueue(key, called);
    noteStarts(key, clock, taken.length);
    return called;
  });
}

/**
 * `refused` of the first row tells the history of attempts that did not pass; Postgres answers no such column, and the
 * product reads none.
 */
export const claimWhole: Statement = (tables, time, values) => {
  const nodeId = Number(values[0]);
  if (!isLiving(tables, nodeId)) return [];
  const asked = readAsked(values);
  const hosts = textsOrNull(values[7], asked.length);
  const called: OpenJobRow[] = [];
  const refused: Refused[] = [];
  const answers = byProject(meet(tables, tables.open_jobs, asked, nodeId, time)).flatMap((met) => {
    const byHosts = judgeByHosts(tables, met, hosts, time);
    const passesHost = (item: Met<OpenJobRow>) => byHosts.get(item)?.refusal == null;
    const fromHosts = met
      .filter((item) => item.due && !item.isHeld && passesHost(item))
      .map(({ row }) => row)
      .filter(({ gate, has_place }) => gate?.startsWith("h") && !has_place);
    const ofProject = asked.filter(({ project_no }) => project_no === met[0]?.asked.project_no);
    const byKeys = judgeByKeys(readKeys(tables, ofProject, fromHosts, time), met, passesHost, time);
    const refusalOf = (item: Met<OpenJobRow>) =>
      byHosts.get(item)?.refusal ?? byKeys.get(item)?.refusal ?? null;
    const verdicts = judge(met, 0, quotaOf(met, time), time, refusalOf).map((verdict) => ({
      ...verdict,
      byHost: byHosts.get(verdict.met) ?? null,
      byKey: byKeys.get(verdict.met) ?? null,
      hadPlace: verdict.met.row.has_place === true,
    }));
    const granted = grant(tables, time, nodeId, verdicts);
    turnAway(tables, verdicts);
    putOff(verdicts);
    refused.push(...verdicts.flatMap(refusedOf));
    called.push(...passKeys(tables, verdicts, time), ...callHosts(tables, verdicts, time));
    return granted;
  });
  return [{ n: 0, number: 0, called: calledArrays(tables, called), refused }, ...answers];
};

export const claimKeyed: Statement = (tables, time, values) => {
  const nodeId = Number(values[0]);
  const items = readOrdinary(tables, time, values).map((asked) => ({
    asked,
    row: rowAt(tables.open_jobs, asked, asked.id),
  }));
  const isGone = ({ asked: { attempt }, row }: (typeof items)[number]) =>
    row === undefined ||
    row.attempt > attempt ||
    (row.attempt === attempt && row.node_id !== null && row.node_id !== nodeId);
  const gone = items.filter(isGone).map(({ asked }) => asked.n);
  const met = items.flatMap(({ asked, row }) => {
    const key = row?.flow_key == null ? undefined : tables.flow_keys.get(flowKeyOf(row, row.flow_key));
    if (row === undefined || key === undefined || !isOpenTo(key)) return [];
    const isAtGate = row.gate === gateOf(key.flow_key) && row.parked_host === null;
    if (!isAtGate || !isOwed(row, asked, time.now)) return [];
    return [{ asked, row, key, ...judgeByPlaces(tables, row, key) }];
  });
  const started = met.filter(({ starts }) => starts);
  const parked = met.filter(({ parks }) => parks);
  const answers = takeOrdinary(tables, time, nodeId, started);
  const called: OpenJobRow[] = [];
  for (const { row, key } of parked) {
    row.due_at = null;
    key.waiting[row.region] = (key.waiting[row.region] ?? 0) + 1;
  }
  for (const [key, taken] of Map.groupBy([...started, ...parked], (each) => each.key)) {
    key.in_use += taken.filter(({ starts }) => starts).length;
    noteStarts(key, time.clock, 0);
    const isCalled = taken.some(({ parks }) => parks) && key.in_use < (key.concurrency ?? 0);
    const room = isCalled ? roomOf(key, key.in_use) : 0;
    const calledOfKey = callGate(time.now, headsOf(tables, key, gateOf(key.flow_key), room));
    leaveQueue(key, calledOfKey);
    called.push(...calledOfKey);
  }
  const rows = calledArrays(tables, called);
  return [
    ...answers.map((answer, index) => {
      const { flow_key = "", concurrency = null } = started[index]?.key ?? {};
      const places = { key_hash: keyHashOf(flow_key), key_places: concurrency };
      return { ...answer, ...places, is_granted: true, called: null };
    }),
    ...[...parked.map(({ asked }) => asked.n), ...gone].map((n) => ({ n, is_granted: false, called: null })),
    ...(rows === null ? [] : [{ n: 0, is_granted: false, called: rows }]),
  ];
};

/** Whether the short way may take attempts of a key: only free places decide, and it would have to call none. */
function isOpenTo({ concurrency, in_use, rate_count, paused, waiting }: FlowKeyRow): boolean {
  if (rate_count !== null || paused) return false;
  const isScarce = concurrency !== null && concurrency - in_use <= HEADS;
  return isScarce || waiting.every((count) => count === 0);
}

/**
 * Whether the key's free places let an attempt start, by its place in the queue over all regions; if not, whether it parks, by
 * its place in the queue of its region.
 */
function judgeByPlaces(
  tables: Tables,
  row: OpenJobRow,
  key: FlowKeyRow,
): { starts: boolean; parks: boolean } {
  if (key.concurrency === null) return { starts: true, parks: false };
  const free = key.concurrency - key.in_use;
  const before = rowsAtGate(tables, row, gateOf(key.flow_key)).filter((other) => byTurn(other, row) < 0);
  const starts = before.length < free;
  return { starts, parks: !starts && before.filter(({ region }) => region === row.region).length >= free };
}
