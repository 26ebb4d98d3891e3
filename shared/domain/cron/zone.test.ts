import { expect, test } from "bun:test";
import { ApiError } from "../errors.ts";
import { localTimeOf, parseZone, Zone } from "./zone.ts";

const NAMES = Intl.supportedValuesOf("timeZone");
const YEAR_1850 = Date.parse("1850-01-01T00:00:00Z") / 1_000;
const YEAR_2100 = Date.parse("2100-01-01T00:00:00Z") / 1_000;

test.each([
  ["Europe/Berlin", "Europe/Berlin"],
  ["europe/berlin", "Europe/Berlin"],
  ["AMERICA/PORT-AU-PRINCE", "America/Port-au-Prince"],
  ["america/argentina/buenos_aires", "America/Argentina/Buenos_Aires"],
  ["utc", "UTC"],
  ["Etc/UTC", "Etc/UTC"],
  ["etc/gmt+5", "Etc/GMT+5"],
  ["US/Eastern", "US/Eastern"],
  ["us/eastern", "US/Eastern"],
  ["Asia/Calcutta", "Asia/Calcutta"],
  ["EST5EDT", "EST5EDT"],
  ["GB", "GB"],
])("%s is known and written %s", (text, name) => {
  expect(parseZone(text).name).toBe(name);
  expect(parseZone(name)).toBe(parseZone(text));
});

test.each([
  ...["PST", "CEST", "JST", "IST", "BST"],
  ...["+05:00", "-08:00", "+0530", "+05", "UTC+5", "GMT+5", "Z", "\u221205:00"],
  ...[
    "",
    " ",
    "UTC ",
    " UTC",
    "local",
    "Local",
    "localtime",
    "SYSTEM",
    "Europe",
    "Europe/",
    "Europe/Atlantis",
  ],
  ...[
    "Europe/Berlin\u0000",
    "Europe\\Berlin",
    "../Europe/Berlin",
    "Asia/\u212aolkata",
    "2026-01-01T00:00Z[Europe/Berlin]",
  ],
  ...["__proto__", "constructor", "x".repeat(1_000_000)],
])("%.40p is no zone", (text) => {
  // A known zone is found without the engine. Names that the engine would refuse must still be refused.
  parseZone("Asia/Kolkata");
  let refusal: unknown;
  try {
    parseZone(text);
  } catch (error) {
    refusal = error;
  }
  expect(refusal).toBeInstanceOf(ApiError);
  expect(refusal).toMatchObject({ code: "invalid_cron_expression", param: "timezone" });
});

test("every zone changes its clocks exactly when Intl shows it", () => {
  let changeCount = 0;
  for (const name of NAMES) {
    const zone = new Zone(name);
    const offsetAt = intlOffsets(name);
    const first = zone.stretchAt(YEAR_1850);
    const last = zone.stretchAt(YEAR_2100);
    for (let stretch = first; stretch <= last; stretch++) {
      const samples = [
        Math.max(zone.beginOf(stretch), YEAR_1850),
        Math.min(zone.endOf(stretch), YEAR_2100) - 1,
      ];
      for (const at of samples) {
        if (offsetAt(at) !== zone.offsetOf(stretch))
          throw new Error(`${name} at ${new Date(at * 1_000).toISOString()}`);
      }
      if (stretch > first) expect(zone.beginOf(stretch)).toBe(zone.endOf(stretch - 1));
    }
    changeCount += last - first;
  }
  expect(changeCount).toBeGreaterThan(40_000);
});

// The search for firings looks at one clock change at a time. So the firings that a change shifts must end before the next
// change, and a repeated time must not have been repeated before.
test("no zone changes its clocks again before a skipped or repeated time is over", () => {
  const isNear = (zone: Zone, stretch: number) => {
    const changed = Math.abs(zone.offsetOf(stretch) - zone.offsetBefore(stretch));
    return zone.endOf(stretch) - zone.beginOf(stretch) <= 2 * changed;
  };
  for (const name of NAMES) {
    const zone = new Zone(name);
    for (let stretch = 1; stretch <= zone.stretchAt(YEAR_2100); stretch++) {
      expect([name, stretch, isNear(zone, stretch)]).toEqual([name, stretch, false]);
    }
  }
});

