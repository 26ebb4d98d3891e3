import { type Instant, monthAfter, monthOf, SECOND, toMs } from "./parameters.ts";
import type { FlowRow } from "./tables.ts";

/** The order in which a project's permits are granted (shared/store/queue/permits.ts). */

const CLASSES = [0, 1, 2, 3] as const;
const CALLED: Instant = 250_000;
const STATEMENT_TIMEOUT: Instant = 5 * SECOND;

export const freeOf = (flow: FlowRow): number =>
  flow.concurrency - flow.in_use.reduce((sum, count) => sum + count, 0);

/** The classes that were called and have not come yet, as bits. */
function calledOf({ called_at }: FlowRow, now: Instant): number {
  let bits = 0;
  for (const code of CLASSES) {
    const at = called_at[code];
    if (at > now - CALLED && at < now + STATEMENT_TIMEOUT) bits |= 1 << code;
  }
  return bits;
}

/** For how many more milliseconds permits are kept for the class that was called last. */
export function keptMsOf({ called_at }: FlowRow, now: Instant): number {
  const lastAt = Math.max(now - CALLED, ...called_at);
  return toMs(Math.min(CALLED - (now - lastAt), CALLED));
}

const turnOf = (flow: FlowRow, code: number): number =>
  ((code - flow.last_class + 3) % 4) - 4 * (flow.in_use[code] ?? 0);

/** An attempt that asks for a permit of its project. */
export interface Candidate {
  n: number;
  class: number;
  region: number;
  wants: boolean;
}

export interface Placed {
  place: number;
  placeKept: number;
}

/** The places of one project's candidates in the order of their turns, apart for those that want a permit or do not. */
export function placesOf(flow: FlowRow, candidates: readonly Candidate[], now: Instant): Map<number, Placed> {
  const called = calledOf(flow, now);
  let present = 0;
  for (const { wants, class: code } of candidates) if (wants) present |= 1 << code;
  const places = new Map<number, Placed>();
  for (const wants of [true, false]) {
    const levels = [...flow.in_use];
    const levelled = candidates
      .filter((candidate) => candidate.wants === wants)
      .sort((one, other) => one.n - other.n)
      .map((candidate) => {
        const level = (levels[candidate.class] ?? 0) + 1;
        levels[candidate.class] = level;
        return { candidate, level, turn: turnOf(flow, candidate.class) };
      })
      .sort(
        (one, other) =>
          one.level - other.level || one.turn - other.turn || one.candidate.n - other.candidate.n,
      );
    for (const [index, { candidate, level, turn }] of levelled.entries()) {
      const place = index + 1;
      places.set(candidate.n, {
        place,
        placeKept: place + keptBefore(flow, called & ~present, level, turn),
      });
    }
  }
  return places;
}

/** How many permits, before this turn, go to the classes that are awaited. */
function keptBefore(flow: FlowRow, awaited: number, level: number, turn: number): number {
  let count = 0;
  for (const code of CLASSES) {
    const inUse = flow.in_use[code];
    if ((awaited & (1 << code)) === 0 || level <= inUse) continue;
    count += level - 1 - inUse + (turnOf(flow, code) < turn ? 1 : 0);
  }
  return count;
}

export type PlaceVerdict = "no_permit" | "early" | "granted";

export function judgePlace({ place, placeKept }: Placed, free: number): PlaceVerdict {
  if (place > free) return "no_permit";
  return placeKept > free ? "early" : "granted";
}

/** How the gate of a flow key or of a host refuses an attempt: the attempt is set aside, or due later. */
export type Refusal =
  | { kind: "parked" | "host_parked" }
  | { kind: "put_off" | "host_put_off"; until: Instant };

export interface Judged extends Candidate, Placed {
  kind: "granted" | "early" | "blocked" | "no_permit" | Refusal["kind"];
  taken: boolean;
}

/** Notes in a flow the permits that a claim has granted and refused. */
export function takePermits(flow: FlowRow, judged: readonly Judged[]): void {
  let last: Judged | null = null;
  for (const verdict of judged) {
    if (verdict.taken) {
      flow.in_use[verdict.class] = (flow.in_use[verdict.class] ?? 0) + 1;
      if (last === null || verdict.place > last.place) last = verdict;
    }
    if (verdict.kind === "no_permit" || (verdict.wants && verdict.kind === "early"))
      flow.waiting |= 1 << (verdict.class * 4 + verdict.region);
    if (verdict.wants) flow.called_at[verdict.class] = Number.NEGATIVE_INFINITY;
  }
  if (last !== null) flow.last_class = last.class;
}

/** How many permits are free for any attempt that asks; null if the flow is held or a class was called. */
export function freeForAny(flow: FlowRow, now: Instant): number | null {
  return !flow.held && flow.called_at.every((at) => now - CALLED >= at) ? freeOf(flow) : null;
}

/** Notes what takePermits would note if only jobs had asked and all were granted. */
export function takeFreePermits(flow: FlowRow, development: number, production: number): void {
  const places = [
    [flow.in_use[0] + development, turnOf(flow, 0)],
    [flow.in_use[1] + production, turnOf(flow, 1)],
  ] as const;
  const isProductionLast =
    places[1][0] > places[0][0] || (places[1][0] === places[0][0] && places[1][1] > places[0][1]);
  flow.last_class = production === 0 ? 0 : development === 0 || isProductionLast ? 1 : 0;
  flow.in_use[0] += development;
  flow.in_use[1] += production;
  if (development > 0) flow.called_at[0] = Number.NEGATIVE_INFINITY;
  if (production > 0) flow.called_at[1] = Number.NEGATIVE_INFINITY;
}

/** Gives permits back; the classes that wait are called. Returns `waiting` as it was. */
export function returnPermits(flow: FlowRow, classes: readonly number[], now: Instant): number {
  const { waiting } = flow;
  for (const code of classes) flow.in_use[code] = (flow.in_use[code] ?? 0) - 1;
  flow.returned += classes.length;
  if (waiting !== 0) {
    for (const code of CLASSES) if ((waiting & (0b1111 << (code * 4))) !== 0) flow.called_at[code] = now;
  }
  flow.waiting = 0;
  return waiting;
}

/** Whether a lane's shard has to hear of permits that came back to a flow with these waiting classes. */
export const isCalled = (waiting: number, environment: number, region: number): boolean =>
  (waiting & ((1 << (environment * 4 + region)) | (1 << ((environment + 2) * 4 + region)))) !== 0;

/** Counts runs of the month in which the clock is, unless the flow is in a later one already. */
export function countRuns(flow: FlowRow, runs: number, month: string): void {
  flow.month_runs = (flow.month < month ? 0 : flow.month_runs) + runs;
  if (flow.month < month) flow.month = month;
}

/** The month that a flow counts at the clock, by its first day. */
export const monthAt = (flow: FlowRow, clock: Instant): string => laterMonth(flow.month, monthOf(clock));

/** The later of two first days of months, in the form YYYY-MM-DD. */
const laterMonth = (one: string, other: string): string => [one, other].sort()[1] ?? one;

/** How long it is from the clock until a spent quota clears. */
export const clearsInMs = (flow: FlowRow, clock: Instant): number =>
  toMs(monthAfter(monthAt(flow, clock))) - toMs(clock);

/** How many runs are left of the month; null for no end. */
export const runsLeft = (flow: FlowRow, month: string): number | null =>
  flow.month_runs_max === null ? null : flow.month_runs_max - (flow.month < month ? 0 : flow.month_runs);
