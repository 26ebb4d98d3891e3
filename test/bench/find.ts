import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import type pg from "pg";
import { firstIdAt, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { INSIGHT_PERIODS } from "../../shared/domain/insights/levels.ts";
import { createLog } from "../../shared/platform/log.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { findInsights } from "../../shared/store/insights/insights.ts";
import { findWaiting } from "../../shared/store/insights/waiting.ts";
import { findExplained } from "../../shared/store/resources/explain.ts";
import { type JobListQuery, listJobs } from "../../shared/store/resources/job-list.ts";
import { listRuns, type RunListQuery } from "../../shared/store/resources/run-list.ts";
import { stopOwnServer } from "../support/postgres.ts";
import { at, begin, connectUnbounded, fillWithJobs, findPlaces, SCHEDULE } from "./find/stored-jobs.ts";
import { startLoad } from "./harness/load-beside.ts";
import { formatCount, median, printTable } from "./harness/measure.ts";
import { startOwnCell } from "./harness/own-cell.ts";
import { storeInsights } from "./harness/stored-insights.ts";

/**
 * What does a page filtered by tag, schedule, status, region or time cost beside a load, and what do `explain` and insights cost? One
 * project has a million jobs (find/stored-jobs.ts). Pages of 50 are asked for from the newest job on and from places in between. Their
 * filters are each one alone, every pair, and every three of a tag, a schedule and a status. Pages of runs are asked for in the same
 * way. Meanwhile another project's jobs are created over HTTP and delivered.
 *
 * `--jobs N` stores N jobs (1,000,000), `--rounds N` asks for each page N times (30), `--load N` creates N of the other jobs a second
 * (0), `--retried N` has N jobs wait for an attempt that was asked for by hand (50).
 */

const { values: options } = parseArgs({
  options: {
    jobs: { type: "string", default: "1000000" },
    rounds: { type: "string", default: "30" },
    load: { type: "string", default: "0" },
    retried: { type: "string", default: "50" },
  },
});
const jobCount = Number(options.jobs);
const rounds = Number(options.rounds);

const PAGE = 51;
const BESIDE_SECONDS = 20;

const environment = "production" as const;
type JobFilters = Partial<
  Pick<JobListQuery, "status" | "region" | "tag" | "scheduleId" | "fromId" | "beforeId">
>;
const JOB_FILTERS: Record<string, Record<string, JobFilters>> = {
  status: {
    succeeded: { status: "succeeded" },
    failed: { status: "failed" },
    queued: { status: "queued" },
    running: { status: "running" },
    canceled: { status: "canceled" },
  },
  region: { "us-east": { region: "us-east" }, "ap-southeast": { region: "ap-southeast" } },
  tag: { common: { tag: "common" }, rare: { tag: "rare" } },
  schedule: { schedule: { scheduleId: SCHEDULE } },
  time: {
    created: { fromId: firstIdAt(JOB_PREFIX, at(0.4)), beforeId: firstIdAt(JOB_PREFIX, at(0.5)) },
  },
};
type RunFilters = Partial<
  Pick<RunListQuery, "status" | "tag" | "scheduleId" | "startedAfter" | "startedBefore">
>;
const RUN_FILTERS: Record<string, Record<string, RunFilters>> = {
  status: {
    succeeded: { status: "succeeded" },
    failed: { status: "failed" },
    running: { status: "running" },
  },
  tag: { common: { tag: "common" }, rare: { tag: "rare" } },
  schedule: { schedule: { scheduleId: SCHEDULE } },
  time: { started: { startedAfter: at(0.4), startedBefore: at(0.5) } },
};

async function main(): Promise<void> {
  const stops: (() => unknown)[] = [];
  try {
    await measureAll(stops);
  } finally {
    for (const stop of stops.toReversed()) await stop();
  }
}

async function measureAll(stops: (() => unknown)[]): Promise<void> {
  let projectNo = 0;
  const cell = await startOwnCell("find", stops, {
    async fill({ databaseUrl, db, addProject }) {
      projectNo = (await addProject("find")).project.no;
      const begunAt = performance.now();
      await fillWithJobs(databaseUrl, projectNo, { jobCount, retriedCount: Number(options.retried) });
      await storeInsights(db, [{ no: projectNo, regions: 2, hosts: 20, hostsOfBucket: () => "" }]);
      console.log(`stored within ${formatCount((performance.now() - begunAt) / 1_000)} s`);
    },
  });
  const { databaseUrl } = cell;
  const client = await connectUnbounded(databaseUrl);
  stops.push(() => client.end());
  const log = createLog({ name: "find", level: "warn" });
  const db = openDatabase(databaseUrl, { connections: 1, log });
  stops.push(db.close);
  const load = await startLoad(cell, Number(options.load));
  await load.watch("before", () => Bun.sleep(BESIDE_SECONDS * 1_000));
  await load.watch("while asked", () => ask(db, client, projectNo));
  await load.watch("afterwards", () => Bun.sleep(BESIDE_SECONDS * 1_000));
  load.print();
}

async function ask(db: Database, client: pg.Client, projectNo: number): Promise<void> {
  const scope = { projectNo, environment };
  const [own] = await db.run<{ pid: number }>("own_backend", "SELECT pg_backend_pid() AS pid", []);
  backend = own?.pid ?? 0;
  const placesOf = (from: Parameters<typeof findPlaces>[3]) => findPlaces(client, projectNo, rounds, from);
  const places = await placesOf({ table: "jobs", id: "id", condition: "true" });
  console.log(
    `${formatCount(jobCount)} jobs, ms for a page of ${PAGE - 1}, and of it ms of CPU of Postgres, at the median of ${rounds}\n`,
  );
  await measure(
    "jobs",
    combine(JOB_FILTERS),
    (filters, beforeId) =>
      listJobs(db, {
        ...{ status: null, region: null },
        ...scope,
        ...filters,
        beforeId: earlier(filters.beforeId ?? null, beforeId),
        limit: PAGE,
      }),
    places,
  );
  await measure(
    "runs",
    combine(RUN_FILTERS),
    (filters, beforeId) =>
      listRuns(db, {
        ...{ jobId: null, status: null },
        ...scope,
        ...{ sinceAt: begin, beforeId: beforeId?.replace("job_", "run_") ?? null, limit: PAGE },
        ...filters,
      }),
    places,
  );
  const rows: string[][] = [];
  const note = async (name: string, asks: (() => Promise<unknown>)[]) => {
    const samples: Sample[] = [];
    for (const one of asks) samples.push(await timed(one));
    const [ms, cpuMs] = [samples.map((sample) => sample.ms), samples.map((sample) => sample.cpuMs)];
    rows.push([name, String(asks.length), ...[median(ms), median(cpuMs), Math.max(...ms)].map(formatCount)]);
  };
  for (const [name, from] of Object.entries(EXPLAINED)) {
    const ids = await placesOf(from);
    await note(
      `explain: ${name}`,
      ids.map((id) => () => findExplained(db, { ...scope, sinceAt: begin }, id)),
    );
  }
  for (const period of INSIGHT_PERIODS) {
    const read = async () => (await findInsights(db, scope, { period, region: null })).hosts.shown();
    await note(`insights: ${period}`, Array(rounds).fill(read));
  }
  await note(
    "insights: what waits",
    Array(rounds).fill(() => findWaiting(db, scope, null)),
  );
  printTable(["", "times", "ms", "CPU", "worst"], rows);
  console.log();
}

const ended = (status: number) => ({ table: "ended_jobs", id: "job_id", condition: `status = ${status}` });
const open = (condition: string) => ({ table: "open_jobs", id: "job_id", condition });
/** The tables from which the explained jobs are taken. */
const EXPLAINED = {
  succeeded: ended(0),
  failed: ended(1),
  canceled: ended(2),
  "due tomorrow": open("run_id IS NULL AND due_at > now()"),
  "retried by hand": open("run_id IS NOT NULL"),
  "due with 4,998 others": open("due_at <= now()"),
};

const earlier = (one: string | null, other: string | null) =>
  one === null || other === null ? (one ?? other) : one < other ? one : other;

/** Combines filters: each alone, every two, and tag, schedule and status together. */
function combine<Filters>(groups: Record<string, Record<string, Filters>>): Map<string, Filters> {
  const found = new Map<string, Filters>();
  const kinds = Object.entries(groups);
  for (const [index, [, group]] of kinds.entries()) {
    for (const [name, filters] of Object.entries(group)) {
      found.set(name, filters);
      for (const [, others] of kinds.slice(index + 1))
        for (const [other, more] of Object.entries(others))
          found.set(`${name} + ${other}`, { ...filters, ...more });
    }
  }
  const { status = {}, tag = {}, schedule = {} } = groups;
  for (const [a, one] of Object.entries(status))
    for (const [b, two] of Object.entries(tag))
      for (const [c, three] of Object.entries(schedule))
        found.set(`${a} + ${b} + ${c}`, { ...one, ...two, ...three });
  return found;
}

async function measure<Filters>(
  name: string,
  queries: Map<string, Filters>,
  ask: (filters: Filters, beforeId: string | null) => Promise<{ rows: unknown[]; endId: string | null }>,
  places: readonly string[],
): Promise<void> {
  const rows: string[][] = [];
  for (const [label, filters] of queries) {
    const [newest, between]: [Sample[], Sample[]] = [[], []];
    const first = await ask(filters, null);
    for (let round = 0; round < rounds; round++) {
      newest.push(await timed(() => ask(filters, null)));
      between.push(await timed(() => ask(filters, places[round % places.length] ?? null)));
    }
    const shown = (samples: Sample[]) => [
      formatCount(median(samples.map(({ ms }) => ms))),
      formatCount(median(samples.map(({ cpuMs }) => cpuMs))),
    ];
    const worst = Math.max(...[...newest, ...between].map(({ ms }) => ms));
    rows.push([
      ...[label, String(first.rows.length), first.endId === null ? "" : "cut"],
      ...[...shown(newest), ...shown(between), formatCount(worst)],
    ]);
  }
  printTable([name, "rows", "", "newest", "CPU", "between", "CPU", "worst"], rows);
  console.log();
}

interface Sample {
  ms: number;
  /** The CPU of the backend that the benchmark asks. */
  cpuMs: number;
}

let backend = 0;

async function timed(act: () => Promise<unknown>): Promise<Sample> {
  const before = cpuMsOf(backend);
  const start = performance.now();
  await act();
  return { ms: performance.now() - start, cpuMs: cpuMsOf(backend) - before };
}

/** The time that a process was on a processor (Linux' Documentation/scheduler/sched-stats). */
const cpuMsOf = (pid: number) => Number(readFileSync(`/proc/${pid}/schedstat`, "utf8").split(" ")[0]) / 1e6;

await main();
await stopOwnServer();
