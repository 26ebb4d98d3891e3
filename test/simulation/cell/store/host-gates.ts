import {
  HOST_DOWN_ATTEMPTS_MIN,
  HOST_DOWN_SECONDS_MIN,
  PROBE_SECONDS,
} from "../../../../shared/domain/host-state.ts";
import { HOSTS_WATCHED } from "../../../../shared/store/database/codes.ts";
import { HOST_CODES } from "../../../../shared/store/queue/host-gates.ts";
import { isWatched, type Met, type Verdict } from "./claims.ts";
import {
  byTurn,
  calledArrays,
  callGate,
  flowKeyOf,
  type GateScope,
  gateOf,
  headsOf,
  rowsAtGate,
} from "./gates.ts";
import { hasNode } from "./keyed-claims.ts";
import {
  type Instant,
  monthOf,
  numbers,
  SECOND,
  texts,
  textsOrNull,
  toMs,
  toMsOrNull,
} from "./parameters.ts";
import { type Refusal, runsLeft } from "./permits.ts";
import type { GateCallRow, OpenJobRow, Statement, StatementTime, Tables, TargetHostRow } from "./tables.ts";

/**
 * Hosts that are down: how claims and settlements judge and change them, and the calls that are left to their gates
 * (shared/store/queue/host-gates.ts, host-calls.ts, shared/store/resources/target-hosts.ts).
 */

const { DOWN, OPENING, BREAKER, HAND } = HOST_CODES;
const RAMP_HEADS = 256;
const DOUBLINGS_MAX = 15;
const OLDEST_OF = 8;
const PROBES_MAX = 8;
const FAILURES_MAX = 30_000;
const PROBE_LATE: Instant = 5 * SECOND;

export const hostGateOf = (host: string) => `h${host}`;
const placeOf = flowKeyOf;

const startsOf = (second: number) => 1 << Math.min(Math.floor(second / 10), DOUBLINGS_MAX);
const secondAt = ({ since }: TargetHostRow, at: Instant) => Math.max(Math.floor((at - since) / SECOND), 0);
const startsLeftIn = (row: TargetHostRow, second: number, more = 0) =>
  startsOf(second) - (row.second === second ? row.started : 0) - more;
const secondAfter = ({ since }: TargetHostRow, second: number): Instant => since + (second + 1) * SECOND;

/** Calls the attempts that the ramp lets start in this second, or else in the next. */
function callInRamp(
  tables: Tables,
  now: Instant,
  row: TargetHostRow,
  second: number,
  left: number,
): OpenJobRow[] {
  const room = Math.min(left > 0 ? left : startsOf(second + 1), RAMP_HEADS);
  const heads = headsOf(tables, row, hostGateOf(row.host), room);
  return callGate(now, heads, left <= 0 ? secondAfter(row, second) : null);
}

interface Called {
  row: OpenJobRow;
  wasParked: boolean;
}

/** Makes the attempt due that has waited longest, of all regions that are not held, whether it is parked or not. */
function callOldest(tables: Tables, now: Instant, host: TargetHostRow, notBefore: Instant | null): Called[] {
  const heads = headsOf(tables, host, hostGateOf(host.host), OLDEST_OF);
  const row = heads.find(({ region }) => !tables.held_regions.has(region));
  if (row === undefined) return [];
  const wasParked = row.due_at === null;
  row.due_at = Math.max(now, notBefore ?? now);
  return [{ row, wasParked }];
}

const countParked = (called: readonly Called[]) => called.filter(({ wasParked }) => wasParked).length;

export const findWatchedTargets: Statement = (tables, _time, values) => {
  const [projects, environments] = [numbers(values[0]), numbers(values[1])];
  return texts(values[3]).map((id, index) => {
    const scope = { project_no: projects[index] ?? 0, environment: environments[index] ?? 0 };
    const isUnwell = [...tables.target_hosts.values()].some(
      (row) =>
        row.state !== null && row.project_no === scope.project_no && row.environment === scope.environment,
    );
    return { target_url: isUnwell ? (tables.jobs.get(id)?.target_url ?? null) : null };
  });
};

