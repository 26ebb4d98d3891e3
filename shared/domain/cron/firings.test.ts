import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { parseCron } from "./cron.ts";
import { firingsAfter, firingsUntil, nextFiring, previousFiring } from "./firings.ts";
import { parseZone } from "./zone.ts";

/** Firings in UTC, to the minute, without a repeated date. `~` marks a firing that a clock change has moved. */
function firingsBetween(expression: string, zone: string, from: string, to: string): string {
  const [fromAt, toAt] = [Date.parse(`${from}Z`), Date.parse(`${to}Z`)];
  const cron = parseCron(expression);
  const forward = [];
  for (const firing of firingsAfter(cron, parseZone(zone), fromAt - 1)) {
    if (firing.at >= toAt) break;
    forward.push(firing);
  }
  const backward = [];
  for (const firing of firingsUntil(cron, parseZone(zone), toAt - 1)) {
    if (firing.at < fromAt) break;
    backward.push(firing);
  }
  expect(backward.toReversed()).toEqual(forward);
  let day = "";
  return forward
    .map(({ at, movedByClockChange }) => {
      const [date = "", time = ""] = new Date(at).toISOString().slice(5, 16).split("T");
      const shown = date === day ? time : `${date} ${time}`;
      day = date;
      return `${movedByClockChange ? "~" : ""}${shown}`;
    })
    .join(", ");
}

// New York: at 07:00 UTC on March 8, 2026 the clocks go from 02:00 to 03:00.
type Span = readonly [zone: string, from: string, to: string];
const SPRING: Span = ["America/New_York", "2026-03-08T05:30", "2026-03-08T09:00"];
// At 06:00 UTC on November 1, 2026 they go from 02:00 back to 01:00.
const AUTUMN: Span = ["America/New_York", "2026-11-01T04:30", "2026-11-01T08:00"];

describe("fixed hours, where the clocks skip an hour", () => {
  test.each([
    ["30 2 * * *", "~03-08 07:30"],
    ["30 1-3 * * *", "03-08 06:30, 07:30"],
    ["0 2 * * *", "~03-08 07:00"],
    ["0 3 * * *", "03-08 07:00"],
    ["0 0-23 * * *", "03-08 06:00, 07:00, 08:00"],
    ["59 2 8 3 SUN", "~03-08 07:59"],
    ["*/20 2-10/4 * * *", "~03-08 07:00, ~07:20, ~07:40"],
    ["15,45 2,3 * * *", "03-08 07:15, 07:45"],
    ["15 2 * * *", "~03-08 07:15"],
    ["0 1,4 * * *", "03-08 06:00, 08:00"],
    ["30 2,3 1-31 * *", "03-08 07:30"],
    ["30,40 2,3 * * *", "03-08 07:30, 07:40"],
    ["10 2 * * *", "~03-08 07:10"],
  ])("%s fires at %s", (expression, firings) => {
    expect(firingsBetween(expression, ...SPRING)).toBe(firings);
  });

  test("moved firings come in order among the others", () => {
    expect(firingsBetween("10,50 2 * * *", ...SPRING)).toBe("~03-08 07:10, ~07:50");
    expect(firingsBetween("5,25,45 2 * * *", ...SPRING)).toBe("~03-08 07:05, ~07:25, ~07:45");
    expect(firingsBetween("10 2,4 * * *", ...SPRING)).toBe("~03-08 07:10, 08:10");
    expect(firingsBetween("0-59/30 2,3 * * *", ...SPRING)).toBe("03-08 07:00, 07:30");
    expect(firingsBetween("40,50 2 8 * FRI", ...SPRING)).toBe("~03-08 07:40, ~07:50");
  });
});

test.each([
  ["30 1 * * *", "11-01 05:30"],
  ["0-59/15 1 * * *", "11-01 05:00, 05:15, 05:30, 05:45"],
  ["0 0-23 * * *", "11-01 05:00, 07:00"],
  ["30 0,1,2 * * *", "11-01 04:30, 05:30, 07:30"],
  ["0 2 * * *", "11-01 07:00"],
  ["30 1 1 11 *", "11-01 05:30"],
])(
  "fixed hours fire the first time only, where the clocks repeat an hour: %s at %s",
  (expression, firings) => {
    expect(firingsBetween(expression, ...AUTUMN)).toBe(firings);
  },
);

test.each<[string, Span, string]>([
  ["0 * * * *", SPRING, "03-08 06:00, 07:00, 08:00"],
  ["30 * * * *", SPRING, "03-08 05:30, 06:30, 07:30, 08:30"],
  ["30 */2 * * *", SPRING, "03-08 05:30, 08:30"],
  ["30 2,*/23 * * *", SPRING, "03-08 05:30"],
  ["0 * * * *", AUTUMN, "11-01 05:00, 06:00, 07:00"],
  ["30 * * * *", AUTUMN, "11-01 04:30, 05:30, 06:30, 07:30"],
  ["30 1,*/23 * * *", AUTUMN, "11-01 04:30, 05:30, 06:30"],
  ["0,30 */2 * * *", AUTUMN, "11-01 04:30, 07:00, 07:30"],
])("a star in the hour field fires in the hours that really pass: %s", (expression, span, firings) => {
  expect(firingsBetween(expression, ...span)).toBe(firings);
});

