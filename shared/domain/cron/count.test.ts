import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { countFirings } from "./count.ts";
import { parseCron } from "./cron.ts";
import { firingsAfter } from "./firings.ts";
import { parseZone } from "./zone.ts";

const DAY_MS = 86_400_000;

/** Counts firings one by one, as they fire. */
function countSlowly(expression: string, timezone: string, fromAt: number, toAt: number): number {
  let count = 0;
  for (const { at } of firingsAfter(parseCron(expression), parseZone(timezone), fromAt - 1)) {
    if (at > toAt) break;
    count++;
  }
  return count;
}

const count = (expression: string, timezone: string, fromAt: number, toAt: number) =>
  countFirings(parseCron(expression), parseZone(timezone), fromAt, toAt);

const EXPRESSIONS = [
  ...["* * * * *", "*/30 * * * * *", "0,30 15 * * * *", "30 2 * * *", "0 0-23 * * *", "*/7 2-10/4 * * *"],
  ...["0 0 L * *", "15 3 * * SUN", "0 12 29 2 *", "0 9 1-7 * MON", "59 59 23 31 12 *", "0 0 * * MON#5"],
];
/** Zones with changes of an hour, half an hour, a whole day (Apia, December 2011), at midnight (Beirut), and with none. */
const ZONES = [
  "UTC",
  "Europe/Berlin",
  "America/New_York",
  "Australia/Lord_Howe",
  "Pacific/Apia",
  "Asia/Beirut",
];

describe("the firings between two instants", () => {
  test("are as many as fire one by one, over clock changes and the ends of months and years", () => {
    const instant = fc.integer({
      min: Date.parse("2011-11-01T00:00:00Z") / 1_000,
      max: Date.parse("2012-12-31T00:00:00Z") / 1_000,
    });
    fc.assert(
      fc.property(
        fc.constantFrom(...EXPRESSIONS),
        fc.constantFrom(...ZONES),
        instant,
        fc.oneof(fc.integer({ min: 0, max: 3 * 86_400 }), fc.integer({ min: 0, max: 40 * 86_400 })),
        (expression, timezone, from, length) => {
          const [fromAt, toAt] = [from * 1_000, (from + length) * 1_000];
          expect(count(expression, timezone, fromAt, toAt)).toBe(
            countSlowly(expression, timezone, fromAt, toAt),
          );
        },
      ),
      { numRuns: 1_000 },
    );
  });

  test.each(ZONES)("are as many around each clock change of a year, in %s", (timezone) => {
    for (let at = Date.parse("2011-12-01T00:00:00Z"); at < Date.parse("2012-12-01T00:00:00Z"); at += DAY_MS) {
      for (const expression of ["30 2 * * *", "*/20 * * * *", "15 0-23 * * *"]) {
        expect([expression, at, count(expression, timezone, at, at + DAY_MS)]).toEqual([
          expression,
          at,
          countSlowly(expression, timezone, at, at + DAY_MS),
        ]);
      }
    }
  });

  test("include both instants, and are none if there is nothing between", () => {
    const at = Date.parse("2026-11-21T10:00:00Z");
    expect(count("* * * * *", "UTC", at, at)).toBe(1);
    expect(count("* * * * *", "UTC", at, at + 60_000)).toBe(2);
    expect(count("* * * * *", "UTC", at + 1, at + 59_999)).toBe(0);
    expect(count("* * * * *", "UTC", at + 60_000, at)).toBe(0);
  });

  test("are counted without walking along them", () => {
    const fromAt = Date.parse("1990-01-01T00:00:00Z");
    const toAt = Date.parse("2090-01-01T00:00:00Z") - 1;
    expect(count("*/30 * * * * *", "UTC", fromAt, toAt)).toBe((toAt + 1 - fromAt) / 30_000);
  });
});
