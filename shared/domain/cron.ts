import { matchingDays } from "./cron-days.ts";
import { type Cron, HALF } from "./cron-fields.ts";
import { minGapSeconds } from "./cron-gap.ts";
import { ApiError } from "./errors.ts";

/** The grammar of cron expressions, and which of them a schedule may have. */

export const CRON_CHARACTERS_MAX = 256;
export const GAP_SECONDS_MIN = 30;

/**
 * Reads a minute, an hour, a day of the month, a month and a day of the week, with or without a second before them, or
 * a nickname for them. Throws invalid_cron_expression, also for what never matches.
 */
export function parseCron(text: string): Cron {
  const [second, minute, hour, day, month, weekday] = splitFields(text);
  const [secondsLow, secondsHigh] = parseValues(second.split(","), SECOND);
  const [minutesLow, minutesHigh] = parseValues(minute.split(","), MINUTE);
  const [hours] = parseValues(hour.split(","), HOUR);
  const { days, hasLastDay } = parseDays(day);
  const [months] = parseValues(month.split(","), MONTH);
  const { weekdays, fifthWeekdays, lastWeekdays } = parseWeekdays(weekday);
  const cron: Cron = {
    secondsLow,
    secondsHigh,
    minutesLow,
    minutesHigh,
    hours,
    // In a step (`*/2`) or a list (`1,*/6`) too: whoever writes a star thinks of hours that pass.
    isEveryHour: hour.includes("*"),
    days,
    hasLastDay,
    months,
    weekdays,
    fifthWeekdays,
    lastWeekdays,
    // As Vixie's cron decides it: by the first character, so that `1-31` restricts and `*/2` does not.
    isEitherDay: !/^[*?]/.test(day) && !/^[*?]/.test(weekday),
  };
  if (isEmpty(cron)) throw malformed("cron never fires: there is no such day.");
  return cron;
}

/** Throws interval_too_short if two firings can follow each other too closely. */
export function checkGap(cron: Cron): void {
  const gapSeconds = minGapSeconds(cron);
  if (gapSeconds >= GAP_SECONDS_MIN) return;
  throw new ApiError(
    "interval_too_short",
    `cron must not fire more often than every ${GAP_SECONDS_MIN} seconds; two of its firings are ${gapSeconds} s apart.`,
    "cron",
  );
}

const NICKNAMES = new Map([
  ["@hourly", "0 * * * *"],
  ["@daily", "0 0 * * *"],
  ["@midnight", "0 0 * * *"],
  ["@weekly", "0 0 * * 0"],
  ["@monthly", "0 0 1 * *"],
  ["@yearly", "0 0 1 1 *"],
  ["@annually", "0 0 1 1 *"],
]);

type Fields = [second: string, minute: string, hour: string, day: string, month: string, weekday: string];

function splitFields(text: string): Fields {
  if (text.length > CRON_CHARACTERS_MAX) {
    throw malformed(`cron must have at most ${CRON_CHARACTERS_MAX} characters.`);
  }
  if (/[^!-~\s]/.test(text)) throw malformed("cron holds a character that means nothing in it.");
  const trimmed = text.trim();
  const fields = (NICKNAMES.get(trimmed) ?? trimmed).split(/\s+/);
  if (fields.length === 5) fields.unshift("0");
  if (fields.length === 6) return fields as Fields;
  throw malformed(
    `cron must have 5 fields (minute, hour, day of month, month, day of week), or 6 with a second before them, or be one of ${[...NICKNAMES.keys()].join(", ")}.`,
  );
}

interface Field {
  name: string;
  first: number;
  last: number;
  /** The largest number that may be written: beyond `last` counting begins again. */
  most: number;
  /** What may be written for the numbers from `first` on. */
  names: readonly string[];
}

const SECOND: Field = { name: "second", first: 0, last: 59, most: 59, names: [] };
const MINUTE: Field = { ...SECOND, name: "minute" };
const HOUR: Field = { name: "hour", first: 0, last: 23, most: 23, names: [] };
const DAY: Field = { name: "day of month", first: 1, last: 31, most: 31, names: [] };
const MONTH: Field = {
  name: "month",
  first: 1,
  last: 12,
  most: 12,
  names: ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
};
/** Sunday is 0 and 7. */
const WEEKDAY: Field = {
  name: "day of week",
  first: 0,
  last: 6,
  most: 7,
  names: ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};