test("stretches are found in any order, from before all changes to the year 9999", () => {
  const instants = [
    "9999-12-31T23:59:59Z",
    "1850-01-01T00:00:00Z",
    "2026-07-01T00:00:00Z",
    "2500-01-01T00:00:00Z",
  ];
  const offsetAt = intlOffsets("America/New_York");
  const zone = new Zone("America/New_York");
  for (const instant of instants) {
    const at = Date.parse(instant) / 1_000;
    const stretch = zone.stretchAt(at);
    expect(zone.beginOf(stretch)).toBeLessThanOrEqual(at);
    expect(zone.endOf(stretch)).toBeGreaterThan(at);
    expect(zone.offsetOf(stretch)).toBe(offsetAt(at));
  }
});

// Only the changes up to 2500 are read. This test fails if a release of the time zone database has one that ends later.
test.each([2_090, 2_490, 2_890, 9_989])(
  "the clock changes of ten years from %p on are the engine's, in every zone",
  (year) => {
    const toAt = Date.UTC(year + 10, 0, 1) / 1_000;
    for (const name of NAMES) {
      const zone = new Zone(name);
      const fromAt = Date.UTC(year, 0, 1) / 1_000;
      const wanted: string[] = [];
      let zoned: Temporal.ZonedDateTime | null = zonedAt(fromAt, name);
      const offset = zoned.offsetNanoseconds / 1e9;
      for (
        zoned = zoned.getTimeZoneTransition("next");
        zoned !== null;
        zoned = zoned.getTimeZoneTransition("next")
      ) {
        if (zoned.epochMilliseconds >= toAt * 1_000) break;
        wanted.push(`${zoned.epochMilliseconds / 1_000} ${zoned.offsetNanoseconds / 1e9}`);
      }
      const found: string[] = [];
      let stretch = zone.stretchAt(fromAt);
      expect([name, zone.offsetOf(stretch)]).toEqual([name, offset]);
      for (; zone.endOf(stretch) < toAt; stretch++) {
        found.push(`${zone.endOf(stretch)} ${zone.offsetOf(stretch + 1)}`);
        expect(zone.offsetBefore(stretch + 1)).toBe(zone.offsetOf(stretch));
        expect(zone.stretchAt(zone.endOf(stretch))).toBe(stretch + 1);
        expect(zone.stretchAt(zone.endOf(stretch) - 1)).toBe(stretch);
      }
      expect([name, found]).toEqual([name, wanted]);
    }
  },
);

test.each([
  ["Europe/Berlin", "2026-03-29T01:30:00.000Z", "2026-03-29T03:30:00+02:00"],
  ["America/New_York", "2026-03-08T07:30:59.999Z", "2026-03-08T03:30:59-04:00"],
  ["Asia/Kathmandu", "2026-01-01T00:00:00Z", "2026-01-01T05:45:00+05:45"],
  ["UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00"],
  ["Africa/Monrovia", "1970-01-01T00:00:00Z", "1969-12-31T23:15:30-00:44:30"],
])("the clocks of %s show %s as %s", (name, instant, local) => {
  expect(localTimeOf(parseZone(name), Date.parse(instant))).toBe(local);
});

/** The offset of a zone at an instant, both in seconds, computed from the local time that Intl writes. */
function intlOffsets(timeZone: string): (at: number) => number {
  const format = new Intl.DateTimeFormat("sv-SE", { timeZone, dateStyle: "short", timeStyle: "medium" });
  return (at) => {
    const shown = format.format(at * 1_000).replace(" ", "T");
    return Date.parse(`${shown}Z`) / 1_000 - at;
  };
}

function zonedAt(at: number, name: string): Temporal.ZonedDateTime {
  return Temporal.Instant.fromEpochMilliseconds(at * 1_000).toZonedDateTimeISO(name);
}
