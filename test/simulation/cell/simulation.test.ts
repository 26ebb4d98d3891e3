import { expect, setDefaultTimeout, test } from "bun:test";
import { makePlan } from "./plan.ts";
import { findUnmet } from "./rare-paths.ts";
import { explain, runSeeds } from "./seeds.ts";
import { simulate } from "./simulation.ts";
import { Timeline } from "./timeline.ts";

setDefaultTimeout(900_000);

/**
 * The real code of workers and delivery nodes in one thread, under seeds: clock, bus, targets, chance and the faults of
 * all of them are simulated. A failing seed prints the command that repeats it. `npm run test:simulation` runs as many
 * seeds as it is told.
 */

const SEEDS = 200;
const FIRST_SEED = 1;

test(`whatever fails under ${SEEDS} seeds, nothing is lost, doubled, early, late or more than its limit`, async () => {
  const { seeds, counts, failed } = await runSeeds(FIRST_SEED, SEEDS);
  expect(failed.map(({ seed }) => explain(seed))).toEqual([]);
  expect(seeds).toBe(SEEDS);
  expect(findUnmet(counts)).toEqual([]);
});

test("the same seed makes the same trace, byte for byte, whatever ran before it", () => {
  const plan = makePlan(11);
  const first = simulate(plan, plan.steps, true);
  simulate(makePlan(12));
  const second = simulate(makePlan(11), undefined, true);
  expect(first.trace.length).toBeGreaterThan(1_000);
  expect(second.trace.join("\n")).toBe(first.trace.join("\n"));
});

test("a trace changes nothing of what it tells", () => {
  const plan = makePlan(13);
  const [told, untold] = [simulate(plan, plan.steps, true), simulate(plan)];
  expect(untold.history).toEqual(told.history);
});

test("a simulation leaves the clocks and timers of its process as they were", () => {
  const names = () => [
    setTimeout,
    setImmediate,
    clearTimeout,
    performance.now,
    Date.now,
    Math.random,
    Bun.sleep,
  ];
  const before = names();
  simulate(makePlan(14), []);
  expect(names()).toEqual(before);
});

test("a cell that works without end fails", () => {
  const timeline = new Timeline();
  const again = () => void timeline.in(0.001, null, again);
  again();
  expect(() => timeline.run(2_000)).toThrow("the cell works without end in second 0");
});