function parseDays(text: string): Pick<Cron, "days" | "hasLastDay"> {
  const items = itemsOfDays(text);
  const plain = items.filter((item) => item.toUpperCase() !== "L");
  const [days] = parseValues(plain, DAY);
  return { days, hasLastDay: plain.length < items.length };
}

function parseWeekdays(text: string): Pick<Cron, "weekdays" | "fifthWeekdays" | "lastWeekdays"> {
  const plain: string[] = [];
  const weeks = [0, 0, 0, 0, 0];
  let lastWeekdays = 0;
  for (const item of itemsOfDays(text)) {
    const { weekday, week } = /^(?<weekday>\w+)(?:L|#(?<week>[1-5]))$/i.exec(item)?.groups ?? {};
    if (weekday === undefined) {
      plain.push(item);
      continue;
    }
    const bit = 1 << (readValue(weekday, WEEKDAY, item) % 7);
    if (week === undefined) lastWeekdays |= bit;
    else weeks[Number(week) - 1] = (weeks[Number(week) - 1] ?? 0) | bit;
  }
  const [everyWeek] = parseValues(plain, WEEKDAY);
  const [one = 0, two = 0, three = 0, four = 0, five = 0] = weeks.map((bits) => bits | everyWeek);
  return { weekdays: one | (two << 7) | (three << 14) | (four << 21), fifthWeekdays: five, lastWeekdays };
}

function itemsOfDays(text: string): string[] {
  return (text === "?" ? "*" : text).split(",");
}

const ITEM = /^(?:\*|(?<start>\w+)(?:-(?<end>\w+))?)(?:\/(?<step>[0-9]+))?$/;

/** The values of a list as bits, bit 0 for the field's first one. What items have in common counts once. */
function parseValues(items: readonly string[], field: Field): [low: number, high: number] {
  let low = 0;
  let high = 0;
  for (const item of items) {
    const { from, to, step } = parseItem(item, field);
    for (let value = from; value <= to; value += step) {
      const bit = (value % (field.last + 1)) - field.first;
      if (bit < HALF) low |= 1 << bit;
      else high |= 1 << (bit - HALF);
    }
  }
  return [low, high];
}

function parseItem(item: string, field: Field): { from: number; to: number; step: number } {
  const parts = ITEM.exec(item)?.groups;
  if (parts === undefined) throw malformedItem(item, field, "cannot be read");
  const step = Number(parts.step ?? 1);
  if (step < 1 || step > field.most) throw malformedItem(item, field, `needs a step from 1 to ${field.most}`);
  if (parts.start === undefined) return { from: field.first, to: field.last, step };

  const from = readValue(parts.start, field, item);
  if (parts.end === undefined) {
    // `7/2` is what `SUN/2` is.
    const start = from % (field.last + 1);
    return { from: start, to: parts.step === undefined ? start : field.last, step };
  }
  let to = readValue(parts.end, field, item);
  // A range by names may end with the Sunday after it, which as a number has to be written 7.
  const isName = !/^[0-9]/.test(parts.end);
  if (isName && to < from && to + field.last + 1 <= field.most) to += field.last + 1;
  if (to < from) throw malformedItem(item, field, "ends before it begins");
  return { from, to, step };
}

function readValue(text: string, field: Field, item: string): number {
  const place = field.names.indexOf(text.toUpperCase());
  const value = /^[0-9]+$/.test(text) ? Number(text) : place < 0 ? Number.NaN : field.first + place;
  if (value >= field.first && value <= field.most) return value;
  const names = field.names.length === 0 ? "" : ` or ${field.names[0]} to ${field.names.at(-1)}`;
  throw malformedItem(item, field, `needs ${field.first} to ${field.most}${names}`);
}

/** These 28 years begin with every weekday both with and without a leap day: what is not in them is never. */
function isEmpty(cron: Cron): boolean {
  for (let month = 2_001 * 12; month < 2_029 * 12; month++) {
    if (matchingDays(cron, month) !== 0) return false;
  }
  return true;
}

function malformedItem(item: string, field: Field, reason: string): ApiError {
  return malformed(`cron, ${field.name}: "${item}" ${reason}.`);
}

function malformed(message: string): ApiError {
  return new ApiError("invalid_cron_expression", message, "cron");
}
