import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { cpus, release, totalmem } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { CASES } from "./cost/cases.ts";
import { type Cell, settingsOfManifest, startCostCell } from "./cost/cell.ts";
import { measureFullest } from "./cost/fullest.ts";
import { type Figures, type Measurements, summarizeSamples } from "./cost/measurements.ts";
import { printCosts } from "./cost/print.ts";
import { type Disk, type Rows, readDisk } from "./cost/readings.ts";
import { count, measure, type Sample } from "./cost/sample.ts";
import { PAYLOAD } from "./harness/jobs.ts";
import { ROOT } from "./harness/processes.ts";

/**
 * What do 1,000 jobs cost: CPU seconds of each process, rows, write-ahead log, messages and memory? It runs a cell of
 * its own, on a Postgres of its own with fsync, at several rates, since batches cost less at higher rates.
 *
 * `--seconds N` of each case (3), `--rounds N` (3), `--only WORDS` of the cases' names, `--json FILE` for the file that
 * `npm run bench -- capacity` reads.
 */

/** How many seconds of kept and of stored jobs are weighed on disk. */
const WEIGHED_SECONDS = 4;
const COUNTED_SECONDS = 2;
const WARMUP_SECONDS = 2;
const NOTHING: Rows = { inserted: 0, updated: 0, deleted: 0, transactions: 0, fsyncs: 0 };

const { values } = parseArgs({
  options: {
    seconds: { type: "string", default: "3" },
    rounds: { type: "string", default: "3" },
    only: { type: "string", default: "" },
    json: { type: "string" },
  },
});
const cases = CASES.filter(({ name }) => values.only === "" || values.only.split(",").includes(name));
const samples = cases.map((): Sample[] => []);
const cell = await startCostCell();
try {
  await warmUp(cell);
  for (let round = 0; round < Number(values.rounds); round++) {
    // A checkpoint makes each round begin alike: the first change of a page after it is logged as the whole page.
    await cell.watched.db.run("checkpoint", "CHECKPOINT", []);
    for (const [index, each] of cases.entries()) {
      process.stderr.write(`${each.name} at ${each.ratePerS ?? "all that goes"}, round ${round + 1}\n`);
      samples[index]?.push(await measure(cell, each, Number(values.seconds)));
    }
  }
  const rows: Rows[] = [];
  for (const each of cases) {
    process.stderr.write(`${each.name} at ${each.ratePerS ?? "all that goes"}, rows\n`);
    rows.push(await count(cell, each, COUNTED_SECONDS));
  }
  const disk = await weigh(cell);
  process.stderr.write("the most that pods can be made to hold\n");
  const fullest = await measureFullest(cell);
  const measurements: Measurements = {
    measuredAt: new Date().toISOString(),
    command: `npm run bench -- cost --rounds ${values.rounds} --seconds ${values.seconds}`,
    machine: {
      cpu: cpus()[0]?.model ?? "unknown",
      cores: cpus().length,
      memoryBytes: totalmem(),
      kernel: release(),
      bun: Bun.version,
    },
    postgres: await describePostgres(cell),
    payloadBytes: PAYLOAD.length,
    disk,
    fullest,
    cases: cases.map(({ name, ratePerS }, index): Figures => {
      return { name, ratePerS, ...summarizeSamples(samples[index] ?? [], rows[index] ?? NOTHING) };
    }),
  };
  printCosts(measurements);
  if (values.json !== undefined) writeMeasurements(values.json, measurements);
} finally {
  await cell.stop();
}
process.exit(0);

/** Writes the file in the formatter's style, since the repository holds it. */
function writeMeasurements(file: string, measurements: Measurements): void {
  writeFileSync(file, `${JSON.stringify(measurements, null, 2)}\n`);
  const biome = join(ROOT, "node_modules", "@biomejs", "biome", "bin", "biome");
  spawnSync(process.execPath, [biome, "format", "--write", file], { stdio: "ignore" });
}

/** Runs until prepared statements, pools and compiled code are there. */
async function warmUp(cell: Cell): Promise<void> {
  const [flood] = CASES.filter(({ name, ratePerS }) => name === "create and deliver" && ratePerS === null);
  if (flood !== undefined) await measure(cell, flood, WARMUP_SECONDS);
}

/** Bytes on disk, with indexes, of an ended job and of a waiting one. */
async function weigh(cell: Cell): Promise<Measurements["disk"]> {
  const weighed = async (name: string): Promise<Disk> => {
    const found = CASES.find(
      (each) => each.name === name && (each.ratePerS === null || name === "with a webhook"),
    );
    if (found === undefined) throw new Error(`there is no case "${name}"`);
    const before = await readDisk(cell.watched.db);
    const { jobs } = await measure(cell, found, WEIGHED_SECONDS);
    const after = await readDisk(cell.watched.db);
    const each = (of: keyof Disk) => Math.round((after[of] - before[of]) / jobs);
    return { queues: each("queues"), runs: each("runs"), deliveries: each("deliveries"), rest: each("rest") };
  };
  return {
    waiting: await weighed("create in batches"),
    over: await weighed("create and deliver"),
    overWithWebhook: await weighed("with a webhook"),
  };
}

async function describePostgres(cell: Cell): Promise<Measurements["postgres"]> {
  const [row] = await cell.watched.db.run<{ version: string; buffers: string }>(
    "version",
    "SELECT current_setting('server_version') AS version, current_setting('shared_buffers') AS buffers",
    [],
  );
  return {
    version: row?.version ?? "unknown",
    settings: {
      shared_buffers: row?.buffers ?? "unknown",
      fsync: "on",
      ...Object.fromEntries(settingsOfManifest()),
    },
  };
}
