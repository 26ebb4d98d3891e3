import type { RetryPolicy } from "./backoff.ts";
import { countFirings } from "./cron/count.ts";
import { checkGap, parseCron } from "./cron/cron.ts";
import type { Cron } from "./cron/fields.ts";
import { type Firing, firingsUntil, nextFiring, previousFiring } from "./cron/firings.ts";
import { minGapSeconds } from "./cron/gap.ts";
import { parseZone, type Zone } from "./cron/zone.ts";
import { ApiError, invalidRequest } from "./errors.ts";
import { checkFlow, type Flow } from "./flow-key.ts";
import { mix } from "./shard.ts";
import { checkTags } from "./tags.ts";

/** The rules of schedules: when one fires next, what an outage costs it, and what every instant of its timetables came to. */

export const SCHEDULE_NAME_CHARACTERS_MAX = 100;
export const PREVIEW_FIRINGS_DEFAULT = 5;
export const PREVIEW_FIRINGS_MAX = 1_000;

/** After an outage of the service the latest missed firing still fires if it is no later than this. */
export const CATCH_UP_MS = 600_000;

/**
 * The choices for a firing while jobs of its schedule are not over: make its job all the same, make none, or first cancel
 * the jobs that have not started.
 */
export const OVERLAPS = ["allow", "skip", "replace"] as const;
export type Overlap = (typeof OVERLAPS)[number];

/** One firing cancels at most so many jobs, the oldest ones. The next firing cancels further ones. */
export const REPLACED_JOBS_MAX = 1_000;

export const SPREAD_SECONDS_MAX = 3_600;

export interface Timetable {
  /** The expression as the client gave it, without the blanks around it. */
  expression: string;
  cron: Cron;
  zone: Zone;
}

/** Reads a timetable that was accepted before. Throws ApiError. */
export function readTimetable(cron: string, timezone: string): Timetable {
  return { expression: cron.trim(), cron: parseCron(cron), zone: parseZone(timezone) };
}

/** Reads a timetable that a client asks for. Throws invalid_cron_expression or interval_too_short. */
export function acceptTimetable(cron: string, timezone: string): Timetable {
  const timetable = readTimetable(cron, timezone);
  checkGap(timetable.cron);
  return timetable;
}

/** The first instant after `after`, in milliseconds since 1970; null if there is none up to the year 9999. */
export function nextInstant({ cron, zone }: Timetable, after: number): number | null {
  return nextFiring(cron, zone, after)?.at ?? null;
}

/** A stretch of instants that an outage of the service cost a schedule: the first, the last, and how many. */
export interface MissedFirings {
  fromAt: number;
  toAt: number;
  count: number;
}

/**
 * Throws invalid_request for a spread over more than half of the smallest gap between two firings. Clock changes do not count,
 * as in `checkGap`: they never change the order of the jobs, since all of them are due later by the same time.
 */
export function checkSpread(spreadSeconds: number | null, { cron }: Timetable): void {
  if (spreadSeconds === null || spreadSeconds === 0) return;
  const gapSeconds = minGapSeconds(cron);
  if (2 * spreadSeconds <= gapSeconds) return;
  throw invalidRequest(
    `spread_seconds must be at most half of the smallest gap between two firings, which is ${gapSeconds} s.`,
    "spread_seconds",
  );
}

/**
 * The delay from a schedule's instants until its jobs are due, in whole milliseconds up to its spread. It is always the same
 * for the same schedule. Schedules of one instant are spread evenly. Null for a schedule without a spread.
 */
export function spreadMsOf(scheduleId: string, spreadSeconds: number | null): number | null {
  if (spreadSeconds === null) return null;
  let bits = 0;
  for (let i = 0; i < scheduleId.length; i++) bits = mix(bits + scheduleId.charCodeAt(i));
  return Math.floor((bits / 2 ** 32) * (spreadSeconds * 1_000 + 1));
}

/** Decides the firing of a schedule whose `nextRunAt` has come: only the latest due instant fires, unless it is too late. */
export function decideFiring(
  timetable: Timetable,
  nextRunAt: number,
  now: number,
): { firedFor: number | null; thenAt: number | null; missed: MissedFirings | null } {
  // A clock that is behind must not move the firing before its time.
  const until = Math.max(now, nextRunAt);
  const latest = previousFiring(timetable.cron, timetable.zone, until)?.at ?? nextRunAt;
  const due = Math.max(latest, nextRunAt);
  const firedFor = due >= now - CATCH_UP_MS ? due : null;
  return {
    firedFor,
    thenAt: nextInstant(timetable, until),
    missed: findMissed(timetable, nextRunAt, firedFor === null ? due : due - 1),
  };
}

/** The instants from `fromAt`, which is one of them, up to `untilAt`; null if that lies before it. */
function findMissed({ cron, zone }: Timetable, fromAt: number, untilAt: number): MissedFirings | null {
  if (untilAt < fromAt) return null;
  const toAt = Math.max(previousFiring(cron, zone, untilAt)?.at ?? fromAt, fromAt);
  // A timetable that has changed with its zone's rules may not have the first instant any more.
  return { fromAt, toAt, count: Math.max(countFirings(cron, zone, fromAt, toAt), 1) };
}

/** The fields of a schedule that a client may change. */
export interface Changeable {
  name: string;
  cron: string;
  timezone: string;
  targetUrl: string;
  /** JSON text. */
  payload: string;
  retryPolicy: RetryPolicy;
  /** Null where no client has given it: it means "allow". */
  overlap: Overlap | null;
  /** Null where no client has given it: it means 0. */
  spreadSeconds: number | null;
  paused: boolean;
  /** Null for none. */
  tags: string[] | null;
  /** Null for none. */
  flow: Flow | null;
}