/** A host that is down or opening, at which attempts are asked for. */
interface HostState {
  row: TargetHostRow;
  second: number;
  startsLeft: number;
  /** In a ramp: the attempts that are due there, in their order. */
  ids: string[];
  /** Whether a due attempt stands at the host. */
  waits: boolean;
}

/** The verdict of an attempt's host: how it refuses the attempt, null if the attempt passes. */
export interface HostVerdict {
  state: HostState;
  refusal: Refusal | null;
  /** Whether the attempt is the probe from now on. */
  probes: boolean;
}

const mayStart = ({ due, isHeld }: Met<OpenJobRow>) => due && !isHeld;
const dueTimeOf = ({ row }: Met<OpenJobRow>) => row.parked_due_at ?? row.due_at ?? 0;
const byDueTime = (one: Met<OpenJobRow>, other: Met<OpenJobRow>) =>
  dueTimeOf(one) - dueTimeOf(other) || (one.row.id < other.row.id ? -1 : 1);

/** Judges attempts by their hosts that are down or opening. `hosts` are those of the asked attempts, in their order. */
export function judgeByHosts(
  tables: Tables,
  met: readonly Met<OpenJobRow>[],
  hosts: readonly (string | null)[],
  time: StatementTime,
): ReadonlyMap<Met<OpenJobRow>, HostVerdict> {
  const verdicts = new Map<Met<OpenJobRow>, HostVerdict>();
  const named = met.flatMap((item) => {
    const host = hosts[item.asked.n - 1] ?? null;
    const row = host === null ? undefined : tables.target_hosts.get(placeOf(item.row, host));
    return row === undefined || row.state === null ? [] : [{ item, row }];
  });
  for (const [row, items] of Map.groupBy(named, (each) => each.row)) {
    const asked = items.map(({ item }) => item);
    const state = readState(tables, row, asked, time);
    const refused = asked.filter((item) => mayStart(item) && !passesHost(state, item, time)).sort(byDueTime);
    const [first] = refused;
    const needsProbe = row.state === DOWN && row.by === BREAKER && row.probe === null;
    for (const item of asked) {
      const probes = needsProbe && item === first;
      const isRefused = refused.includes(item);
      verdicts.set(item, { state, probes, refusal: isRefused ? refusalOf(state, item, probes, time) : null });
    }
  }
  return verdicts;
}

function readState(
  tables: Tables,
  row: TargetHostRow,
  asked: readonly Met<OpenJobRow>[],
  { now, clock }: StatementTime,
): HostState {
  const second = secondAt(row, clock);
  const gate = hostGateOf(row.host);
  const there = row.state === OPENING ? headsOf(tables, row, gate, RAMP_HEADS + asked.length) : [];
  const waiting = there.map((its) => ({ id: its.id, at: its.parked_due_at ?? 0, region: its.region }));
  const others = asked
    .filter((item) => row.state === OPENING && mayStart(item) && item.row.gate !== gate)
    .map((item) => ({ id: item.row.id, at: dueTimeOf(item), region: item.row.region }));
  const isDue = ({ at, region }: { at: Instant; region: number }) =>
    at <= now && !tables.held_regions.has(region);
  const due = [...waiting, ...others].filter(isDue);
  return {
    ...{ row, second, startsLeft: startsLeftIn(row, second) },
    ids: due.sort((one, other) => one.at - other.at || (one.id < other.id ? -1 : 1)).map(({ id }) => id),
    waits: waiting.some(isDue),
  };
}

function passesHost(
  { row, ids, startsLeft, waits }: HostState,
  item: Met<OpenJobRow>,
  { now }: StatementTime,
): boolean {
  if (row.state === DOWN)
    return item.row.id === row.probe && row.next_probe_at !== null && row.next_probe_at <= now;
  const rank = ids.indexOf(item.row.id) + 1;
  return (rank > 0 && rank <= Math.min(startsLeft, RAMP_HEADS)) || (!waits && row.parked === 0);
}

