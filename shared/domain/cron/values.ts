import { ApiError } from "../errors.ts";
import { HALF } from "./fields.ts";

/** The values of each field of a cron expression, except for `L`, `#` and `?`, which only days have. */

export interface Field {
  name: string;
  first: number;
  last: number;
  /** The largest number that may be written. Numbers beyond `last` begin again at `first`. */
  most: number;
  /** The names of the values, from `first` on. */
  names: readonly string[];
}

export const SECOND: Field = { name: "second", first: 0, last: 59, most: 59, names: [] };
export const MINUTE: Field = { ...SECOND, name: "minute" };
export const HOUR: Field = { name: "hour", first: 0, last: 23, most: 23, names: [] };
export const DAY: Field = { name: "day of month", first: 1, last: 31, most: 31, names: [] };
export const MONTH: Field = {
  name: "month",
  first: 1,
  last: 12,
  most: 12,
  names: ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"],
};
/** Sunday is 0 and 7. */
export const WEEKDAY: Field = {
  name: "day of week",
  first: 0,
  last: 6,
  most: 7,
  names: ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"],
};

/** The values of a list as bits, bit 0 for the field's first value. Repeated values count once. */
export function parseValues(items: readonly string[], field: Field): [low: number, high: number] {
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

const ITEM = /^(?:\*|(?<start>\w+)(?:-(?<end>\w+))?)(?:\/(?<step>[0-9]+))?$/;

function parseItem(item: string, field: Field): { from: number; to: number; step: number } {
  const parts = ITEM.exec(item)?.groups;
  if (parts === undefined) throw malformedItem(item, field, "cannot be read");
  const step = Number(parts.step ?? 1);
  if (step < 1 || step > field.most) throw malformedItem(item, field, `needs a step from 1 to ${field.most}`);
  if (parts.start === undefined) return { from: field.first, to: field.last, step };

  const from = readValue(parts.start, field, item);
  if (parts.end === undefined) {
    // `7/2` means the same as `SUN/2`.
    const start = from % (field.last + 1);
    return { from: start, to: parts.step === undefined ? start : field.last, step };
  }
  let to = readValue(parts.end, field, item);
  // In a range of names, SUN may end the week, as 7 does in numbers.
  const isName = !/^[0-9]/.test(parts.end);
  if (isName && to < from && to + field.last + 1 <= field.most) to += field.last + 1;
  if (to < from) throw malformedItem(item, field, "ends before it begins");
  return { from, to, step };
}

/** The value of a number or a name. Throws invalid_cron_expression, which quotes the whole `item`. */
export function readValue(text: string, field: Field, item: string): number {
  const place = field.names.indexOf(text.toUpperCase());
  const value = /^[0-9]+$/.test(text) ? Number(text) : place < 0 ? Number.NaN : field.first + place;
  if (value >= field.first && value <= field.most) return value;
  const names = field.names.length === 0 ? "" : ` or ${field.names[0]} to ${field.names.at(-1)}`;
  throw malformedItem(item, field, `needs ${field.first} to ${field.most}${names}`);
}

function malformedItem(item: string, field: Field, reason: string): ApiError {
  return malformed(`cron, ${field.name}: "${item}" ${reason}.`);
}

export function malformed(message: string): ApiError {
  return new ApiError("invalid_cron_expression", message, "cron");
}
