import { beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomInt } from "node:crypto";
import fc from "fast-check";
import { parseCron } from "../../shared/domain/cron/cron.ts";
import { type Firing, nextFiring, previousFiring } from "../../shared/domain/cron/firings.ts";
import { parseZone } from "../../shared/domain/cron/zone.ts";
import { anyExpression, canFire, ZONES } from "./cron-cases.ts";
import { type ExpectedFiring, localMinutes, WallClock } from "./cron-oracle.ts";

setDefaultTimeout(240_000);

/** Compares firings around clock changes with an oracle that looks at every minute. SEED repeats a run. */

const EXPRESSIONS = 2_500;
const INSTANTS_PER_EXPRESSION = 4;
const DAY_MS = 86_400_000;
/** No clocks are set forward by more than a day, so nothing from before a window reaches this far into it. */
const MARGIN_MS = 3 * DAY_MS;
const WINDOW_MS = 12 * DAY_MS;
const CHANGE_MS = 3 * 3_600_000;
const PLACES = 100_000;

const seed = Number(process.env.SEED ?? randomInt(2 ** 31));

let windows: WallClock[];
beforeAll(() => {
  windows = ZONES.flatMap(([zone, ...years]) =>
    years.flatMap((year) =>
      changesIn(zone, year).map((at) => new WallClock(zone, at - WINDOW_MS / 2, at + WINDOW_MS / 2)),
    ),
  );
});

test("the windows hold clock changes of every size in more than 30 zones", () => {
  expect(new Set(windows.map(({ zone }) => zone)).size).toBeGreaterThan(30);
  const sizes = new Set<number>();
  for (const { minutes } of windows) {
    minutes.forEach((local, minute) => {
      if (minute > 0) sizes.add(local - (minutes[minute - 1] ?? 0) - 1);
    });
  }
  for (const size of [0, 30, -30, 60, -60, 120, -120, 1_440, -180, 180]) expect([...sizes]).toContain(size);
});

test(`the firings after and before any instant are those of the oracle (seed ${seed})`, () => {
  console.log(`seed ${seed}`);
  let caseCount = 0;
  fc.assert(
    fc.property(
      fc.nat(windows.length - 1),
      anyExpression,
      fc.array(anyPlace, { minLength: INSTANTS_PER_EXPRESSION, maxLength: INSTANTS_PER_EXPRESSION }),
      (index, expression, places) => {
        fc.pre(canFire(expression));
        const window = windows[index] as WallClock;
        const expected = window.firings(expression);
        for (const place of places) {
          judge(window, expression, expected, pickInstant(window, expected, place));
          caseCount++;
        }
      },
    ),
    { seed, numRuns: EXPRESSIONS },
  );
  expect(caseCount).toBeGreaterThanOrEqual(5_000);
});

/** Instants around clock changes, around firings, and anywhere. */
const anyPlace = fc.record({
  near: fc.constantFrom("change", "firing", "nothing"),
  // Not fc.double: it draws exponents evenly, so nearly all of its numbers are close to 0.
  place: fc.nat(PLACES - 1).map((place) => place / PLACES),
  awayMs: fc.constantFrom(0, 0, 1, -1, 999, -1_000),
});

type Place = typeof anyPlace extends fc.Arbitrary<infer T> ? T : never;

function pickInstant(
  window: WallClock,
  expected: readonly ExpectedFiring[],
  { near, place, awayMs }: Place,
): number {
  const from = window.fromAt + MARGIN_MS;
  const to = window.fromAt + WINDOW_MS - MARGIN_MS;
  if (near === "change") {
    const changeAt = window.changes.find((at) => at > from && at < to) ?? from + CHANGE_MS;
    return Math.floor((changeAt + (2 * place - 1) * CHANGE_MS) / 60_000) * 60_000 + awayMs;
  }
  const inner = expected.filter(({ at }) => at > from && at < to);
  const firing = inner[Math.floor(place * inner.length)];
  if (near === "nothing" || firing === undefined) return Math.floor(from + place * (to - from));
  return firing.at + awayMs;
}

function judge(window: WallClock, expression: string, expected: readonly ExpectedFiring[], at: number): void {
  const [cron, zone] = [parseCron(expression), parseZone(window.zone)];
  const from = window.fromAt + MARGIN_MS / 2;
  const known = (firing: Firing | null) =>
    firing === null || firing.at < from || firing.at >= window.fromAt + WINDOW_MS
      ? null
      : { at: new Date(firing.at).toISOString(), moved: firing.movedByClockChange };
  const wanted = (firing: ExpectedFiring | undefined) =>
    known(firing === undefined ? null : { at: firing.at, movedByClockChange: firing.moved });
  expect({
    next: known(nextFiring(cron, zone, at)),
    previous: known(previousFiring(cron, zone, at)),
  }).toEqual({
    next: wanted(expected.find((firing) => firing.at > at)),
    previous: wanted(expected.findLast((firing) => firing.at <= at)),
  });
}

/** The days of a year on which the clocks are changed; any day if there are none. */
function changesIn(zone: string, year: number): number[] {
  const show = localMinutes(zone);
  const changes: number[] = [];
  for (let at = Date.UTC(year, 0, 1); at < Date.UTC(year + 1, 0, 1); at += DAY_MS) {
    if (show(at + DAY_MS) - show(at) !== DAY_MS / 60_000) changes.push(at);
  }
  return changes.length > 0 ? changes : [Date.UTC(year, 6, 1)];
}