describe("clock changes of other kinds", () => {
  test.each([
    [
      "half an hour is skipped: shifted by half an hour",
      "15 2 * * *",
      "Australia/Lord_Howe",
      "2026-10-02T12:00",
      "2026-10-05T12:00",
      "10-02 15:45, ~10-03 15:45, 10-04 15:15",
    ],
    [
      "half an hour is skipped: after what was not skipped",
      "15,40 2 * * *",
      "Australia/Lord_Howe",
      "2026-10-03T12:00",
      "2026-10-04T12:00",
      "10-03 15:40, ~15:45",
    ],
    [
      "half an hour is repeated: the first time only",
      "45 1 * * *",
      "Australia/Lord_Howe",
      "2026-04-03T12:00",
      "2026-04-05T23:00",
      "04-03 14:45, 04-04 14:45, 04-05 15:15",
    ],
    [
      "half an hour is repeated: what passes",
      "*/15 * * * *",
      "Australia/Lord_Howe",
      "2026-04-04T14:30",
      "2026-04-04T15:46",
      "04-04 14:30, 14:45, 15:00, 15:15, 15:30, 15:45",
    ],
    [
      "two hours are skipped",
      "30 1,2 * * *",
      "Antarctica/Troll",
      "2026-03-29T00:00",
      "2026-03-29T04:00",
      "~03-29 01:30, ~02:30",
    ],
    [
      "two hours are repeated",
      "30 1,2 * * *",
      "Antarctica/Troll",
      "2026-10-24T23:00",
      "2026-10-25T04:00",
      "10-24 23:30, 10-25 00:30",
    ],
    [
      "midnight is skipped, and still it is that date",
      "0 0 6 9 SUN",
      "America/Santiago",
      "2026-09-01T00:00",
      "2026-09-30T00:00",
      "~09-06 04:00, 09-13 03:00, 09-20 03:00, 09-27 03:00",
    ],
    [
      "midnight is skipped, on the date alone",
      "30 0 6 9 *",
      "America/Santiago",
      "2026-09-01T00:00",
      "2026-09-30T00:00",
      "~09-06 04:30",
    ],
    [
      "midnight is skipped for an hour by star",
      "30 0,*/12 * * *",
      "America/Santiago",
      "2026-09-06T00:00",
      "2026-09-07T00:00",
      "09-06 15:30",
    ],
    [
      "the last hour of a day is repeated",
      "30 23 * * *",
      "America/Santiago",
      "2026-04-04T12:00",
      "2026-04-06T12:00",
      "04-05 02:30, 04-06 03:30",
    ],
    [
      "the last hour of a date passes twice, before the next year's",
      "30 * 4 4 *",
      "America/Santiago",
      "2026-04-05T01:00",
      "2027-04-04T05:00",
      "04-05 01:30, 02:30, 03:30, 04-04 04:30",
    ],
    [
      "a date is skipped: on the next one, at the same time",
      "0 12 30 12 *",
      "Pacific/Apia",
      "2011-12-25T00:00",
      "2012-01-05T00:00",
      "~12-30 22:00",
    ],
    [
      "a date is skipped: every day has its firing",
      "0 12 * * *",
      "Pacific/Apia",
      "2011-12-28T00:00",
      "2012-01-01T00:00",
      "12-28 22:00, 12-29 22:00, 12-30 22:00, 12-31 22:00",
    ],
    [
      "a weekday is skipped: on the day after it",
      "0 9 * * FRI",
      "Pacific/Apia",
      "2011-12-22T00:00",
      "2012-01-10T00:00",
      "12-23 19:00, ~12-30 19:00, 01-05 19:00",
    ],
    [
      "a date is skipped for hours by star",
      "0 */6 30 12 *",
      "Pacific/Apia",
      "2011-12-25T00:00",
      "2012-01-05T00:00",
      "",
    ],
    [
      "a whole day is skipped by two changes of half a day",
      "0 12 21 8 *",
      "Pacific/Kwajalein",
      "1993-08-15T00:00",
      "1993-08-30T00:00",
      "~08-22 00:00",
    ],
    [
      "the offset changes for good",
      "30 0 * * *",
      "Asia/Pyongyang",
      "2015-08-13T12:00",
      "2015-08-15T15:30",
      "08-13 15:30, 08-14 16:00",
    ],
    [
      "the offset is changed at one minute past midnight",
      "0 0 * * *",
      "America/St_Johns",
      "2010-03-13T00:00",
      "2010-03-15T12:00",
      "03-13 03:30, 03-14 03:30, 03-15 02:30",
    ],
    [
      "the clocks are set back into the day before",
      "0 0 * * *",
      "America/St_Johns",
      "2010-11-06T00:00",
      "2010-11-08T12:00",
      "11-06 02:30, 11-07 02:30, 11-08 03:30",
    ],
    [
      "local mean time had seconds",
      "0 12 * * *",
      "Africa/Monrovia",
      "1930-01-01T00:00",
      "1930-01-02T00:00",
      "01-01 12:44",
    ],
  ])("%s: %s in %s", (_, expression, zone, from, to, firings) => {
    expect(firingsBetween(expression, zone, from, to)).toBe(firings);
  });
});

