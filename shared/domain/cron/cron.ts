import { ApiError } from "../errors.ts";
import { matchingDays } from "./days.ts";
import type { Cron } from "./fields.ts";
import { minGapSeconds } from "./gap.ts";
import { DAY, HOUR, MINUTE, MONTH, malformed, parseValues, readValue, SECOND, WEEKDAY } from "./values.ts";

/** The grammar of cron expressions, and which of them a schedule may have. */

export const CRON_CHARACTERS_MAX = 256;
export const GAP_SECONDS_MIN = 30;

/**
 * Parses minute, hour, day of month, month and day of week, with or without a leading second, or a nickname. Throws
 * invalid_cron_expression, also for an expression that never matches.
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
    // This includes a step (`*/2`) and a list (`1,*/6`): a star means every real hour.
    isEveryHour: hour.includes("*"),
    days,
    hasLastDay,
    months,
    weekdays,
    fifthWeekdays,
    lastWeekdays,
    // The first character decides, as in Vixie's cron, so `1-31` restricts and `*/2` does not.
    isEitherDay: !/^[*?]/.test(day) && !/^[*?]/.test(weekday),
  };
  if (isEmpty(cron)) throw malformed("cron never fires: there is no such day.");
  return cron;
}

/** Refuses an expression that has another number of fields. */
export function wrongFields(): ApiError {
  return malformed(
    `cron must have 5 fields (minute, hour, day of month, month, day of week), or 6 with a second before them, or be one of ${[...NICKNAMES.keys()].join(", ")}.`,
  );
}

/** Throws interval_too_short if two consecutive firings are too close together. */
export function checkGap(cron: Cron): void {
  const gapSeconds = minGapSeconds(cron);
  if (gapSeconds >= GAP_SECONDS_MIN) return;
  throw intervalTooShort(gapSeconds);
}

export function intervalTooShort(gapSeconds: number): ApiError {
  return new ApiError(
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
  if (/^(?:CRON_)?TZ=/i.test(trimmed)) {
    throw malformed("cron must not name a time zone (TZ=): give it in the field timezone.");
  }
  const fields = (NICKNAMES.get(trimmed) ?? trimmed).split(/\s+/);
  if (fields.length === 5) fields.unshift("0");
  if (fields.length === 6) return fields as Fields;
  throw wrongFields();
}

function parseDays(text: string): Pick<Cron, "days" | "hasLastDay"> {
  const items = itemsOfDays(text);
  const plain = items.filter((item) => item.toUpperCase() !== "L");
  const [days] = parseValues(plain, DAY);
  return { days, hasLastDay: plain.length < items.length };
}

/** A weekday's bits in each of the first four weeks of a month. */
const FOUR_WEEKS = 1 + 2 ** 7 + 2 ** 14 + 2 ** 21;

function parseWeekdays(text: string): Pick<Cron, "weekdays" | "fifthWeekdays" | "lastWeekdays"> {
  const plain: string[] = [];
  let weekdays = 0;
  let fifthWeekdays = 0;
  let lastWeekdays = 0;
  for (const item of itemsOfDays(text)) {
    const { weekday, week } = /^(?<weekday>\w+)(?:L|#(?<week>[1-5]))$/i.exec(item)?.groups ?? {};
    if (weekday === undefined) {
      plain.push(item);
      continue;
    }
    const bit = 1 << (readValue(weekday, WEEKDAY, item) % 7);
    if (week === undefined) lastWeekdays |= bit;
    else if (week === "5") fifthWeekdays |= bit;
    else weekdays |= bit << (7 * (Number(week) - 1));
  }
  const [everyWeek] = parseValues(plain, WEEKDAY);
  weekdays |= everyWeek * FOUR_WEEKS;
  fifthWeekdays |= everyWeek;
  return { weekdays, fifthWeekdays, lastWeekdays };
}

function itemsOfDays(text: string): string[] {
  return (text === "?" ? "*" : text).split(",");
}

/** Each weekday begins a leap year and a common year within these 28 years, so they hold every kind of year. */
function isEmpty(cron: Cron): boolean {
  for (let month = 2_001 * 12; month < 2_029 * 12; month++) {
    if (matchingDays(cron, month) !== 0) return false;
  }
  return true;
}
