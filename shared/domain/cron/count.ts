import { firstDayOf, matchingDays, monthOf } from "./days.ts";
import { type Cron, HALF } from "./fields.ts";
import { DAY_S, HOUR_S, MINUTE_S, nextMatch } from "./matches.ts";
import type { Zone } from "./zone.ts";

/**
 * How many firings (firings.ts) lie between two instants, both included, in milliseconds since 1970. It takes a step for each
 * month and for each clock change between them, whatever the number of firings: a year's outage may have missed a million.
 */
export function countFirings(cron: Cron, zone: Zone, fromAt: number, toAt: number): number {
  const from = Math.ceil(fromAt / 1_000);
  const to = Math.floor(toAt / 1_000);
  let count = 0;
  for (let stretch = zone.stretchAt(from); zone.beginOf(stretch) <= to; stretch++) {
    const offset = zone.offsetOf(stretch);
    const offsetBefore = zone.offsetBefore(stretch);
    const changedAt = zone.beginOf(stretch);
    const begin = Math.max(from, changedAt);
    const end = Math.min(to, zone.endOf(stretch) - 1);
    const firstLocal = cron.isEveryHour ? begin + offset : Math.max(begin + offset, changedAt + offsetBefore);
    count += countMatches(cron, firstLocal, end + offset);
    if (!cron.isEveryHour) count += countMoved(cron, { changedAt, offset, offsetBefore, begin, end });
  }
  return count;
}

/** How many firings in [begin, end] have local times that a clock change skipped, and coincide with no other firing. */
function countMoved(
  cron: Cron,
  {
    changedAt,
    offset,
    offsetBefore,
    begin,
    end,
  }: Record<"changedAt" | "offset" | "offsetBefore" | "begin" | "end", number>,
): number {
  let count = 0;
  const skippedTo = Math.min(changedAt + offset, end + offsetBefore + 1);
  for (let local = begin + offsetBefore; local < skippedTo; local++) {
    local = nextMatch(cron, local);
    const moved = local + offset - offsetBefore;
    if (local < skippedTo && nextMatch(cron, moved) !== moved) count++;
  }
  return count;
}

/** How many local times from `from` to `to`, both included, an expression matches. */
function countMatches(cron: Cron, from: number, to: number): number {
  if (to < from) return 0;
  const [firstDay, lastDay] = [Math.floor(from / DAY_S), Math.floor(to / DAY_S)];
  const [firstMonth, lastMonth] = [monthOf(firstDay), monthOf(lastDay)];
  let days = 0;
  for (let month = firstMonth; month <= lastMonth; month++) {
    let matching = matchingDays(cron, month);
    if (month === firstMonth) matching &= -1 << (firstDay - firstDayOf(month));
    if (month === lastMonth) matching &= (2 << (lastDay - firstDayOf(month))) - 1;
    days += countBits(matching);
  }
  // The matching times of the first and the last day that lie outside of the interval.
  const before = isMatchingDay(cron, firstDay) ? countTimes(cron, from - firstDay * DAY_S) : 0;
  const after = isMatchingDay(cron, lastDay)
    ? countTimes(cron, DAY_S) - countTimes(cron, to - lastDay * DAY_S + 1)
    : 0;
  return days * countTimes(cron, DAY_S) - before - after;
}

function isMatchingDay(cron: Cron, day: number): boolean {
  const month = monthOf(day);
  return ((matchingDays(cron, month) >> (day - firstDayOf(month))) & 1) === 1;
}

/** How many matching seconds of a day lie before the second `before`. */
function countTimes(cron: Cron, before: number): number {
  const hour = Math.floor(before / HOUR_S);
  const minute = Math.floor((before % HOUR_S) / MINUTE_S);
  const perMinute = countSixty(cron.secondsLow, cron.secondsHigh, 60);
  const perHour = countSixty(cron.minutesLow, cron.minutesHigh, 60) * perMinute;
  const hours = countBits(cron.hours & ((1 << hour) - 1)) * perHour;
  if (((cron.hours >> hour) & 1) === 0) return hours;
  const minutes = countSixty(cron.minutesLow, cron.minutesHigh, minute) * perMinute;
  const isMatching = countSixty(cron.minutesLow, cron.minutesHigh, minute + 1) * perMinute > minutes;
  return (
    hours + minutes + (isMatching ? countSixty(cron.secondsLow, cron.secondsHigh, before % MINUTE_S) : 0)
  );
}

/** How many members of a set of seconds or minutes lie below `before`. */
function countSixty(low: number, high: number, before: number): number {
  if (before <= HALF) return countBits(before === HALF ? low : low & ((1 << before) - 1));
  return countBits(low) + countBits(high & ((1 << (before - HALF)) - 1));
}

function countBits(bits: number): number {
  let count = 0;
  for (let rest = bits; rest !== 0; rest &= rest - 1) count++;
  return count;
}
