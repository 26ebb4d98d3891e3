import { expect, setDefaultTimeout, test } from "bun:test";
import fc from "fast-check";
import { canFire } from "../../../test/simulation/cron-cases.ts";
import { readRule } from "../../../test/simulation/cron-oracle.ts";
import { parseCron } from "./cron.ts";
import { minGapSeconds } from "./gap.ts";

// 400 years of days take long on a busy machine.
setDefaultTimeout(180_000);

const DAY_S = 86_400;

test.each([
  ["* * * * *", 60],
  ["*/5 * * * *", 300],
  ["*/7 * * * *", 240],
  ["0,59 * * * *", 60],
  ["*/30 * * * * *", 30],
  ["0,59 * * * * *", 1],
  ["7 * * * * *", 60],
  ["0 0,23 * * *", 3_600],
  ["0 */5 * * *", 4 * 3_600],
  ["30 2 * * *", DAY_S],
  ["0 0,12 1 * *", DAY_S / 2],
  ["0 9 * * MON-FRI", DAY_S],
  ["0 9 * * MON", 7 * DAY_S],
  ["0 9 * * MON,THU", 3 * DAY_S],
  ["0 0 1 * *", 28 * DAY_S],
  ["0 0 L * *", 28 * DAY_S],
  ["0 0 31 * *", 31 * DAY_S],
  ["0 0 L,1 * *", DAY_S],
  ["0 0 30,1 * *", DAY_S],
  ["0 0 29,1 2,3 *", DAY_S],
  ["0 0 28,1 2,3 *", DAY_S],
  ["0 0 1 1 *", 365 * DAY_S],
  ["0 0 1,31 1,12 *", DAY_S],
  ["59,0 23,0 1,31 1,12 *", 60],
  ["0 0 29 2 *", 1_461 * DAY_S],
  ["0 0 * 2 MON#5", (12 * 365 + 2) * DAY_S],
  ["0 0 * * MON#1", 28 * DAY_S],
  ["0 0 * * MON#5", 63 * DAY_S],
  ["0 0 13 * FRI", DAY_S],
  ["@yearly", 365 * DAY_S],
])("the closest firings of %s are %p s apart", (expression, seconds) => {
  expect(minGapSeconds(parseCron(expression))).toBe(seconds);
});

test("the smallest gap is that of all 400 years of the calendar, counted", () => {
  fc.assert(
    fc.property(anyExpression, (expression) => {
      fc.pre(canFire(expression));
      expect(minGapSeconds(parseCron(expression))).toBe(countGap(expression));
    }),
    { numRuns: 20 },
  );
});

const few = (min: number, max: number) =>
  fc.oneof(
    fc.array(fc.integer({ min, max }), { minLength: 1, maxLength: 3 }).map((values) => values.join(",")),
    fc.constantFrom(`${min},${max}`, `${max}`, `${min}`),
  );
const anyExpression = fc
  .tuple(
    few(0, 59),
    few(0, 59),
    few(0, 23),
    fc.oneof(fc.constantFrom("*", "L", "L,1", "29", "*/2", "30,1"), few(1, 31)),
    fc.oneof(fc.constantFrom("*", "2", "2,3", "12,1"), few(1, 12)),
    fc.oneof(
      { weight: 3, arbitrary: fc.constant("*") },
      fc.constantFrom("SUNL", "MON#5", "SUN#1,SATL", "*/2"),
      few(0, 6),
    ),
  )
  .map((fields) => fields.join(" "));

/** The gaps between all firings from 2000 to 2400 and the next one, with which the calendar repeats. */
function countGap(expression: string): number {
  const rule = readRule(expression);
  const times = [...rule.hours]
    .flatMap((hour) =>
      [...rule.minutes].flatMap((minute) =>
        [...rule.seconds].map((second) => (hour * 60 + minute) * 60 + second),
      ),
    )
    .sort((a, b) => a - b);
  let least = Number.POSITIVE_INFINITY;
  let first = Number.NaN;
  let last = Number.NaN;
  const end = Date.UTC(2400, 0, 1) / 1_000;
  for (let day = Date.UTC(2000, 0, 1) / 1_000; day < end; day += DAY_S) {
    const date = new Date(day * 1_000);
    if (!rule.months.has(date.getUTCMonth() + 1) || !rule.dayMatches(date)) continue;
    for (const time of times) {
      if (Number.isNaN(last)) first = day + time;
      else least = Math.min(least, day + time - last);
      last = day + time;
    }
  }
  return Math.min(least, first + 146_097 * DAY_S - last);
}
