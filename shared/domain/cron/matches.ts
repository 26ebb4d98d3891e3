import { firstDayOf, matchingDays, monthOf } from "./days.ts";
import { type Cron, highestBit, lowestBit, NONE, nextOfSixty, previousOfSixty } from "./fields.ts";

/**
 * The local times that a cron expression matches. A local time is whole seconds since 1970 on a calendar without clock
 * changes. Every accepted expression matches within any 40 years, so a search looks at no more than 481 months.
 */

export const DAY_S = 86_400;
export const HOUR_S = 3_600;
export const MINUTE_S = 60;
const MONTH_MAX = 9_999 * 12 + 11;

/** The first match at or after a local time; infinity if there is none up to the year 9999. */
export function nextMatch(cron: Cron, local: number): number {
  const day = Math.floor(local / DAY_S);
  let month = monthOf(day);
  const place = day - firstDayOf(month);
  let days = matchingDays(cron, month);
  if ((days >> place) & 1) {
    const time = nextTime(cron, local - day * DAY_S);
    if (time !== NONE) return day * DAY_S + time;
  }
  days &= -2 << place;
  while (days === 0) {
    month++;
    if (!(month <= MONTH_MAX)) return Number.POSITIVE_INFINITY;
    days = matchingDays(cron, month);
  }
  return (firstDayOf(month) + lowestBit(days)) * DAY_S + firstTime(cron);
}

/** The last match at or before a local time; minus infinity if there is none back to the year 0. */
export function previousMatch(cron: Cron, local: number): number {
  const day = Math.floor(local / DAY_S);
  let month = monthOf(day);
  const place = day - firstDayOf(month);
  let days = matchingDays(cron, month);
  if ((days >> place) & 1) {
    const time = previousTime(cron, local - day * DAY_S);
    if (time !== NONE) return day * DAY_S + time;
  }
  days &= (1 << place) - 1;
  while (days === 0) {
    month--;
    if (!(month >= 0)) return Number.NEGATIVE_INFINITY;
    days = matchingDays(cron, month);
  }
  return (firstDayOf(month) + highestBit(days)) * DAY_S + lastTime(cron);
}

/** The first matching second of a day. */
export function firstTime(cron: Cron): number {
  return lowestBit(cron.hours) * HOUR_S + firstMinute(cron) * MINUTE_S + firstSecond(cron);
}

/** The last matching second of a day. */
export function lastTime(cron: Cron): number {
  return highestBit(cron.hours) * HOUR_S + lastMinute(cron) * MINUTE_S + lastSecond(cron);
}

function nextTime(cron: Cron, from: number): number {
  const hour = Math.floor(from / HOUR_S);
  if ((cron.hours >> hour) & 1) {
    const minute = Math.floor(from / MINUTE_S) % 60;
    if (nextMinute(cron, minute) === minute) {
      const second = nextOfSixty(cron.secondsLow, cron.secondsHigh, from % MINUTE_S);
      if (second !== NONE) return hour * HOUR_S + minute * MINUTE_S + second;
    }
    const later = nextMinute(cron, minute + 1);
    if (later !== NONE) return hour * HOUR_S + later * MINUTE_S + firstSecond(cron);
  }
  const laterHour = lowestBit(cron.hours & (-2 << hour));
  return laterHour === NONE ? NONE : laterHour * HOUR_S + firstMinute(cron) * MINUTE_S + firstSecond(cron);
}

function previousTime(cron: Cron, from: number): number {
  const hour = Math.floor(from / HOUR_S);
  if ((cron.hours >> hour) & 1) {
    const minute = Math.floor(from / MINUTE_S) % 60;
    if (previousMinute(cron, minute) === minute) {
      const second = previousOfSixty(cron.secondsLow, cron.secondsHigh, from % MINUTE_S);
      if (second !== NONE) return hour * HOUR_S + minute * MINUTE_S + second;
    }
    const earlier = minute === 0 ? NONE : previousMinute(cron, minute - 1);
    if (earlier !== NONE) return hour * HOUR_S + earlier * MINUTE_S + lastSecond(cron);
  }
  const earlierHour = highestBit(cron.hours & ((1 << hour) - 1));
  return earlierHour === NONE ? NONE : earlierHour * HOUR_S + lastMinute(cron) * MINUTE_S + lastSecond(cron);
}

const nextMinute = (cron: Cron, from: number) => nextOfSixty(cron.minutesLow, cron.minutesHigh, from);
const previousMinute = (cron: Cron, from: number) => previousOfSixty(cron.minutesLow, cron.minutesHigh, from);
const firstMinute = (cron: Cron) => nextMinute(cron, 0);
const lastMinute = (cron: Cron) => previousMinute(cron, 59);
const firstSecond = (cron: Cron) => nextOfSixty(cron.secondsLow, cron.secondsHigh, 0);
const lastSecond = (cron: Cron) => previousOfSixty(cron.secondsLow, cron.secondsHigh, 59);