export interface DecidedChange extends Changeable {
  /** Undefined if the next firing stays as it is. */
  nextRunAt: number | null | undefined;
}

/**
 * Decides a change of a schedule, by PATCH or by PUT (store/resources/schedule-by-name.ts). `activeCount` schedules of the
 * project are active, over both environments. A paused schedule has no next firing. If a pause and a due firing race, the one
 * that locks the schedule's row first wins (store/resources/schedules.ts and store/queue/firings.ts). Throws ApiError for a
 * timetable that is not accepted, for a spread that is too wide for it, and for one active schedule too many.
 */
export function decideScheduleChange(
  schedule: Changeable & { activeCount: number },
  change: Partial<Changeable>,
  { now, activeMax }: { now: number; activeMax: number },
): DecidedChange {
  const { activeCount, ...before } = schedule;
  const wanted: Changeable = { ...before, ...change };
  const timetable = acceptTimetable(wanted.cron, wanted.timezone);
  checkSpread(wanted.spreadSeconds, timetable);
  const { expression: cron, zone } = timetable;
  const { paused } = wanted;
  if (wanted.flow !== null) checkFlow(wanted.flow);
  const tags = change.tags === undefined ? schedule.tags : acceptTags(change.tags);
  if (schedule.paused && !paused && activeCount >= activeMax) throw tooManyActive(activeMax);
  const isSame = cron === schedule.cron && zone.name === schedule.timezone && paused === schedule.paused;
  const nextRunAt = isSame ? undefined : paused ? null : nextInstant(timetable, now);
  return { ...wanted, cron, timezone: zone.name, tags, nextRunAt };
}

/** An empty list takes the tags away. */
function acceptTags(tags: string[] | null): string[] | null {
  if (tags === null || tags.length === 0) return null;
  checkTags(tags);
  return tags;
}

/** Refuses one more active schedule, whether it is created or resumed. */
export function tooManyActive(activeMax: number): ApiError {
  return new ApiError(
    "plan_limit_exceeded",
    `The project's limit of ${activeMax} active schedules, over both environments, is reached.`,
  );
}

export function nameTaken(): ApiError {
  return new ApiError("schedule_name_taken", "A schedule of this name exists already.", "name");
}

export const FIRING_STATUSES = [
  "fired",
  "skipped_paused",
  "skipped_quota",
  "skipped_overlap",
  "missed_outage",
  "backfilled",
] as const;
export type FiringStatus = (typeof FIRING_STATUSES)[number];
/** The ends of a due instant that made no job, of which endpoints may hear. No event tells of a pause. */
export const SKIPPED_STATUSES = ["skipped_quota", "skipped_overlap"] as const satisfies FiringStatus[];
export type SkippedStatus = (typeof SKIPPED_STATUSES)[number];

/** A timetable that a schedule had between two changes. */
export interface PastTimetable {
  since: number;
  /** The next firing of the previous timetable, which had not come when this timetable began. */
  supersededAt: number | null;
  paused: boolean;
  cron: string;
  timezone: string;
}

export interface ExpectedInstant extends Firing {
  zone: Zone;
  /** Whether the schedule was paused then. */
  paused: boolean;
}

/** One timetable of a schedule's past and the instants that it expected. */
export interface ExpectedStretch<Timetable> {
  timetable: Timetable;
  /** Newest first. */
  instants: Iterable<ExpectedInstant>;
  /** Counts the instants without making them. */
  count(): number;
  /** The last instant at which an older timetable may have expected something. */
  olderUntil: number;
}

/**
 * The instants of a schedule's timetables in [fromAt, toAt], newest first, timetable by timetable. `timetables` are all
 * that it has had, the latest one first. An instant that a change overtook before it fired belongs to the timetable after the
 * change: a pause skips it, and another expression does not have it. The generator computes an instant when it is asked for.
 */
export function* expectedStretches<Timetable extends PastTimetable>(
  timetables: readonly Timetable[],
  fromAt: number,
  toAt: number,
): Generator<ExpectedStretch<Timetable>, void> {
  let until = toAt;
  for (const timetable of timetables) {
    const { since, supersededAt, paused } = timetable;
    const overtakenAt = supersededAt !== null && supersededAt <= since ? supersededAt : null;
    const after = paused && overtakenAt !== null ? overtakenAt - 1 : since;
    const olderUntil = Math.min(until, overtakenAt === null ? since : overtakenAt - 1);
    const bounds = { fromAt, after, until };
    yield {
      timetable,
      instants: instantsOf(timetable, bounds),
      count: () => countInstants(timetable, bounds),
      olderUntil,
    };
    if (olderUntil < fromAt) return;
    until = olderUntil;
  }
}

/** The instants from `fromAt` on that come after `after`, up to `until`. */
interface InstantBounds {
  fromAt: number;
  after: number;
  until: number;
}

function countInstants({ cron: expression, timezone }: PastTimetable, bounds: InstantBounds): number {
  const { fromAt, after, until } = bounds;
  const { cron, zone } = readTimetable(expression, timezone);
  // A timetable may begin at a fraction of a millisecond. The next whole millisecond comes after it.
  const first = Math.max(fromAt, Math.floor(after) + 1);
  return first > until ? 0 : countFirings(cron, zone, first, until);
}

function* instantsOf(
  { cron: expression, timezone, paused }: PastTimetable,
  { fromAt, after, until }: InstantBounds,
): Generator<ExpectedInstant, void> {
  const { cron, zone } = readTimetable(expression, timezone);
  for (const firing of firingsUntil(cron, zone, until)) {
    if (firing.at <= after || firing.at < fromAt) return;
    yield { ...firing, zone, paused };
  }
}