function refusalOf(
  { row, second, ids }: HostState,
  item: Met<OpenJobRow>,
  probes: boolean,
  { now }: StatementTime,
): Refusal {
  if (probes || item.row.id === row.probe)
    return { kind: "host_put_off", until: Math.max(row.next_probe_at ?? now, now) };
  const isInRamp = row.state === OPENING && ids.includes(item.row.id);
  return isInRamp && item.row.gate === hostGateOf(row.host)
    ? { kind: "host_put_off", until: secondAfter(row, second) }
    : { kind: "host_parked" };
}

export interface VerdictAtHost extends Verdict<OpenJobRow> {
  byHost: HostVerdict | null;
}
const isOfHost = (kind: string) => kind.startsWith("host");

/** Puts the attempts that their host refused at the host's gate. Others of their flow key may pass. */
export function turnAway(tables: Tables, verdicts: readonly VerdictAtHost[]): void {
  const left = new Map<string, GateScope & { gate: string }>();
  for (const { kind, byHost, met } of verdicts) {
    if (byHost === null || !isOfHost(kind)) continue;
    const { row } = met;
    const { refusal, state } = byHost;
    if (row.gate?.startsWith("k")) {
      const { project_no, environment, flow_key } = row;
      left.set(placeOf(row, flow_key ?? ""), { project_no, environment, gate: gateOf(flow_key ?? "") });
    }
    Object.assign(row, {
      ...{ parked_due_at: row.parked_due_at ?? row.due_at, parked_host: null },
      due_at: refusal?.kind === "host_put_off" ? refusal.until : null,
      gate: hostGateOf(state.row.host),
    });
  }
  for (const scope of left.values()) addCall(tables, scope, scope.gate);
}

const addCall = (tables: Tables, { project_no, environment }: GateScope, gate: string) =>
  tables.gate_calls.push({ project_no, environment, region: 0, gate, waiting_change: 0, in_use_change: 0 });

/** Notes granted and refused attempts at their hosts. Returns the attempts that become due there. */
export function callHosts(
  tables: Tables,
  verdicts: readonly VerdictAtHost[],
  { now }: StatementTime,
): OpenJobRow[] {
  const due = verdicts.filter(({ byHost, met }) => byHost !== null && met.due);
  return [...Map.groupBy(due, ({ byHost }) => byHost?.state as HostState)].flatMap(([state, items]) => {
    const { row, second } = state;
    const starts = items.filter(({ taken }) => taken).length;
    const parked = items.filter(({ kind }) => kind === "host_parked").length;
    const stay = items.filter(({ kind, taken }) => kind === "host_put_off" || (!taken && !isOfHost(kind)));
    const probe = items.find(({ byHost, kind }) => byHost?.probes && isOfHost(kind))?.met.row.id ?? null;
    const isLost = items.some(
      ({ byHost, kind }) =>
        row.state === DOWN && byHost?.refusal === null && (kind === "parked" || kind === "put_off"),
    );
    const inRamp =
      row.state === OPENING && row.parked + parked > 0
        ? callInRamp(tables, now, row, second, state.startsLeft - starts)
        : [];
    const called = [
      ...inRamp.map((its) => ({ row: its, wasParked: true })),
      ...(isLost ? callOldest(tables, now, row, row.next_probe_at) : []),
    ];
    row.started = (row.second === second ? row.started : 0) + starts;
    row.second = second;
    row.parked += parked - countParked(called);
    row.probe = isLost ? (called[0]?.row.id ?? null) : (row.probe ?? probe);
    const isEmpty = row.parked === 0 && called.length === 0 && stay.length === 0;
    if (row.state === OPENING && isEmpty && starts >= state.ids.length)
      Object.assign(row, { state: null, by: null });
    return called.map((its) => its.row);
  });
}

/** An attempt that was settled, and what it found at its host. */
export interface MetHost extends GateScope {
  id: string;
  startedAt: Instant;
  endedAt: Instant;
  host: string | null;
  nobody: boolean | null;
}

