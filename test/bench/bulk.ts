import { parseArgs } from "node:util";
import pg from "pg";
import { stopOwnServer } from "../support/postgres.ts";
import { storeJobs } from "./harness/jobs.ts";
import { formatCount, printTable } from "./harness/measure.ts";
import { type OwnCell, type Sink, startOwnCell } from "./harness/own-cell.ts";
import { until } from "./harness/processes.ts";
import { quantileOf } from "./harness/quantiles.ts";

/**
 * What does a bulk operation do to others, and is each job sent again once? 100,000 failed jobs are found by `error_contains` among
 * 100,000 that failed for another reason. They are counted by a dry run and sent again at 1,000 a second. The worker is killed three
 * times on the way. Meanwhile another project's jobs become due one after another, and its target tells how late they are. For
 * comparison they are watched beside as many ordinary jobs a second of a third project, before and afterwards.
 *
 * `--jobs N` (100,000), `--per-second N` (1,000), `--neighbour N` jobs a second of the other (100), `--seconds N` of each phase (20).
 */

const { values } = parseArgs({
  options: {
    jobs: { type: "string", default: "100000" },
    "per-second": { type: "string", default: "1000" },
    neighbour: { type: "string", default: "100" },
    seconds: { type: "string", default: "20" },
  },
});
const jobCount = Number(values.jobs);
const perSecond = Number(values["per-second"]);
const neighbourPerS = Number(values.neighbour);
const seconds = Number(values.seconds);

const KILLS = 3;
const ERROR = "connect ECONNREFUSED 10.0.0.7:443";
const ROWS_PER_STATEMENT = 20_000;
/** The time before the neighbour's first job is due, so that it is on the wheel by then. */
const LEAD_MS = 2_500;
const LOOK_EVERY_MS = 50;

interface Bulk {
  id: string;
  status: string;
  matched: number | null;
  done: number;
  skipped: number;
  failed: number;
}

async function main(): Promise<void> {
  const stops: (() => unknown)[] = [];
  try {
    await measure(await startOwnCell("bulk", stops));
  } finally {
    for (const stop of stops.toReversed()) await stop();
  }
}

async function measure(cell: OwnCell): Promise<void> {
  const [mover, neighbour] = [await cell.addProject("mover"), await cell.addProject("neighbour")];
  const third = await cell.addProject("third");
  const [movers, neighbours, thirds] = [
    await cell.startSink(),
    await cell.startSink(),
    await cell.startSink(),
  ];
  await storeFailed(cell, mover.project.no, `${movers.url}/again`);
  await movers.begin("jobs");
  const { ask, look } = apiOf(cell, mover.key);
  const rows: string[][] = [];
  const watched = { cell, projectNo: neighbour.project.no, sink: neighbours };
  const phase = async (name: string, act = async () => {}, isKilling = false) =>
    rows.push([name, ...(await watchNeighbour(watched, act, isKilling))]);

  await phase("before");
  const besideOrdinary = async () => {
    const count = seconds * perSecond;
    await thirds.begin("jobs");
    await storeEvenlyDue(cell, third.project.no, `${thirds.url}/ordinary`, count, perSecond);
    await until(
      "all of them have arrived",
      async () => (await thirds.counts()).count >= count,
      LOOK_EVERY_MS,
    );
  };
  await phase(`beside ${perSecond} ordinary jobs a second`, besideOrdinary);
  const filter = { error_contains: "ECONNREFUSED" };
  const askedAt = performance.now();
  const dry = await ask({ action: "retry", filter, dry_run: true });
  await until("the dry run is over", async () => (await look(dry.id)).status === "counted", LOOK_EVERY_MS);
  const countedMs = performance.now() - askedAt;
  const { matched } = await look(dry.id);

  const bulk = await ask({ action: "retry", filter, per_second: perSecond });
  await until("it runs", async () => (await look(bulk.id)).status === "running", LOOK_EVERY_MS);
  const pace = { at: performance.now(), done: (await look(bulk.id)).done };
  let judgedPerS = Number.NaN;
  await phase("while jobs are sent again", async () => {
    await Bun.sleep(seconds * 1_000);
    judgedPerS = ((await look(bulk.id)).done - pace.done) / ((performance.now() - pace.at) / 1_000);
  });
  const killOften = async () => {
    for (let kill = 0; kill < KILLS; kill++) {
      await cell.worker.end("SIGKILL");
      const { done } = await look(bulk.id);
      await cell.worker.startAgain();
      await until("it goes on", async () => (await look(bulk.id)).done > done, LOOK_EVERY_MS);
    }
  };
  await phase(`while the worker is killed ${KILLS} times`, killOften, true);
  for (let tenth = 1; tenth <= 10; tenth++)
    await until(
      "it goes on",
      async () => (await look(bulk.id)).done >= (jobCount * tenth) / 10,
      LOOK_EVERY_MS,
    );
  await until("it is done", async () => (await look(bulk.id)).status === "done", LOOK_EVERY_MS);
  await until("all have arrived", async () => (await movers.counts()).jobCount >= jobCount, LOOK_EVERY_MS);
  await phase("afterwards");
  await phase(`beside ${perSecond} ordinary jobs a second again`, besideOrdinary);

  printTable(["the neighbour's jobs", "jobs", "late ms p50", "p99", "at most", "others' cores"], rows);
  const over = await look(bulk.id);
  const { count, jobCount: distinct, wrongCount } = await movers.counts();
  const most = await countInSecond(cell, mover.project.no);
  console.log(`
A dry run found ${formatCount(matched ?? 0)} in ${formatCount(countedMs)} ms. Before the first kill ${formatCount(judgedPerS)} were judged in a second, and never
more than ${formatCount(most)} runs were made in one, by their ids. ${over.done} done, ${over.skipped} skipped, ${over.failed} failed; ${count} requests
arrived for ${distinct} jobs.`);
  const isExact = [matched, over.matched, over.done, count, distinct].every((figure) => figure === jobCount);
  if (!isExact || wrongCount > 0) throw new Error("not each job was sent again once");
}

