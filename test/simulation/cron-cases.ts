import fc from "fast-check";
import { parseCron } from "../../shared/domain/cron/cron.ts";
import { ApiError } from "../../shared/domain/errors.ts";

/** Zones with clock changes of every kind, and years in which they have them. All offsets are whole minutes. */
export const ZONES: readonly (readonly [zone: string, ...years: number[]])[] = [
  // Ordinary summer time, north and south, by an hour in the night.
  ["America/New_York", 2026, 2006],
  ["Europe/Berlin", 2026, 1980],
  ["Europe/London", 2027, 1971],
  ["Europe/Dublin", 2026],
  ["Australia/Sydney", 2026],
  ["Pacific/Auckland", 2026],
  ["Pacific/Chatham", 2026],
  ["Pacific/Easter", 2026],
  ["Atlantic/Azores", 2026],
  ["America/Nuuk", 2026],
  // By half an hour and by two hours.
  ["Australia/Lord_Howe", 2026, 1981],
  ["Antarctica/Troll", 2026, 2005],
  ["America/Caracas", 2007, 2016],
  ["Asia/Pyongyang", 2015, 2018],
  // At midnight: days that begin at one o'clock, and days that end twice.
  ["America/Santiago", 2026],
  ["America/Havana", 2026],
  ["America/Asuncion", 2023],
  ["America/Sao_Paulo", 2018],
  ["Africa/Cairo", 2026, 2010],
  ["Asia/Beirut", 2026, 2023],
  ["Asia/Amman", 2021],
  ["Asia/Damascus", 2021],
  ["Asia/Tehran", 2022],
  ["Asia/Gaza", 2026],
  ["America/St_Johns", 1988, 2010],
  // Days and hours that were skipped or repeated by decree.
  ["Pacific/Apia", 2011, 2012, 2021],
  ["Pacific/Fakaofo", 2011],
  ["Pacific/Kiritimati", 1994],
  ["Pacific/Kwajalein", 1993],
  ["Antarctica/Vostok", 1994],
  ["Antarctica/Casey", 2020, 2010],
  ["Europe/Moscow", 2011, 2014],
  ["Europe/Istanbul", 2016],
  ["Asia/Kathmandu", 1985],
  // Clocks that are set back for Ramadan, and clocks that are never changed.
  ["Africa/Casablanca", 2026, 2087],
  ["Africa/El_Aaiun", 2030],
  ["Asia/Kolkata", 2026],
  ["UTC", 2026],
  // Far in the future.
  ["America/New_York", 2199],
  ["Australia/Lord_Howe", 2400],
];

const pick = (...texts: string[]) => fc.constantFrom(...texts);
const number = (min: number, max: number) => fc.integer({ min, max }).map(String);
const range = (min: number, max: number) =>
  fc
    .tuple(fc.integer({ min, max }), fc.integer({ min, max }))
    .map(([a, b]) => `${Math.min(a, b)}-${Math.max(a, b)}`);
const list = (item: fc.Arbitrary<string>) =>
  fc.array(item, { minLength: 1, maxLength: 3 }).map((items) => items.join(","));

/** Mostly hours of the night, in which clocks are changed. */
const hour = fc.oneof(
  pick("*", "*/2", "*/3", "0-23", "0-6", "2-10/4", "0-23/2", "22-23,0-3", "1,*/6", "2/7", "*,3"),
  list(
    fc.oneof(
      { weight: 5, arbitrary: number(0, 4) },
      number(22, 23),
      number(0, 23),
      range(0, 5),
      range(0, 23),
    ),
  ),
);
const minute = fc.oneof(
  pick("0", "30", "*", "*/15", "*/7", "1-59/2", "0,30", "59", "45/5"),
  list(fc.oneof(number(0, 59), range(0, 59))),
);
const second = pick("0", "*/30", "59", "0,30", "15,45", "7");
const dayOfMonth = fc.oneof(
  { weight: 6, arbitrary: pick("*") },
  pick("?", "*/2", "1-31", "L", "L,1", "1-31/2", "30-31,1", "*,5"),
  list(fc.oneof(number(1, 31), range(1, 31))),
);
const month = fc.oneof(
  { weight: 6, arbitrary: pick("*") },
  pick("*/2", "1-12/3", "JAN,MAR,oct", "MAR-NOV", "12", "3", "10"),
  list(number(1, 12)),
);
const dayOfWeek = fc.oneof(
  { weight: 6, arbitrary: pick("*") },
  pick("?", "SUN", "7", "0", "SAT,SUN", "FRI-SUN", "MON-FRI", "5-7", "*/2", "0-6", "1/2"),
  pick("SUN#1", "SUN#2,SUN#4", "SUNL", "5L,6L", "SAT#5", "THUL", "MON#1,FRI"),
  list(number(0, 7)),
);

/** Cron expressions, most of which fire often in the nights of clock changes. */
export const anyExpression: fc.Arbitrary<string> = fc
  .tuple(fc.option(second, { freq: 3 }), minute, hour, dayOfMonth, month, dayOfWeek)
  .map((fields) => fields.filter((field) => field !== null).join(" "));

/** False for expressions that never fire, such as one for February 30. */
export function canFire(expression: string): boolean {
  try {
    parseCron(expression);
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.message.includes("never fires")) return false;
    throw error;
  }
}
