import type { Cron } from "./fields.ts";

/** The days on which a cron expression matches. Months count from January of the year 0, days from 1970. */

/** The days of a month that match, bit 0 for its first day. */
export function matchingDays(cron: Cron, month: number): number {
  if (((cron.months >> floorMod(month, 12)) & 1) === 0) return 0;
  const begin = firstDayOf(month);
  const length = firstDayOf(month + 1) - begin;
  const days = cron.hasLastDay ? cron.days | (1 << (length - 1)) : cron.days;
  const weekdays = daysByWeekday(cron, floorMod(begin + EPOCH_WEEKDAY, 7), length);
  const all = 0x7fff_ffff >>> (31 - length);
  return (cron.isEitherDay ? days | weekdays : days & weekdays) & all;
}

/** January 1, 1970 was a Thursday. */
const EPOCH_WEEKDAY = 4;

/** The days that match by their weekday. Bits beyond the end of the month have no meaning. */
function daysByWeekday(cron: Cron, firstWeekday: number, length: number): number {
  // The sets are ordered by weekday, the month is ordered by date. Within each seven days from the first on, the two orders
  // differ by the same rotation.
  let days = rotate(cron.fifthWeekdays, firstWeekday) << 28;
  for (let shift = 0; shift < 28; shift += 7) {
    days |= rotate((cron.weekdays >> shift) & 0x7f, firstWeekday) << shift;
  }
  return days | (rotate(cron.lastWeekdays, (firstWeekday + length) % 7) << (length - 7));
}

/** Rotates seven bits down by `count` places. */
function rotate(bits: number, count: number): number {
  return ((bits >> count) | (bits << (7 - count))) & 0x7f;
}

// The calendar arithmetic is Howard Hinnant's ("chrono-compatible low-level date algorithms"). Years begin in March, so that a
// leap day is the last day of its year. They count from the year 0, which begins a cycle of 400 years.
const MARCH = 2;
const DAYS_TO_EPOCH = 719_468;
export const CYCLE_MONTHS = 4_800;
export const CYCLE_DAYS = 146_097;

/** The first day of a month. */
export function firstDayOf(month: number): number {
  const sinceMarch = month - MARCH;
  const year = Math.floor(sinceMarch / 12);
  const dayOfYear = Math.floor((153 * (sinceMarch - 12 * year) + 2) / 5);
  return 365 * year + leapDaysIn(year) + dayOfYear - DAYS_TO_EPOCH;
}

/** The month that a day lies in. */
export function monthOf(day: number): number {
  const sinceMarch = day + DAYS_TO_EPOCH;
  const cycle = Math.floor(sinceMarch / CYCLE_DAYS);
  const dayOfCycle = sinceMarch - cycle * CYCLE_DAYS;
  const leapDays =
    Math.floor(dayOfCycle / 1_460) - Math.floor(dayOfCycle / 36_524) + Math.floor(dayOfCycle / 146_096);
  const year = Math.floor((dayOfCycle - leapDays) / 365);
  const dayOfYear = dayOfCycle - 365 * year - leapDaysIn(year);
  return (cycle * 400 + year) * 12 + Math.floor((5 * dayOfYear + 2) / 153) + MARCH;
}

/** The number of leap days in the first `years` years from March of the year 0 on. */
function leapDaysIn(years: number): number {
  return Math.floor(years / 4) - Math.floor(years / 100) + Math.floor(years / 400);
}

function floorMod(number: number, modulus: number): number {
  return number - Math.floor(number / modulus) * modulus;
}
