import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { SQL } from "bun";
import type { Flow } from "../../shared/domain/flow-key.ts";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { stopOwnServer } from "../support/postgres.ts";
import { storeJobs } from "./harness/jobs.ts";
import { formatCount, median, printTable, summarize } from "./harness/measure.ts";
import { type OwnCell, type Sink, startOwnCell } from "./harness/own-cell.ts";
import { until } from "./harness/processes.ts";

/**
 * What do flow keys cost, and what does a key with a long queue do to others? Jobs of many keys and as many jobs without a key are
 * stored, become due all at once, and are delivered, by turns. Then many jobs wait behind one key whose target answers slowly, while
 * jobs of another key of that project and jobs without a key become due one after another. Another cell on the same Postgres, in which
 * no job waits, does the same by turns of a second, since a machine's p99 changes from minute to minute. Both cells are watched by turns
 * before any job waits, too. That ratio tells how much two equal cells differ by chance. The range of a ratio holds 95 of 100 ratios
 * of as many turns that are drawn from the measured ones (Efron's bootstrap, 1979).
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
const turns = Number(values.turns);
const seconds = Number(values.seconds);
const perSecond = Number(values["per-second"]);

/** The least rate at which jobs with a key are stored. It sets the due time, so that all are stored before they are due. */
const STORED_PER_S = 4_000;
const LEAD_MS = 3_000;
const WARM_JOBS = 2_000;
const WARM_TURNS = 10;
const DRAWS = 400;
/** The time that the target of the key with the queue takes. */
const SLOW_MS = 500;
const MEBIBYTE = 1_048_576;
const KINDS = ["without a key", "with a key"] as const;
type Kind = (typeof KINDS)[number];

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
  const drained: Record<Kind, Drained[]> = { "without a key": [], "with a key": [] };
  for (let round = 0; round < rounds; round++)
    for (const kind of KINDS) drained[kind].push(await drain(cell, sink, project.no, kind, total));
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
  const [without = Number.NaN, withKey = Number.NaN] = KINDS.map((kind) =>
    median(drained[kind].map(({ perS }) => perS)),
  );
  console.log(`with a key: ${(withKey / without).toFixed(2)} of the rate without\n`);
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
  await storeJobs(cell.db, count, (index) => ({
    ...{ projectNo, targetUrl: `${sink.url}/hook`, runAt },
    ...(kind === "with a key" ? { flow: { key: `customer ${index % keys}`, concurrency } } : {}),
  }));
  if (Date.now() > runAt) throw new Error("the jobs were due before the last was stored");
  await cell.db.run("analyze", "ANALYZE", []);
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

/** Waits for this many jobs. Throws if no more arrive for a while. */
async function untilReceived(sink: Sink, count: number): Promise<void> {
  for (let seen = 0; seen < count; ) {
    await until("more have arrived", async () => (await sink.counts()).jobCount > seen, 100);
    seen = (await sink.counts()).jobCount;
  }
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

/** A cell that is watched, and how late its jobs were, in milliseconds: a list for each turn. */
interface Watched {
  name: string;
  cell: OwnCell;
  sink: Sink;
  projectNo: ProjectNo;
  late: Record<Kind, number[][]>;
}
/** Two cells that are compared. */
type Pair = readonly [Watched, Watched];
const PARTS = [0.5, 0.99];
const noTurns = (): Watched["late"] => ({ "without a key": [], "with a key": [] });

async function measureNeighbours(plain: OwnCell, busy: OwnCell, stops: (() => unknown)[]): Promise<void> {
  const startWatched = async (name: string, cell: OwnCell): Promise<Watched> => ({
    ...{ name, cell, sink: await cell.startSink(), projectNo: (await cell.addProject("queue")).project.no },
    late: noTurns(),
  });
  const nothing = await startWatched("nothing waits", plain);
  const many = await startWatched(`${formatCount(waitingCount)} wait`, busy);
  const beforehand = ({ name, ...watched }: Watched): Watched => ({
    ...watched,
    name: `before: ${name} later`,
    late: noTurns(),
  });
  const alike: Pair = [beforehand(nothing), beforehand(many)];
  await watchByTurns([beforehand(nothing), beforehand(many)], WARM_TURNS);
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
    ...{ projectNo: many.projectNo, targetUrl: `http://127.0.0.1:${slow.port}/`, runAt: Date.now() },
    flow: { key: "busy", concurrency: 1 },
  }));
  // Postgres does the work that all of this leaves to it before the first turn, in both cells alike.
  for (const { databaseUrl } of [plain, busy]) {
    const sql = new SQL(databaseUrl, { max: 1 });
    for (const text of ["SET statement_timeout = 0", "VACUUM ANALYZE", "CHECKPOINT"]) await sql.unsafe(text);
    await sql.close();
  }
  await watchByTurns([nothing, many], turns);
  console.log(`${perSecond} jobs/s, half of them with another key than the one behind which others wait`);
  printTable(
    ["behind one key", "jobs", "late ms p50", "p99"],
    [...alike, nothing, many].flatMap(({ name, late }) =>
      KINDS.map((kind) => [name, kind, ...PARTS.map((part) => partOf(late[kind], part).toFixed(2))]),
    ),
  );
  for (const kind of KINDS) {
    const [p50, p99] = ratiosOf([nothing, many], kind);
    const [p50Alike, p99Alike] = ratiosOf(alike, kind);
    console.log(
      `${kind}: p50 ${p50} and p99 ${p99} of those in the other cell; before any waited ${p50Alike} and ${p99Alike}`,
    );
  }
}

