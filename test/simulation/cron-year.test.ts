import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomInt } from "node:crypto";
import fc from "fast-check";
import { parseCron } from "../../shared/domain/cron/cron.ts";
import { type Firing, firingsAfter, firingsUntil, nextFiring } from "../../shared/domain/cron/firings.ts";
import { parseZone } from "../../shared/domain/cron/zone.ts";
import { ZONES } from "./cron-cases.ts";
import { WallClock } from "./cron-oracle.ts";

setDefaultTimeout(240_000);

/**
 * Plays a year of a schedule in each zone, by clocks that run and by clocks that jump, and compares its firings with
 * the oracle's. SEED repeats a run.
 */

const DAY_MS = 86_400_000;
const HOUR_MS = 3_600_000;
const CUTS = 30;
const EXPRESSIONS = [
  "30 2 * * *",
  "*/20 * * * *",
  "0 0-23 * * *",
  "15,45 0,3,23 * * *",
  "0,30 */2 1,15,L * SAT,SUN",
  "*/30 30 1-3 * * FRI-SUN",
  "0 0 31 * 5L",
];

const seed = Number(process.env.SEED ?? randomInt(2 ** 31));
/** Some of the expressions; another seed takes others. */
const SOME = fc
  .sample(fc.shuffledSubarray(EXPRESSIONS, { minLength: 3, maxLength: 3 }), { seed, numRuns: 1 })
  .flat();
const years = ZONES.map(([zone, year = 2026]) => ({ zone, year }));

describe.each(years)(`all of $year in $zone (seed ${seed})`, ({ zone: name, year }) => {
  const fromAt = Date.UTC(year, 0, 1);
  const toAt = Date.UTC(year + 1, 0, 1);
  const zone = parseZone(name);
  let expected: Map<string, number[]>;
  // The window begins two days earlier, since the oracle misses firings that were moved into it from before.
  const expectedOf = (expression: string) => {
    expected ??= expectedFirings(new WallClock(name, fromAt - 2 * DAY_MS, toAt), fromAt);
    return expected.get(expression) ?? [];
  };

  test.each(EXPRESSIONS)("%s fires once at each of the oracle's instants, in order", (expression) => {
    const cron = parseCron(expression);
    const wanted = expectedOf(expression);
    expect(wanted.length).toBeGreaterThan(11);
    expect(collect(firingsAfter(cron, zone, fromAt), (at) => at < toAt)).toEqual(wanted);
    expect(collect(firingsUntil(cron, zone, toAt - 1), (at) => at > fromAt)).toEqual(wanted.toReversed());
    expect(wanted.every((at, index) => index === 0 || at > (wanted[index - 1] as number))).toBe(true);
  });

  test.each(SOME)("%s has the same next firings after any cut", (expression) => {
    const cron = parseCron(expression);
    const wanted = expectedOf(expression);
    fc.assert(
      fc.property(fc.integer({ min: fromAt, max: toAt - 1 }), (cut) => {
        const rest = wanted.filter((at) => at > cut).slice(0, 3);
        expect(collect(firingsAfter(cron, zone, cut).take(3), (at) => at < toAt)).toEqual(rest);
      }),
      { seed, numRuns: CUTS },
    );
  });

  test.each(SOME)("%s fires nothing twice and leaves nothing out under a clock that jumps", (expression) => {
    const cron = parseCron(expression);
    const random = fc.sample(fc.nat(999), { seed, numRuns: 997 });
    const fired: number[] = [];
    let dueAt = nextFiring(cron, zone, fromAt)?.at ?? toAt;
    let step = 0;
    for (let now = fromAt; now < toAt; step++) {
      const chance = (random[step % random.length] as number) / 1_000;
      // Mostly forward by up to six hours; sometimes back by an hour, or forward by a day.
      now += chance < 0.1 ? -HOUR_MS : chance > 0.98 ? DAY_MS : chance * 6 * HOUR_MS;
      while (dueAt <= Math.min(now, toAt - 1)) {
        fired.push(dueAt);
        dueAt = nextFiring(cron, zone, dueAt)?.at ?? toAt;
      }
    }
    expect(fired).toEqual(expectedOf(expression));
  });
});

function expectedFirings(wall: WallClock, after: number): Map<string, number[]> {
  return new Map(
    EXPRESSIONS.map((expression) => [
      expression,
      wall.firings(expression).flatMap(({ at }) => (at > after ? [at] : [])),
    ]),
  );
}

function collect(firings: Iterable<Firing>, isWanted: (at: number) => boolean): number[] {
  const instants: number[] = [];
  for (const { at } of firings) {
    if (!isWanted(at)) break;
    instants.push(at);
  }
  return instants;
}
