import { parseArgs } from "node:util";
import { checkHistory, RULES, type Rule } from "../../support/history/check-history.ts";
import { makePlan } from "./plan.ts";
import { findUnmet } from "./rare-paths.ts";
import { explain, runSeeds } from "./seeds.ts";
import { simulate } from "./simulation.ts";

/**
 * `npm run test:simulation -- --seeds N --from S` simulates the cell under N seeds, and fails if one of them breaks a property
 * or if a rare path was met in none. `--seed S` runs one and shortens its steps if it fails; `--keep 0,4` leaves it only
 * those steps; `--trace` prints all that happens in it.
 */
const { values } = parseArgs({
  options: {
    seeds: { type: "string", default: "1000" },
    from: { type: "string", default: "1" },
    seed: { type: "string" },
    keep: { type: "string" },
    trace: { type: "boolean", default: false },
    counts: { type: "boolean", default: false },
  },
});

/** Fewer seeds cannot be expected to meet every rare path. */
const SEEDS_FOR_RARE_PATHS = 200;
const TOLD_EVERY = 500;

process.exit(values.seed === undefined ? await runMany() : runOne(Number(values.seed)));

function runOne(seed: number): number {
  const kept = values.keep
    ?.split(",")
    .filter((place) => place !== "none")
    .map(Number);
  const plan = makePlan(seed);
  const steps = plan.steps.filter((_, index) => kept === undefined || kept.includes(index));
  const { history, trace } = simulate(plan, steps, values.trace);
  for (const line of trace) console.log(line);
  if (checkHistory(history).length === 0) {
    console.log(`seed ${seed}: nothing is wrong`);
    return 0;
  }
  console.log(explain(seed, kept));
  return 1;
}

async function runMany(): Promise<number> {
  const [from, count] = [Number(values.from), Number(values.seeds)];
  const counts = new Map<string, number>();
  let simulatedMs = 0;
  let unchecked = new Set<Rule>(RULES);
  for (let first = from; first < from + count; first += TOLD_EVERY) {
    const run = await runSeeds(first, Math.min(TOLD_EVERY, from + count - first));
    simulatedMs += run.simulatedMs;
    unchecked = unchecked.intersection(run.unchecked);
    for (const [path, times] of run.counts) counts.set(path, (counts.get(path) ?? 0) + times);
    for (const { seed } of run.failed) console.log(explain(seed));
    if (run.failed.length > 0) return 1;
    console.log(`seeds ${first} to ${first + run.seeds - 1}: nothing is wrong`);
  }
  const { user, system } = process.cpuUsage();
  const hours = (simulatedMs / 3_600_000).toFixed(1);
  console.log(`${count} seeds, ${hours} hours of a cell, ${((user + system) / 1e6).toFixed(0)} s of CPU`);
  console.log(`not checked, since no simulation records it: ${[...unchecked].join(", ")}`);
  if (values.counts)
    for (const [path, times] of [...counts].sort()) console.log(`${String(times).padStart(9)} ${path}`);
  const unmet = count >= SEEDS_FOR_RARE_PATHS ? findUnmet(counts) : [];
  if (unmet.length > 0) console.log(`never met: ${unmet.join(", ")}`);
  return unmet.length === 0 ? 0 : 1;
}
