/**
 * The fields of a cron expression as bit sets, one bit for each value. Millions of expressions fit into memory, and a search
 * skips values that do not match without trying them.
 */
export interface Cron {
  /** Bit n for second n, 0 to 30. */
  secondsLow: number;
  /** Bit n for second 31 + n. */
  secondsHigh: number;
  minutesLow: number;
  minutesHigh: number;
  hours: number;
  /** The hour field holds a `*`: then every real hour counts, instead of each local hour once. */
  isEveryHour: boolean;
  /** Bit 0 for the first day of the month. */
  days: number;
  hasLastDay: boolean;
  /** Bit 0 for January. */
  months: number;
  /** Seven bits, from Sunday on, for days 1 to 7 of the month. Seven more follow for each of 8 to 14, 15 to 21 and 22 to 28. */
  weekdays: number;
  /** Seven bits for days 29 to 31. */
  fifthWeekdays: number;
  /** Seven bits for the last seven days of the month. */
  lastWeekdays: number;
  /** True if a day matches by its date or its weekday, false if it must match by both. */
  isEitherDay: boolean;
}

/** The result of a search in a set that finds no member. */
export const NONE = -1;

export function lowestBit(bits: number): number {
  return 31 - Math.clz32(bits & -bits);
}

export function highestBit(bits: number): number {
  return 31 - Math.clz32(bits);
}

/** A set of 60 seconds or minutes takes two numbers, since a number has 31 bits that are easy to handle. */
export const HALF = 31;

/** The smallest member from `from` on of a set of seconds or minutes. */
export function nextOfSixty(low: number, high: number, from: number): number {
  const lower = from < HALF ? lowestBit(low & (-1 << from)) : NONE;
  if (lower !== NONE) return lower;
  const upper = lowestBit(high & (-1 << Math.max(0, from - HALF)));
  return upper === NONE ? NONE : HALF + upper;
}

/** The largest member up to `from` of a set of seconds or minutes. */
export function previousOfSixty(low: number, high: number, from: number): number {
  const upper = from < HALF ? NONE : highestBit(high & ((2 << (from - HALF)) - 1));
  return upper === NONE ? highestBit(low & ((2 << Math.min(from, HALF - 1)) - 1)) : HALF + upper;
}