interface Wish {
  cell: OwnCell;
  projectNo: number;
  sink: Sink;
}

/**
 * Lets a project's jobs become due evenly while `act` goes on. Answers their lateness as a row of the table. The row has no figure of
 * the others' cores where one of the processes ends meanwhile.
 */
async function watchNeighbour(
  { cell, projectNo, sink }: Wish,
  act: () => Promise<unknown>,
  isKilling: boolean,
): Promise<string[]> {
  const count = seconds * neighbourPerS;
  await sink.begin("lateness");
  await storeEvenlyDue(cell, projectNo, `${sink.url}/on-time`, count, neighbourPerS);
  const endUse = isKilling ? null : await cell.beginUse();
  await act();
  await until("all of the neighbour's jobs have arrived", async () => (await sink.counts()).count >= count);
  const others = endUse === null ? "" : (await endUse()).othersCores.toFixed(2);
  const { latenessMs, count: arrived } = await sink.received();
  if (arrived !== count) throw new Error(`${arrived} jobs arrived instead of ${count}`);
  return [
    formatCount(count),
    ...[0.5, 0.99, 1].map((part) => quantileOf(latenessMs, part).toFixed(1)),
    others,
  ];
}

function storeEvenlyDue(
  { db }: OwnCell,
  projectNo: number,
  targetUrl: string,
  count: number,
  perS: number,
): Promise<void> {
  const firstAt = Date.now() + LEAD_MS;
  return storeJobs(db, count, (index) => ({
    ...{ projectNo, targetUrl, runAt: firstAt + (index * 1_000) / perS },
  }));
}

function apiOf({ gateway }: OwnCell, key: string) {
  async function request(path: string, body?: object): Promise<Bulk> {
    const response = await fetch(`http://127.0.0.1:${gateway.port}${path}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${path}: ${response.status} ${await response.text()}`);
    return (await response.json()) as Bulk;
  }
  return {
    ask: (body: object) => request("/v2/bulk", body),
    look: (id: string) => request(`/v2/bulk/${id}`),
  };
}

/** Every second job failed for the error that is asked for. One job that is due tomorrow makes the lane. */
async function storeFailed(
  { databaseUrl, db }: OwnCell,
  projectNo: number,
  targetUrl: string,
): Promise<void> {
  await storeJobs(db, 1, () => ({ projectNo, targetUrl, runAt: Date.now() + 86_400_000 }));
  const admin = new pg.Client({ connectionString: databaseUrl });
  await admin.connect();
  await admin.query("SET statement_timeout = 0");
  for (let from = 0; from < 2 * jobCount; from += ROWS_PER_STATEMENT) {
    const count = Math.min(ROWS_PER_STATEMENT, 2 * jobCount - from);
    await admin.query(STORE_FAILED, [projectNo, targetUrl, count]);
  }
  await admin.query("VACUUM (ANALYZE)");
  await admin.end();
}

// Statuses as in codes.ts: failed is 1 for jobs and 2 for runs.
const STORE_FAILED = `
WITH made AS MATERIALIZED (
  SELECT n, uuidv7(-interval '1 hour') AS id, uuidv7(-interval '1 hour') AS run_id FROM generate_series(1, $3::int) n
), asked AS (
  INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds)
  SELECT id, $1, 1, 0, $2, '{}', now(), 1, 10, 3600 FROM made
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at)
  SELECT $1, 1, 0, id, 1, 1, now() FROM made
)
INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, error, started_at, duration_ms, settled_in)
SELECT run_id, id, $1, 1, (SELECT retention_class FROM flows WHERE project_no = $1), 1, 2,
       CASE n % 2 WHEN 0 THEN '${ERROR}' ELSE 'the target answered 500' END, now() - interval '1 hour', 5, NULL
  FROM made`;

/** The most runs that were made in a second, by the times in their ids. */
async function countInSecond({ db }: OwnCell, projectNo: number): Promise<number> {
  const [row] = await db.run<{ most: number }>("count_in_second", COUNT_IN_SECOND, [projectNo]);
  return row?.most ?? 0;
}

const COUNT_IN_SECOND = `
SELECT max(n)::int AS most
  FROM (SELECT count(*) OVER (ORDER BY at RANGE BETWEEN CURRENT ROW AND 999 FOLLOWING) AS n
          FROM (SELECT ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint AS at
                  FROM runs WHERE project_no = $1 AND environment = 1 AND status = 1) r) w`;

await main();
await stopOwnServer();