/** The hosts that a settlement has to look at: those of its attempts, and those whose probe may end. */
export function readHosts(
  tables: Tables,
  outcomes: readonly (GateScope & { n: number; id: string })[],
  values: readonly unknown[],
): { hosts: ReadonlyMap<string, TargetHostRow>; hostOf(n: number): Pick<MetHost, "host" | "nobody"> } {
  const [names, nobodies] = [textsOrNull(values[13]), textsOrNull(values[14])];
  const hosts = new Map<string, TargetHostRow>();
  for (const outcome of outcomes.filter(({ project_no }) => isWatched(tables, project_no))) {
    const host = names[outcome.n - 1] ?? null;
    if (host !== null) hosts.set(placeOf(outcome, host), findHost(tables, outcome, host));
    for (const row of tables.target_hosts.values())
      if (row.probe === outcome.id && isSameScope(row, outcome)) hosts.set(placeOf(row, row.host), row);
  }
  const hostOf = (n: number) => {
    const nobody = nobodies[n - 1] ?? null;
    return { host: names[n - 1] ?? null, nobody: nobody === null ? null : nobody === "true" };
  };
  return { hosts, hostOf };
}

const isSameScope = (one: GateScope, other: GateScope) =>
  one.project_no === other.project_no && one.environment === other.environment;

const findHost = (tables: Tables, { project_no, environment }: GateScope, host: string): TargetHostRow =>
  tables.target_hosts.get(placeOf({ project_no, environment }, host)) ?? {
    ...{ project_no, environment, host, since: null as never, next_probe_at: null, failing_since: null },
    ...{
      parked: 0,
      second: 0,
      started: 0,
      state: null,
      by: null,
      failures: 0,
      probe_seconds: 0,
      probe: null,
    },
  };

/** A host that went down or came up, for the history. */
export interface HostChange extends GateScope {
  host: string;
  isDown: boolean;
  at: number;
}

/**
 * Counts the answers and failures at hosts, in the order of settlement. Returns the attempts that become due there, and
 * the hosts that went down or came up.
 */
export function watchHosts(
  tables: Tables,
  hosts: ReadonlyMap<string, TargetHostRow>,
  attempts: readonly MetHost[],
  now: Instant,
): { called: OpenJobRow[]; changes: HostChange[] } {
  const called: OpenJobRow[] = [];
  const changes: HostChange[] = [];
  for (const [place, row] of hosts) {
    const own = attempts.filter((attempt) => isSameScope(attempt, row));
    const there = own.filter(({ host, id }) => host === row.host || (row.probe !== null && id === row.probe));
    const lastAnswer = own.findLastIndex(({ host, nobody }) => host === row.host && nobody === false);
    const failed = there.filter(({ nobody }) => nobody === true);
    const after = failed.filter((attempt) => own.indexOf(attempt) > lastAnswer);
    const hasAnswered = there.some(({ nobody }) => nobody === false);
    const failures = Math.min(hasAnswered ? after.length : row.failures + failed.length, FAILURES_MAX);
    const firstOf = (some: readonly MetHost[]) =>
      some.length === 0 ? null : Math.min(...some.map(({ startedAt }) => startedAt));
    const failingSince = hasAnswered
      ? firstOf(after)
      : row.failures === 0
        ? firstOf(failed)
        : row.failing_since;
    const probes = there.filter(({ id }) => id === row.probe);
    const hasMet = probes.some(({ nobody }) => nobody === false);
    const isKnown = probes.some(({ nobody }) => nobody !== null);
    const isDown = row.state === DOWN;
    const goesUp = isDown && hasMet;
    const probesAgain = isDown && probes.length > 0 && !hasMet;
    const goesDown =
      !isDown &&
      failures >= HOST_DOWN_ATTEMPTS_MIN &&
      failingSince !== null &&
      failingSince <= Math.max(...after.map(({ endedAt }) => endedAt)) - HOST_DOWN_SECONDS_MIN * SECOND &&
      tables.projects.get(row.project_no)?.park_failing_hosts === true;
    const isSame = failures === row.failures && failingSince === row.failing_since;
    if (!goesUp && !goesDown && !probesAgain && isSame) continue;
    const doubled = Math.min(row.probe_seconds * 2, PROBE_SECONDS.max);
    const probeSeconds = goesDown
      ? PROBE_SECONDS.first
      : probesAgain && isKnown
        ? doubled
        : row.probe_seconds;
    const nextProbeAt = now + probeSeconds * SECOND;
    const opening = goesUp ? callGate(now, headsOf(tables, row, hostGateOf(row.host), 1)) : [];
    const next = [
      ...opening.map((its) => ({ row: its, wasParked: true })),
      ...(probesAgain || (goesDown && row.parked > 0) ? callOldest(tables, now, row, nextProbeAt) : []),
    ];
    called.push(...next.map((its) => its.row));
    const changesState = goesUp || goesDown;
    const state = goesDown ? DOWN : goesUp ? (row.parked > 0 ? OPENING : null) : row.state;
    const keepsRamp = state !== null && state === row.state;
    tables.target_hosts.set(place, row);
    Object.assign(row, {
      since: changesState ? now : (row.since ?? now),
      next_probe_at: goesDown || probesAgain ? nextProbeAt : goesUp ? null : row.next_probe_at,
      failing_since: changesState ? null : failingSince,
      parked: row.parked - countParked(next),
      ...(keepsRamp ? {} : { second: 0, started: 0 }),
      ...{ state, by: changesState ? BREAKER : row.by, failures: changesState ? 0 : failures },
      probe_seconds: probeSeconds,
      probe: goesUp ? null : goesDown || probesAgain ? (next[0]?.row.id ?? null) : row.probe,
    });
    const { project_no, environment, host } = row;
    if (changesState) changes.push({ project_no, environment, host, isDown: goesDown, at: toMs(now) });
  }
  return { called, changes };
}

