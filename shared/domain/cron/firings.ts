import type { Cron } from "./fields.ts";
import { nextMatch, previousMatch } from "./matches.ts";
import { EARLIEST_AT, LATEST_AT, type Zone } from "./zone.ts";

/**
 * A firing of a cron expression in a zone, clock changes included. Dates and weekdays are those of the local time that
 * matched. With fixed hours every matching local time fires exactly once: a skipped local time fires later by the length of
 * the skip, and a repeated one fires the first time. With a `*` in the hour field an expression fires at every instant whose
 * local time matches, so twice in a repeated hour and never in a skipped one.
 */
export interface Firing {
  /** Milliseconds since 1970. */
  at: number;
  /** True if the matching local time was skipped, so that the clocks show another one. */
  movedByClockChange: boolean;
}

/** The first firing after an instant, that instant excluded; null if there is none up to the year 9999. */
export function nextFiring(cron: Cron, zone: Zone, after: number): Firing | null {
  const from = Math.floor(after / 1_000) + 1;
  let sought = Number.NaN;
  let match = Number.NaN;
  // The last match is remembered, because a stretch usually seeks the same match as the stretch before. A new search is made
  // only if the clocks were set back before the last search began, or forward past its match.
  const seek = (local: number) => {
    if (!(sought <= local && local <= match)) {
      sought = local;
      match = nextMatch(cron, local);
    }
    return match;
  };

  for (let stretch = zone.stretchAt(from); zone.beginOf(stretch) <= LATEST_AT; stretch++) {
    const offset = zone.offsetOf(stretch);
    const offsetBefore = zone.offsetBefore(stretch);
    const changedAt = zone.beginOf(stretch);
    const begin = Math.max(from, changedAt);
    let movedAt = Number.POSITIVE_INFINITY;
    let local = begin + offset;
    if (!cron.isEveryHour) {
      const skippedTo = changedAt + offset;
      const skipped = begin + offsetBefore < skippedTo ? seek(begin + offsetBefore) : skippedTo;
      if (skipped < skippedTo) movedAt = skipped - offsetBefore;
      local = Math.max(local, changedAt + offsetBefore);
    }
    const ordinaryAt = seek(local) - offset;
    const at = ordinaryAt < zone.endOf(stretch) ? Math.min(ordinaryAt, movedAt) : movedAt;
    if (at <= LATEST_AT) return { at: at * 1_000, movedByClockChange: at !== ordinaryAt };
    if (zone.endOf(stretch) > LATEST_AT) return null;
  }
  return null;
}

/** The last firing at or before an instant; null if there is none back to the year 0. */
export function previousFiring(cron: Cron, zone: Zone, until: number): Firing | null {
  const to = Math.floor(until / 1_000);
  let sought = Number.NaN;
  let match = Number.NaN;
  const seek = (local: number) => {
    if (!(match <= local && local <= sought)) {
      sought = local;
      match = previousMatch(cron, local);
    }
    return match;
  };

  for (let stretch = zone.stretchAt(to); stretch >= 0; stretch--) {
    const offset = zone.offsetOf(stretch);
    const offsetBefore = zone.offsetBefore(stretch);
    const changedAt = zone.beginOf(stretch);
    const end = Math.min(to, zone.endOf(stretch) - 1);
    const skippedTo = changedAt + offset;
    const firstLocal = cron.isEveryHour ? skippedTo : Math.max(skippedTo, changedAt + offsetBefore);
    const ordinaryAt = seek(end + offset) >= firstLocal ? match - offset : Number.NEGATIVE_INFINITY;
    let at = ordinaryAt;
    // Moved firings lie after the change, within the length of the skip.
    if (!cron.isEveryHour && ordinaryAt < skippedTo - offsetBefore) {
      const skipped = seek(Math.min(end + offsetBefore, skippedTo - 1));
      if (skipped >= changedAt + offsetBefore) at = Math.max(at, skipped - offsetBefore);
    }
    if (at >= EARLIEST_AT) return { at: at * 1_000, movedByClockChange: at !== ordinaryAt };
  }
  return null;
}

/** The firings after an instant, that instant excluded, in order. */
export function* firingsAfter(cron: Cron, zone: Zone, after: number): Generator<Firing, void> {
  for (let firing = nextFiring(cron, zone, after); firing !== null; ) {
    yield firing;
    firing = nextFiring(cron, zone, firing.at);
  }
}

/** The firings up to an instant, that instant included, newest first. */
export function* firingsUntil(cron: Cron, zone: Zone, until: number): Generator<Firing, void> {
  for (let firing = previousFiring(cron, zone, until); firing !== null; ) {
    yield firing;
    firing = previousFiring(cron, zone, firing.at - 1);
  }
}
