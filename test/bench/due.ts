import { parseArgs } from "node:util";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { stopOwnServer } from "../support/postgres.ts";
import { untilReceived } from "./harness/by-turns.ts";
import { PAYLOAD, storeJobs } from "./harness/jobs.ts";
import { formatCount, printTable, summarize } from "./harness/measure.ts";
import { type OwnCell, type Sink, startOwnCell } from "./harness/own-cell.ts";
import { analyze } from "./harness/vacuum.ts";

/**
 * How fast are stored jobs delivered that are due all at once and belong to one project, to 100 and to 1,000? One cell delivers
 * them by turns. So the processes, and what they have compiled and learned, are the same for all three.
 *
 * `--projects N,N` (1,100,1000), `--jobs N` of each turn (20,000), `--rounds N` (10; one more before them is warm-up and is not told).
 */

const { values } = parseArgs({
  options: {
    projects: { type: "string", default: "1,100,1000" },
    jobs: { type: "string", default: "20000" },
    rounds: { type: "string", default: "10" },
  },
});
const jobs = Number(values.jobs);
const sizes = values.projects.split(",").map(Number);

/** The least rate at which jobs are stored, and the rest before they are due. */
const STORED_PER_S = 5_000;
const REST_MS = 1_500;
const PARTS = ["delivery", "postgres", "worker", "nats"];

interface Turn {
  perSecond: number;
  cpuUs: ReadonlyMap<string, number>;
  othersCores: number;
}

async function deliver(cell: OwnCell, sink: Sink, projects: readonly ProjectNo[]): Promise<Turn> {
  await sink.begin("jobs");
  const runAt = Math.ceil(Date.now() + REST_MS + (jobs * 1_000) / STORED_PER_S);
  const projectOf = (index: number) => projects[index % projects.length] as ProjectNo;
  await storeJobs(cell.db, jobs, (index) => ({
    ...{ projectNo: projectOf(index), targetUrl: `${sink.url}/hook`, payload: PAYLOAD, runAt },
  }));
  await analyze(cell.databaseUrl);
  if (Date.now() > runAt - REST_MS / 3)
    throw new Error("the jobs were due before Postgres had stored and analyzed them");
  await Bun.sleep(runAt - REST_MS / 3 - Date.now());
  const endUse = await cell.beginUse();
  await untilReceived(sink, jobs);
  const { firstAt, lastAt } = await sink.counts();
  const { cpuUs, othersCores } = await endUse();
  return { perSecond: ((jobs - 1) * 1_000) / (lastAt - firstAt), cpuUs, othersCores };
}

const stops: (() => unknown)[] = [];
try {
  const cell = await startOwnCell("due", stops, { settings: { REGIONS: "us-east" } });
  const sink = await cell.startSink();
  const projects: ProjectNo[] = [];
  while (projects.length < Math.max(...sizes))
    projects.push((await cell.addProject(`project ${projects.length}`)).project.no);
  const rounds: Turn[][] = [];
  for (let round = 0; round <= Number(values.rounds); round++) {
    const turns: Turn[] = [];
    // Those that come last in one round come first in the next.
    for (const place of round % 2 === 0 ? sizes.keys() : [...sizes.keys()].reverse())
      turns[place] = await deliver(cell, sink, projects.slice(0, sizes[place]));
    if (round > 0) rounds.push(turns);
  }
  printTable(
    ["projects", "jobs/s", "to the first", ...PARTS.map((part) => `µs ${part}`), "others' cores"],
    sizes.map((size, place) => {
      const of = (figure: (turn: Turn, first: Turn) => number) =>
        summarize(rounds.map((turns) => figure(turns[place] as Turn, turns[0] as Turn)));
      return [
        formatCount(size),
        of(({ perSecond }) => perSecond),
        of(({ perSecond }, first) => perSecond / first.perSecond),
        ...PARTS.map((part) => of(({ cpuUs }) => (cpuUs.get(part) ?? Number.NaN) / jobs)),
        of(({ othersCores }) => othersCores),
      ];
    }),
  );
} finally {
  for (const stop of stops.toReversed()) await stop();
}
await stopOwnServer();
