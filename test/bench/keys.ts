import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import type { Flow } from "../../shared/domain/flow-key.ts";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { stopOwnServer } from "../support/postgres.ts";
import {
  afresh,
  FIGURE_NAMES,
  latenessOf,
  type Pair,
  ratiosOf,
  type Turns,
  untilReceived,
  type Watched,
  watchByTurns,
} from "./harness/by-turns.ts";
import { storeJobs } from "./harness/jobs.ts";
import { formatCount, median, printTable, summarize } from "./harness/measure.ts";
import { type OwnCell, type Sink, startOwnCell } from "./harness/own-cell.ts";
import { until } from "./harness/processes.ts";
import { analyze, vacuumAndWrite } from "./harness/vacuum.ts";

/**
 * What do flow keys cost, and what does a key with a long queue do to others? Jobs of many keys and as many jobs without a key are
 * stored, become due all at once, and are delivered, by turns. Then many jobs wait behind one key whose target answers slowly, while
 * jobs of another key of that project and jobs without a key become due one after another. Another cell on the same Postgres, in which
 * no job waits, does the same by turns of a second, since a machine's p99 changes from minute to minute. Both cells are watched by turns
 * before any job waits, too. That ratio tells how much two equal cells differ by chance.
 *
 * `--keys N` (100,000; 0 leaves this part out), `--jobs N` of each key (10), `--concurrency N` of each key (1), `--rounds N` (1).
 * `--waiting N` behind one key (1,000,000; 0 leaves this part out), `--turns N` of each cell (180), `--seconds N` of each turn (1),
 * `--per-second N` jobs meanwhile (200).
 */

const { values } = parseArgs({
  options: {
    keys: { type: "string", default: "100000" },
    jobs: { type: "string", default: "10" },
    concurrency: { type: "string", default: "1" },
    rounds: { type: "string", default: "1" },
    waiting: { type: "string", default: "1000000" },
    turns: { type: "string", default: "180" },
    seconds: { type: "string", default: "1" },
    "per-second": { type: "string", default: "200" },
  },
});
const keyCount = Number(values.keys);
const jobsPerKey = Number(values.jobs);
const concurrency = Number(values.concurrency);
const rounds = Number(values.rounds);
const waitingCount = Number(values.waiting);
const turns: Turns = {
  count: Number(values.turns),
  seconds: Number(values.seconds),
  perSecond: Number(values["per-second"]),
};

/** The least rate at which jobs with a key are stored. It sets the due time, so that all are stored before they are due. */
const STORED_PER_S = 7_000;
const LEAD_MS = 3_000;
const WARM_JOBS = 2_000;
const WARM_TURNS = 10;
/** The key of the jobs that are watched. Its places are enough, also after the machine has stood still for a while. */
const NEIGHBOUR: Flow = { key: "neighbour", concurrency: 100 };
/** The time that the target of the key with the queue takes. */
const SLOW_MS = 500;
const MEBIBYTE = 1_048_576;
const KINDS = ["without a key", "of all keys in turns", "of one key after another"] as const;
type Kind = (typeof KINDS)[number];
const WATCHED_KINDS = ["without a key", "with a key"];

async function main(): Promise<void> {
  const stops: (() => unknown)[] = [];
  try {
    const cell = await startOwnCell("keys", stops);
    const sink = await cell.startSink();
    if (keyCount > 0) await measureDrain(cell, sink);
    if (waitingCount > 0) await measureNeighbours(await startOwnCell("keys_beside", stops), cell, stops);
  } finally {
    for (const stop of stops.toReversed()) await stop();
  }
}

interface Drained {
  perS: number;
  postgresUs: number;
  deliveryUs: number;
  othersCores: number;
  workerBytes: number;
  sweepMs: number;
}

async function measureDrain(cell: OwnCell, sink: Sink): Promise<void> {
  const { project } = await cell.addProject("drain");
  const total = keyCount * jobsPerKey;
  for (const kind of KINDS) await drain(cell, sink, project.no, kind, WARM_JOBS);
  const drained: Record<Kind, Drained[]> = {
    "without a key": [],
    "of all keys in turns": [],
    "of one key after another": [],
  };
  for (let round = 0; round < rounds; round++)
    for (const kind of KINDS) {
      const figures = await drain(cell, sink, project.no, kind, total);
      drained[kind].push(figures);
      console.log(`${kind}: ${formatCount(figures.perS)} jobs/s`);
    }
  console.log(
    `${formatCount(total)} stored jobs, ${jobsPerKey} of each of ${formatCount(keyCount)} keys with concurrency ${concurrency}`,
  );
  printTable(
    [...["jobs", "jobs/s", "µs Postgres", "µs delivery", "worker's most MiB", "sweep ms"], "others' cores"],
    KINDS.map((kind) => {
      const of = (figure: (drained: Drained) => number) => summarize(drained[kind].map(figure));
      return [
        kind,
        of(({ perS }) => perS),
        of(({ postgresUs }) => postgresUs),
        of(({ deliveryUs }) => deliveryUs),
        of(({ workerBytes }) => workerBytes / MEBIBYTE),
        of(({ sweepMs }) => sweepMs),
        of(({ othersCores }) => othersCores),
      ];
    }),
  );
  const rateOf = (kind: Kind) => median(drained[kind].map(({ perS }) => perS));
  for (const kind of KINDS.slice(1))
    console.log(`${kind}: ${(rateOf(kind) / rateOf("without a key")).toFixed(2)} of the rate without a key`);
  console.log();
}

