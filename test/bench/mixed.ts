import { parseArgs } from "node:util";
import { stopOwnServer } from "../support/postgres.ts";
import { storeJobs } from "./harness/jobs.ts";
import { formatCount, printTable, summarize } from "./harness/measure.ts";
import { type OwnCell, type Sink, startOwnCell } from "./harness/own-cell.ts";

/**
 * How late are jobs, and what does one cost, in a project that has jobs with a flow key and jobs without one? Jobs of one project become
 * due one after another, every second one with a key that has places for all. The statements for the two kinds lock the same rows.
 *
 * `--per-second N` jobs (200), `--seconds N` of a round (15), `--rounds N` (4; the first is warm-up and is not told).
 */

const { values } = parseArgs({
  options: {
    "per-second": { type: "string", default: "200" },
    seconds: { type: "string", default: "15" },
    rounds: { type: "string", default: "4" },
  },
});
const perSecond = Number(values["per-second"]);
const seconds = Number(values.seconds);
const count = perSecond * seconds;

const LEAD_MS = 3_000;
/** The last jobs are on their way for some time after they were due. */
const LAST_MS = 2_000;
const FLOW = { key: "neighbour", concurrency: 100 };

interface Round {
  p50: number;
  p99: number;
  cpuUs: ReadonlyMap<string, number>;
  othersCores: number;
}

async function play(cell: OwnCell, sink: Sink, projectNo: number): Promise<Round> {
  await sink.begin("jobs&receipts");
  const firstAt = Date.now() + LEAD_MS;
  await storeJobs(cell.db, count, (index) => ({
    ...{ projectNo, targetUrl: `${sink.url}/hook`, runAt: firstAt + (index * 1_000) / perSecond },
    ...(index % 2 === 0 ? {} : { flow: FLOW }),
  }));
  if (Date.now() > firstAt) throw new Error("the first job was due before the last was stored");
  await Bun.sleep(firstAt - Date.now());
  const endUse = await cell.beginUse();
  await Bun.sleep(firstAt + seconds * 1_000 - Date.now());
  const { cpuUs, othersCores } = await endUse();
  await Bun.sleep(LAST_MS);
  const { receipts } = await sink.received();
  if (receipts.length !== count) throw new Error(`${receipts.length} requests came of ${count} jobs`);
  const late = receipts.map(([, at, dueAt]) => at - dueAt).toSorted((one, other) => one - other);
  const part = (share: number) => late[Math.floor(share * late.length)] ?? Number.NaN;
  return { p50: part(0.5), p99: part(0.99), cpuUs, othersCores };
}

const stops: (() => unknown)[] = [];
try {
  const cell = await startOwnCell("mixed", stops);
  const sink = await cell.startSink();
  const { no } = (await cell.addProject("mixed")).project;
  const rounds: Round[] = [];
  for (let round = 0; round < Number(values.rounds); round++) rounds.push(await play(cell, sink, no));
  const told = rounds.slice(1);
  const of = (figure: (round: Round) => number) => summarize(told.map(figure));
  const costOf = (name: string) => of(({ cpuUs }) => (cpuUs.get(name) ?? Number.NaN) / count);
  console.log(`${formatCount(perSecond)} jobs/s of one project, every second one with a key`);
  printTable(
    ["late ms p50", "p99", "µs Postgres", "µs delivery", "µs worker", "others' cores"],
    [
      [
        of(({ p50 }) => p50),
        of(({ p99 }) => p99),
        ...["postgres", "delivery", "worker"].map(costOf),
        of(({ othersCores }) => othersCores),
      ],
    ],
  );
} finally {
  for (const stop of stops.toReversed()) await stop();
}
await stopOwnServer();