/** The second one's lateness, relative to the first one's, for each of PARTS: the ratio, and the range of the drawn ones. */
function ratiosOf([one, other]: Pair, kind: Kind): string[] {
  const [late, otherLate] = [one.late[kind], other.late[kind]];
  const drawn = Array.from({ length: DRAWS }, () =>
    Array.from(late, () => Math.floor(Math.random() * late.length)),
  );
  return PARTS.map((part) => {
    const ratioOf = (places: readonly number[]) => {
      const draw = (lists: readonly number[][]) => places.map((place) => lists[place] ?? []);
      return partOf(draw(otherLate), part) / partOf(draw(late), part);
    };
    const ratios = drawn.map(ratioOf).toSorted((a, b) => a - b);
    const at = (share: number) => ratios[Math.floor(share * DRAWS)]?.toFixed(2);
    return `${ratioOf([...late.keys()]).toFixed(3)} (${at(0.025)} to ${at(0.975)})`;
  });
}

/** The value below which this part of all values lies. */
function partOf(lists: readonly number[][], part: number): number {
  const sorted = Float64Array.from(lists.flat()).sort();
  return sorted[Math.floor(part * sorted.length)] ?? Number.NaN;
}

/** Jobs of another key and jobs without one become due by turns, for some time in one cell, and then in the other. */
async function watchByTurns(pair: Pair, turnCount: number): Promise<void> {
  const perTurn = perSecond * seconds;
  const storedIn = LEAD_MS + (2 * turnCount * perTurn * 1_000) / STORED_PER_S;
  const firstAt = Math.ceil(Date.now() + storedIn);
  const flow: Flow = { key: "neighbour", concurrency: 10 };
  // Stored instants drop fractions, so whole milliseconds give each job the instant that finds its place again.
  const placesOf = new Map<Watched, Map<number, { kind: Kind; turn: number }>>();
  for (const [place, watched] of pair.entries()) {
    const places = new Map<number, { kind: Kind; turn: number }>();
    placesOf.set(watched, places);
    await storeJobs(watched.cell.db, turnCount * perTurn, (index) => {
      const turn = Math.floor(index / perTurn);
      // The two cells take turns in coming first.
      const slot = 2 * turn + ((place + turn) % 2);
      const runAt = Math.floor(firstAt + 1_000 * (slot * seconds + (index % perTurn) / perSecond));
      const kind = KINDS[index % 2] as Kind;
      places.set(runAt, { kind, turn });
      const wish = { projectNo: watched.projectNo, targetUrl: `${watched.sink.url}/hook`, runAt };
      return kind === "with a key" ? { ...wish, flow } : wish;
    });
    await watched.sink.begin("jobs&receipts");
  }
  if (Date.now() > firstAt) throw new Error("the first was due before the last was stored");
  // Nobody asks the sinks meanwhile.
  await Bun.sleep(firstAt + 2 * turnCount * seconds * 1_000 - Date.now());
  for (const [{ sink, late }, places] of placesOf) {
    await untilReceived(sink, turnCount * perTurn);
    for (const kind of KINDS) late[kind].push(...Array.from({ length: turnCount }, (): number[] => []));
    for (const [, at, dueAt] of (await sink.received()).receipts) {
      const { kind, turn } = places.get(dueAt) as { kind: Kind; turn: number };
      late[kind][turn]?.push(at - dueAt);
    }
  }
}

await main();
await stopOwnServer();