const anyExpression = fc.constantFrom(
  ...[
    "* * * * *",
    "*/30 * * * * *",
    "30 2 * * *",
    "0 0 * 2 MON#5",
    "0 0-23 L * *",
    "15,45 1-3 * * SUN",
    "0 0 31 12 *",
  ],
);
const anyZone = fc.constantFrom(
  "UTC",
  "America/New_York",
  "Australia/Lord_Howe",
  "Pacific/Apia",
  "Africa/Casablanca",
);
const anyInstant = fc.integer({ min: Date.parse("1800-01-01T00:00Z"), max: Date.parse("2500-01-01T00:00Z") });

test("the next firing is after the instant and the previous one is not, with nothing between", () => {
  fc.assert(
    fc.property(anyExpression, anyZone, anyInstant, (expression, name, at) => {
      const [cron, zone] = [parseCron(expression), parseZone(name)];
      const [next, previous] = [nextFiring(cron, zone, at), previousFiring(cron, zone, at)];
      if (next === null || previous === null) throw new Error("there is none");
      expect(next.at).toBeGreaterThan(at);
      expect(previous.at).toBeLessThanOrEqual(at);
      expect(previousFiring(cron, zone, next.at)).toEqual(next);
      expect(previousFiring(cron, zone, next.at - 1)).toEqual(previous);
      expect(nextFiring(cron, zone, previous.at)).toEqual(next);
      expect(nextFiring(cron, zone, previous.at - 1)).toEqual(previous);
    }),
    { numRuns: 2_000 },
  );
});

test("an instant within a second lies after that second's firing and before the next", () => {
  const [cron, utc] = [parseCron("*/30 * * * * *"), parseZone("UTC")];
  expect(nextFiring(cron, utc, 29_999)?.at).toBe(30_000);
  expect(nextFiring(cron, utc, 30_000)?.at).toBe(60_000);
  expect(nextFiring(cron, utc, 30_000.25)?.at).toBe(60_000);
  expect(previousFiring(cron, utc, 29_999.75)?.at).toBe(0);
  expect(previousFiring(cron, utc, 30_000)?.at).toBe(30_000);
});

test("firings end with the year 9999 and begin with the year 0", () => {
  const cron = parseCron("0 0 1 1 *");
  for (const name of ["UTC", "America/New_York", "Pacific/Kiritimati"]) {
    const zone = parseZone(name);
    const last = previousFiring(cron, zone, Date.parse("9999-12-31T23:59:59.999Z"));
    expect(new Date(last?.at ?? 0).toISOString()).toStartWith("999");
    expect(nextFiring(cron, zone, last?.at ?? 0)).toBeNull();
    const first = nextFiring(cron, zone, Date.parse("0000-01-01T00:00:00Z"));
    expect(new Date(first?.at ?? 0).toISOString()).toStartWith("000");
    expect(previousFiring(cron, zone, Date.parse("-000001-01-01T00:00:00Z"))).toBeNull();
  }
  // The last hours of that year in New York lie in the next year in UTC.
  const evening = parseCron("0 18,21 31 12 *");
  const newYork = parseZone("America/New_York");
  const last = nextFiring(evening, newYork, Date.parse("9999-12-31T00:00:00Z"));
  expect(last?.at).toBe(Date.parse("9999-12-31T23:00:00Z"));
  expect(nextFiring(evening, newYork, last?.at ?? 0)).toBeNull();
  expect(nextFiring(cron, parseZone("UTC"), Number.NaN)).toBeNull();
  expect(nextFiring(cron, parseZone("UTC"), Number.POSITIVE_INFINITY)).toBeNull();
});

test("the rarest day comes at least every 40 years", () => {
  const [cron, utc] = [parseCron("0 0 * 2 MON#5"), parseZone("UTC")];
  const years = [...firingsAfter(cron, utc, Date.parse("2000-01-01T00:00Z"))].map(({ at }) =>
    new Date(at).getUTCFullYear(),
  );
  const waits = years.map((year, index) => year - (years[index - 1] ?? 2_016));
  expect(new Set(waits.slice(1))).toEqual(new Set([12, 28, 40]));
});