export const emptyHostCalls: Statement = (tables, { now, clock }) => {
  const [left, taken] = [[] as GateCallRow[], [] as GateCallRow[]];
  for (const call of tables.gate_calls) (call.gate.startsWith("h") ? taken : left).push(call);
  tables.gate_calls = left;
  const called: OpenJobRow[] = [];
  for (const [place, calls] of Map.groupBy(taken, (call) => placeOf(call, call.gate.slice(1)))) {
    const row = tables.target_hosts.get(place);
    if (row === undefined || row.state === null) continue;
    const change = calls.reduce((sum, { waiting_change }) => sum + waiting_change, 0);
    const second = secondAt(row, clock);
    const startsLeft = startsLeftIn(row, second);
    const probe = findProbe(tables, row);
    const probeGoes = probe !== null && (probe.node_id !== null || isSent(tables, probe, now));
    const needsProbe = row.state === DOWN && row.by === BREAKER && !probeGoes;
    const next: Called[] = [
      // The attempt that was to be the next probe when the host was opened by hand.
      ...(row.state === OPENING && startsLeft > 0 ? callOldest(tables, now, row, null) : []),
      ...(row.state === OPENING
        ? callInRamp(tables, now, row, second, startsLeft).map((its) => ({ row: its, wasParked: true }))
        : []),
      ...(needsProbe ? callProbe(tables, now, row, probe !== null) : []),
    ];
    row.parked = Math.max(row.parked + change - countParked(next), 0);
    if (row.state === DOWN && !probeGoes) row.probe = next[0]?.row.id ?? probe?.id ?? null;
    const isThere = headsOf(tables, row, hostGateOf(row.host), 1).length > 0;
    if (row.state === OPENING && row.parked === 0 && !isThere) row.state = null;
    called.push(...next.map((its) => its.row));
  }
  return [{ next_after: null, is_more_left: false, called: calledArrays(tables, called) }];
};

/** The probe that is on the wire, or owed in a region that is not held. */
function findProbe(tables: Tables, row: TargetHostRow): OpenJobRow | null {
  const probe = row.probe === null ? undefined : tables.open_jobs.get(row.probe);
  if (probe === undefined || !isSameScope(probe, row)) return null;
  const isInLane = probe.gate === hostGateOf(row.host) && probe.due_at !== null;
  return probe.node_id !== null || (isInLane && !tables.held_regions.has(probe.region)) ? probe : null;
}

/** Whether a delivery node sends the attempt, and the month has a run for it. */
function isSent(tables: Tables, { project_no, region, run_id }: OpenJobRow, now: Instant): boolean {
  const flow = tables.flows.get(project_no);
  const hasQuota = flow !== undefined && (runsLeft(flow, monthOf(now)) ?? 1) > 0;
  return hasNode(tables, region, now) && (hasQuota || run_id !== null);
}

