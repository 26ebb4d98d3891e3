import { parseArgs } from "node:util";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { stopOwnServer } from "../support/postgres.ts";
import {
  afresh,
  FIGURE_NAMES,
  latenessOf,
  type Pair,
  ratiosOf,
  type Turns,
  type Watched,
  watchByTurns,
} from "./harness/by-turns.ts";
import { SHARDS_PER_REGION, storeJobs } from "./harness/jobs.ts";
import { formatCount, printTable } from "./harness/measure.ts";
import { startOwnCell } from "./harness/own-cell.ts";
import { vacuumAndWrite } from "./harness/vacuum.ts";

/**
 * How much later are jobs in a cell with many projects, many shards in one worker, or many jobs that wait for tomorrow? Two cells on
 * the same Postgres are watched by turns of a second: one with one project and 64 shards, and another with more. Two cells alike are
 * watched, too. That ratio tells how much they differ by chance. The cell that is not watched goes on with what it does without jobs,
 * on the same machine. So the ratio leaves out what that costs the machine.
 *
 * `--projects N` (1,000), `--shards N` of one worker (2,048), `--waiting N` jobs (1,000,000), `--turns N` of each cell (100),
 * `--seconds N` of each turn (1), `--per-second N` jobs (250).
 */

const { values } = parseArgs({
  options: {
    projects: { type: "string", default: "1000" },
    shards: { type: "string", default: "2048" },
    waiting: { type: "string", default: "1000000" },
    turns: { type: "string", default: "100" },
    seconds: { type: "string", default: "1" },
    "per-second": { type: "string", default: "250" },
  },
});
const turns: Turns = {
  count: Number(values.turns),
  seconds: Number(values.seconds),
  perSecond: Number(values["per-second"]),
};
const WARM_TURNS = 10;
const DAY_MS = 86_400_000;

interface Size {
  projects: number;
  shards: number;
  /** Jobs that wait for tomorrow. */
  waiting: number;
}
const LEAST: Size = { projects: 1, shards: SHARDS_PER_REGION, waiting: 0 };
const nameOf = ({ projects, shards, waiting }: Size) =>
  `${formatCount(projects)} ${projects === 1 ? "project" : "projects"}, ${formatCount(shards)} shards, ${formatCount(waiting)} waiting`;

async function main(): Promise<void> {
  const rows: string[][] = [];
  for (const size of [
    LEAST,
    { ...LEAST, projects: Number(values.projects) },
    { ...LEAST, shards: Number(values.shards) },
    { ...LEAST, waiting: Number(values.waiting) },
  ]) {
    const stops: (() => unknown)[] = [];
    try {
      const one = await startWatched(LEAST, stops);
      const other = await startWatched(size, stops);
      // Postgres does the work that filling has left to it before the first turn, in both cells alike.
      for (const { databaseUrl } of [one, other]) await vacuumAndWrite(databaseUrl);
      const pair: Pair = [one, other];
      await watchByTurns([afresh(pair[0]), afresh(pair[1])], { ...turns, count: WARM_TURNS });
      await watchByTurns(pair, turns);
      rows.push(...pair.map((watched) => [watched.name, ...latenessOf(watched, 0)]));
      console.log(`${nameOf(size)}: ${ratiosOf(pair, 0)} of those with ${nameOf(LEAST)}`);
    } finally {
      for (const stop of stops.toReversed()) await stop();
    }
  }
  console.log(`\n${turns.perSecond} jobs/s`);
  printTable(["cell, late in ms", ...FIGURE_NAMES], rows);
}

async function startWatched(
  size: Size,
  stops: (() => unknown)[],
): Promise<Watched & { databaseUrl: string }> {
  const settings = { SHARDS_PER_REGION: String(size.shards), REGIONS: "us-east" };
  const { databaseUrl, db, addProject, startSink } = await startOwnCell("scale", stops, { settings });
  const wishes: { projectNo: ProjectNo; shard: number }[] = [];
  for (let number = 0; number < size.projects; number++) {
    const projectNo = (await addProject(`project ${number}`)).project.no;
    wishes.push({ projectNo, shard: shardOf(projectNo, size.shards) });
  }
  const wishOf = (index: number) => wishes[index % wishes.length] as { projectNo: ProjectNo; shard: number };
  const sink = await startSink();
  const runAt = Date.now() + DAY_MS;
  await storeJobs(db, size.waiting, (index) => ({ ...wishOf(index), targetUrl: sink.url, runAt }));
  return { databaseUrl, name: nameOf(size), db, sink, kinds: [wishOf], late: [[]] };
}

await main();
await stopOwnServer();
