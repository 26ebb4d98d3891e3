import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { explain, isGood, summarize } from "./cell/explain.ts";
import { findUnmet } from "./cell/paths.ts";
import { runCell } from "./cell/run.ts";

/**
 * `npm run test:chaos -- --minutes N --seed S` runs one cell after the other under the faults of the seeds S, S+1 and so on,
 * for about so many minutes. It ends with the first that breaks a property. README.md tells what a run does.
 */
const { values } = parseArgs({
  options: {
    minutes: { type: "string", default: "0" },
    seed: { type: "string", default: "1" },
    // Keeps the folder of every run, not only that of one that failed.
    keep: { type: "boolean", default: false },
  },
});

/** One cell is under faults for this long. Every kind of fault has its turn in it. */
const FAULTS_MS = 75_000;
const EVERY_MS = 1_300;
const OPERATION_EVERY_MS = 60;
/** A run of so many minutes must have met every rare path. */
const LONG_MINUTES = 30;

const endAt = performance.now() + Number(values.minutes) * 60_000;
const scratch = mkdtempSync(join(tmpdir(), "chaos-"));
// Postgres and the pooler run as another account than root.
chmodSync(scratch, 0o755);
const counts = new Map<string, number>();
const totals = { seeds: 0, jobs: 0, runs: 0, faults: 0 };

let seed = Number(values.seed);
do {
  const folder = join(scratch, `seed-${seed}`);
  mkdirSync(folder);
  const outcome = await runCell({
    ...{ seed, folder, faultsMs: FAULTS_MS, everyMs: EVERY_MS, operationEveryMs: OPERATION_EVERY_MS },
  });
  console.log(summarize(outcome));
  totals.seeds++;
  totals.jobs += outcome.history.final.jobs.length;
  totals.runs += outcome.history.final.runs.length;
  for (const [path, times] of outcome.counts) {
    counts.set(path, (counts.get(path) ?? 0) + times);
    if (path.startsWith("fault: ")) totals.faults += times;
  }
  if (!isGood(outcome)) {
    writeFileSync(join(folder, "history.json"), JSON.stringify(outcome.history, mapsAsLists));
    console.log(explain(outcome));
    process.exit(1);
  }
  if (!values.keep) rmSync(folder, { recursive: true, force: true });
  seed++;
} while (performance.now() < endAt);

for (const [path, times] of [...counts].sort()) console.log(`${String(times).padStart(9)} ${path}`);
const { user, system } = process.cpuUsage();
console.log(
  `${totals.seeds} seeds (${values.seed} to ${seed - 1}), ${totals.jobs} jobs, ${totals.runs} runs, ${totals.faults} faults, ` +
    `no violation; ${((user + system) / 1e6).toFixed(0)} s of CPU in this process`,
);
const unmet = Number(values.minutes) >= LONG_MINUTES ? findUnmet(counts) : [];
if (unmet.length > 0) console.log(`never met: ${unmet.join(", ")}`);
if (!values.keep) rmSync(scratch, { recursive: true, force: true });
process.exit(unmet.length === 0 ? 0 : 1);

function mapsAsLists(_key: string, value: unknown): unknown {
  return value instanceof Map || value instanceof Set ? [...value] : value;
}