/** Stores jobs that become due at once. The rate is from the first receipt to the last. */
async function drain(
  cell: OwnCell,
  sink: Sink,
  projectNo: ProjectNo,
  kind: Kind,
  count: number,
): Promise<Drained> {
  await sink.begin("jobs");
  const runAt = Date.now() + LEAD_MS + (count * 1_000) / STORED_PER_S;
  const keys = Math.ceil(count / jobsPerKey);
  const keyOf = (order: Kind, index: number) =>
    `customer ${order === "of all keys in turns" ? index % keys : Math.floor(index / jobsPerKey)}`;
  await storeJobs(cell.db, count, (index) => ({
    ...{ projectNo, targetUrl: `${sink.url}/hook`, runAt },
    ...(kind === "without a key" ? {} : { flow: { key: keyOf(kind, index), concurrency } }),
  }));
  if (Date.now() > runAt) throw new Error("the jobs were due before the last was stored");
  await analyze(cell.databaseUrl);
  await Bun.sleep(Math.max(0, runAt - LEAD_MS / 4 - Date.now()));
  writeFileSync(`/proc/${cell.worker.pid}/clear_refs`, "5");
  const sweptBefore = await readSweeps(cell);
  const endUse = await cell.beginUse();
  await untilReceived(sink, count);
  await until("all of them are settled", async () => (await countOnWire(cell)) === 0);
  const { cpuUs, othersCores } = await endUse();
  const swept = await readSweeps(cell);
  const { count: requests, jobCount, firstAt, lastAt } = await sink.counts();
  if (requests !== count || jobCount !== count)
    throw new Error(`${requests} requests of ${jobCount} jobs came, and ${count} jobs were stored`);
  return {
    perS: ((count - 1) * 1_000) / (lastAt - firstAt),
    postgresUs: (cpuUs.get("postgres") ?? Number.NaN) / count,
    deliveryUs: (cpuUs.get("delivery") ?? Number.NaN) / count,
    othersCores,
    workerBytes: peakOf(cell.worker.pid),
    sweepMs: ((swept.sumS - sweptBefore.sumS) * 1_000) / (swept.count - sweptBefore.count),
  };
}

async function countOnWire(cell: OwnCell): Promise<number> {
  const text =
    "SELECT count(*)::int AS count FROM open_jobs WHERE node_id IS NOT NULL AND run_id IS NOT NULL";
  const [row] = await cell.db.run<{ count: number }>("on_wire", text, []);
  return row?.count ?? 0;
}

const peakOf = (pid: number) =>
  Number(/VmHWM:\s+(\d+) kB/.exec(readFileSync(`/proc/${pid}/status`, "utf8"))?.[1]) * 1_024;

/** The number of the worker's sweeps so far, and the time that they took together. */
async function readSweeps({ worker }: OwnCell): Promise<{ sumS: number; count: number }> {
  const text = await (await fetch(`http://127.0.0.1:${worker.opsPort}/metrics`)).text();
  const read = (part: string) =>
    Number(new RegExp(`statement_seconds_${part}{statement="sweep"} (\\S+)`).exec(text)?.[1]);
  return { sumS: read("sum"), count: read("count") };
}

async function measureNeighbours(plain: OwnCell, busy: OwnCell, stops: (() => unknown)[]): Promise<void> {
  const { no: plainNo } = (await plain.addProject("queue")).project;
  const { no: busyNo } = (await busy.addProject("queue")).project;
  const watch = async (name: string, { db, startSink }: OwnCell, projectNo: ProjectNo): Promise<Watched> => ({
    ...{ name, db, sink: await startSink(), late: [[], []] },
    kinds: [() => ({ projectNo }), () => ({ projectNo, flow: NEIGHBOUR })],
  });
  const nothing = await watch("nothing waits", plain, plainNo);
  const many = await watch(`${formatCount(waitingCount)} wait`, busy, busyNo);
  const alike: Pair = [
    afresh(nothing, "before: nothing waits later"),
    afresh(many, `before: ${many.name} later`),
  ];
  await watchByTurns([afresh(nothing), afresh(many)], { ...turns, count: WARM_TURNS });
  await watchByTurns(alike, turns);
  const slow = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    async fetch() {
      await Bun.sleep(SLOW_MS);
      return new Response("ok");
    },
  });
  stops.push(() => slow.stop(true));
  await storeJobs(busy.db, waitingCount, () => ({
    ...{ projectNo: busyNo, targetUrl: `http://127.0.0.1:${slow.port}/`, runAt: Date.now() },
    flow: { key: "busy", concurrency: 1 },
  }));
  // Postgres does the work that all of this leaves to it before the first turn, in both cells alike.
  for (const { databaseUrl } of [plain, busy]) await vacuumAndWrite(databaseUrl);
  await watchByTurns([nothing, many], turns);
  console.log(
    `${turns.perSecond} jobs/s, half of them with another key than the one behind which others wait`,
  );
  printTable(
    ["behind one key, late in ms", "jobs", ...FIGURE_NAMES],
    [...alike, nothing, many].flatMap((watched) =>
      WATCHED_KINDS.map((kind, place) => [watched.name, kind, ...latenessOf(watched, place)]),
    ),
  );
  for (const [place, kind] of WATCHED_KINDS.entries())
    console.log(
      `${kind}: ${ratiosOf([nothing, many], place)} of those in the other cell; before any waited ${ratiosOf(alike, place)}`,
    );
}

await main();
await stopOwnServer();