/** Makes the oldest attempt due that is sent. If there is none, and no probe either, makes the oldest due. */
function callProbe(tables: Tables, now: Instant, host: TargetHostRow, hasProbe: boolean): Called[] {
  const gate = hostGateOf(host.host);
  const flow = tables.flows.get(host.project_no);
  const isSpent = flow !== undefined && (runsLeft(flow, monthOf(now)) ?? 1) <= 0;
  const byHand = rowsAtGate(tables, host, gate)
    .filter(({ run_id }) => isSpent && run_id !== null)
    .sort((one, other) => ((one.run_id ?? "") < (other.run_id ?? "") ? -1 : 1))
    .slice(0, PROBES_MAX);
  const heads = [...headsOf(tables, host, gate, PROBES_MAX), ...byHand]
    .filter(({ region }) => !tables.held_regions.has(region))
    .sort(byTurn);
  const row = heads.find((its) => isSent(tables, its, now)) ?? (hasProbe ? undefined : heads[0]);
  if (row === undefined) return [];
  const wasParked = row.due_at === null;
  row.due_at = Math.max(now, host.next_probe_at ?? now);
  return [{ row, wasParked }];
}

export const lookAtHosts: Statement = (tables, { now }) => {
  for (const row of tables.target_hosts.values()) {
    const isLate =
      row.state === DOWN &&
      row.by === BREAKER &&
      row.next_probe_at !== null &&
      row.next_probe_at < now - PROBE_LATE &&
      (row.parked > 0 || row.probe !== null);
    if (row.state === OPENING || isLate) addCall(tables, row, hostGateOf(row.host));
  }
  return [];
};

export const openLeftHosts: Statement = (tables, { now }) => {
  for (const row of tables.target_hosts.values()) {
    const isParking = tables.projects.get(row.project_no)?.park_failing_hosts === true;
    if (row.state !== DOWN || row.by !== BREAKER || isParking) continue;
    Object.assign(row, NO_PROBE, { state: OPENING, since: now, second: 0, started: 0 });
    addCall(tables, row, hostGateOf(row.host));
  }
  return [];
};

export const setWatched: Statement = (tables, _time, [projectNo]) => {
  const flow = tables.flows.get(Number(projectNo));
  if (flow !== undefined) flow.subscriptions |= HOSTS_WATCHED;
  return [];
};

const standing = (row: TargetHostRow, now: Instant) => ({
  ...{ host: row.host, state: row.state, by: row.by, since: toMs(row.since) },
  parked: row.parked + (row.probe !== null && row.next_probe_at !== null && row.next_probe_at > now ? 1 : 0),
  next_probe_at: toMsOrNull(row.next_probe_at),
});

const NO_PROBE = { next_probe_at: null, probe: null, failures: 0, failing_since: null };

export const parkHost: Statement = (tables, { now }, values) => {
  const [project_no, environment, host] = values as [number, number, string];
  const row = findHost(tables, { project_no, environment }, host);
  if (row.state !== DOWN || row.by !== HAND) {
    const since = row.state === DOWN ? row.since : now;
    tables.target_hosts.set(
      placeOf(row, host),
      Object.assign(row, NO_PROBE, { state: DOWN, by: HAND, since }),
    );
  }
  return [standing(row, now)];
};

export const openHost: Statement = (tables, { now }, values) => {
  const [project_no, environment, host] = values as [number, number, string];
  const row = tables.target_hosts.get(placeOf({ project_no, environment }, host));
  if (row === undefined || row.state === null)
    return [{ host, state: OPENING, by: HAND, since: toMs(now), parked: 0, next_probe_at: null }];
  if (row.state === DOWN) {
    Object.assign(row, NO_PROBE, { state: OPENING, by: HAND, since: now, second: 0, started: 0 });
    addCall(tables, row, hostGateOf(host));
  }
  return [standing(row, now)];
};

/** The number of attempts that are parked at a host's gate. */
export const countParkedAt = (tables: Tables, row: TargetHostRow): number =>
  [...tables.open_jobs.values()].filter(
    (its) => its.gate === hostGateOf(row.host) && its.due_at === null && isSameScope(its, row),
  ).length;
