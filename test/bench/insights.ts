import { parseArgs } from "node:util";
import pg from "pg";
import { INSIGHT_PERIODS } from "../../shared/domain/insights/levels.ts";
import { Sketch } from "../../shared/domain/insights/sketch.ts";
import { countWaiting } from "../../shared/domain/insights/waiting.ts";
import { createLog } from "../../shared/platform/log.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { findInsights } from "../../shared/store/insights/insights.ts";
import { findOutset } from "../../shared/store/insights/progress.ts";
import { takeStep } from "../../shared/store/insights/roll-up.ts";
import { findWaiting } from "../../shared/store/insights/waiting.ts";
import { startCell } from "../support/cell.ts";
import { createTestDatabase, stopOwnServer } from "../support/postgres.ts";
import { startTarget } from "../support/target.ts";
import { formatCount, median, printTable } from "./harness/measure.ts";
import { storeInsights } from "./harness/stored-insights.ts";

/**
 * What do insights cost: to read each period while a million jobs wait, and to roll up a run? Is their lateness what targets see?
 * One project is as most are, with one region and five hosts. The other project is the dearest possible: it has four regions, and
 * in each bucket a hundred hosts that no other bucket has.
 *
 * `--jobs N` lets N jobs of each project wait (1,000,000), `--runs N` rolls up N runs (200,000), `--lanes N` adds N lanes without
 * jobs (10,000), `--rounds N` reads each period N times (30).
 */

const { values: options } = parseArgs({
  options: {
    jobs: { type: "string", default: "1000000" },
    runs: { type: "string", default: "200000" },
    lanes: { type: "string", default: "10000" },
    rounds: { type: "string", default: "30" },
  },
});
const jobCount = Number(options.jobs);
const runCount = Number(options.runs);
const rounds = Number(options.rounds);
const laneCount = Number(options.lanes);

const ENVIRONMENT = 1;
const ROWS_PER_STATEMENT = 100_000;
const RUNS_PER_SETTLEMENT = 20;
const LATE_JOBS = 2_000;
const LATE_EVERY_MS = 10;
const PROJECTS = [
  { no: 1, name: "usual", regions: 1, hosts: 5, hostsOfBucket: () => "" },
  { no: 2, name: "dearest", regions: 4, hosts: 100, hostsOfBucket: (at: number) => `${at}-` },
] as const;

async function main(): Promise<void> {
  const created = await createTestDatabase("insights");
  try {
    await migrate(created.url);
    const admin = new pg.Client({ connectionString: created.url });
    await admin.connect();
    await admin.query("SET statement_timeout = 0; SET synchronous_commit = off");
    const db = openDatabase(created.url, {
      connections: 1,
      log: createLog({ name: "insights", level: "warn" }),
    });
    await seed(admin, db);
    await measureReads(db);
    await measureRollUp(admin, db);
    await compareLateness();
    await db.close();
    await admin.end();
  } finally {
    await created.drop();
  }
}

async function measureReads(db: Database): Promise<void> {
  const rows: string[][] = [];
  for (const { no, name } of PROJECTS) {
    const scope = { projectNo: no, environment: "production" } as const;
    for (const period of INSIGHT_PERIODS) {
      const ms: number[] = [];
      for (let round = 0; round <= rounds; round++) {
        const startedAt = performance.now();
        const { hosts } = await findInsights(db, scope, { period, region: null });
        hosts.shown();
        // The first round makes the plans.
        if (round > 0) ms.push(performance.now() - startedAt);
      }
      rows.push([name, period, formatCount(median(ms)), formatCount(Math.max(...ms))]);
    }
    const ms: number[] = [];
    for (let round = 0; round < rounds; round++) {
      const startedAt = performance.now();
      countWaiting((await findWaiting(db, scope, null)).found);
      ms.push(performance.now() - startedAt);
    }
    rows.push([name, "what waits", formatCount(median(ms)), formatCount(Math.max(...ms))]);
  }
  console.log(
    `${formatCount(jobCount)} jobs of each project wait; ms to read, at the median and at worst of ${rounds}\n`,
  );
  printTable(["project", "period", "median", "worst"], rows);
}

async function measureRollUp(admin: pg.Client, db: Database): Promise<void> {
  await admin.query(SETTLE_RUNS);
  await rollUp(db);
  const rows: string[][] = [];
  const measure = async (name: string, from: number, count: number) => {
    await admin.query(`CALL settle_runs(${from}, ${from + count})`);
    const { ms, cpuMs, steps } = await rollUp(db);
    const each = count === 0 ? [] : [formatCount((ms * 1_000) / count), formatCount((cpuMs * 1_000) / count)];
    rows.push([name, formatCount(count), String(steps), formatCount(ms), ...each]);
  };
  await measure("after an outage", 0, runCount);
  await measure("10 s of 1,000 runs/s", runCount, 10_000);
  await measure("10 s of 100 runs/s", runCount + 10_000, 1_000);
  await measure("10 s of nothing", 0, 0);
  await admin.query(SEED_LANES, [laneCount]);
  await measure(`the same beside ${formatCount(laneCount)} lanes`, 0, 0);
  const [sum] = (
    await admin.query<{ runs: string }>(
      "SELECT sum(succeeded + failed) AS runs FROM insights WHERE level = 0 AND project_no = 3",
    )
  ).rows;
  const settled = formatCount(runCount + 11_000);
  console.log(`\n${formatCount(Number(sum?.runs))} of ${settled} runs are counted\n`);
  printTable(["a tick rolls up", "runs", "steps", "ms", "µs a run", "of it the worker's CPU"], rows);
}

async function rollUp(db: Database): Promise<{ ms: number; cpuMs: number; steps: number }> {
  const beganAt = performance.now();
  const cpu = process.cpuUsage();
  let steps = 0;
  for (let isCaughtUp = false; !isCaughtUp; steps++) {
    const outset = await findOutset(db);
    if (outset === null) throw new Error("there is no state of the roll-up");
    isCaughtUp = (await takeStep(db, outset)).isCaughtUp;
  }
  const { user, system } = process.cpuUsage(cpu);
  return { ms: performance.now() - beganAt, cpuMs: (user + system) / 1_000, steps };
}

/** Runs jobs through a whole cell in this process, and compares the lateness in insights with that at the target. */
async function compareLateness(): Promise<void> {
  const cell = await startCell();
  await cell.startWorker();
  await cell.startDelivery();
  const project = await cell.addProject();
  const target = startTarget();
  const dueAt = Math.ceil(cell.clock.now()) + 1_000;
  const wishes = Array.from({ length: LATE_JOBS }, (_, n) => ({
    targetUrl: target.url,
    runAt: dueAt + n * LATE_EVERY_MS,
  }));
  const ids = await cell.addJobs(project, wishes);
  const arrivals = await target.until(({ length }) => length === LATE_JOBS, 60_000);
  const dueOf = new Map(ids.map((id, n) => [id, dueAt + n * LATE_EVERY_MS]));
  const late = arrivals.map(({ at, jobId }) => at - (dueOf.get(jobId) ?? 0)).sort((a, b) => a - b);
  const scope = { projectNo: project.no, environment: "production" } as const;
  let told = new Sketch();
  while (told.count < LATE_JOBS) {
    await Bun.sleep(100);
    told = (await findInsights(cell.db, scope, { period: "1h", region: null })).totals.late;
  }
  await target.stop();
  await cell.stop();
  const seen = (share: number) => late[Math.ceil(share * late.length) - 1] ?? Number.NaN;
  console.log();
  printTable(
    [`late, ms, of ${formatCount(LATE_JOBS)} jobs`, "p50", "p99"],
    [
      ["told by insights", ...[0.5, 0.99].map((share) => formatCount(told.quantile(share) ?? Number.NaN))],
      ["seen by the target", ...[0.5, 0.99].map((share) => formatCount(seen(share)))],
    ],
  );
}

async function seed(admin: pg.Client, db: Database): Promise<void> {
  await admin.query(SEED_PROJECTS);
  for (const { no, regions } of PROJECTS) {
    for (let from = 0; from < jobCount; from += ROWS_PER_STATEMENT) {
      await admin.query(SEED_WAITING, [no, regions, Math.min(ROWS_PER_STATEMENT, jobCount - from)]);
    }
  }
  await storeInsights(db, PROJECTS);
  await admin.query("VACUUM (ANALYZE)");
}

const SEED_PROJECTS = `
WITH project AS (
  INSERT INTO projects (id, name, plan, api_version)
  SELECT gen_random_uuid(), 'insights ' || n, 'scale', '2026-11-01' FROM generate_series(1, 3) n RETURNING no
), lane AS (
  INSERT INTO lanes (project_no, region, environment, shard) SELECT no, 0, ${ENVIRONMENT}, 0 FROM project
)
INSERT INTO flows (project_no, concurrency, month, retention_class)
SELECT no, 500, date_trunc('month', now())::date, 2 FROM project`;

/** Adds N lanes, each of another project that has no jobs at the moment. */
const SEED_LANES = `
INSERT INTO lanes (project_no, region, environment, shard) SELECT n + 100, 0, ${ENVIRONMENT}, 0 FROM generate_series(1, $1::int) n`;

/** Adds waiting jobs, half of which are due. */
const SEED_WAITING = `
INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
SELECT $1, ${ENVIRONMENT}, n % $2, gen_random_uuid(), now() + (n % 20 - 10) * interval '1 hour', 5 FROM generate_series(1, $3) n`;

/** Jobs and their runs, as so many settlements record them. */
const SETTLE_RUNS = `
CREATE OR REPLACE PROCEDURE settle_runs(first int, last int) LANGUAGE plpgsql AS $$
BEGIN
  WHILE first < last LOOP
    WITH made AS MATERIALIZED (
      SELECT n, (lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0') || left(md5(n::text), 20))::uuid AS id
        FROM generate_series(first, first + ${RUNS_PER_SETTLEMENT - 1}) n
    ), asked AS (
      INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds)
      SELECT id, 3, ${ENVIRONMENT}, 0, 'https://hooks-' || n % 50 || '.example.com/hook', '{}', now(), 5, 10, 3600 FROM made
    )
    INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, started_at, duration_ms, late_ms)
    SELECT id, id, 3, ${ENVIRONMENT}, 2, 1, 1 + (n % 10 = 0)::int, 500, now(), n % 300, n % 20 FROM made;
    COMMIT;
    first := first + ${RUNS_PER_SETTLEMENT};
  END LOOP;
END $$`;

await main();
await stopOwnServer();
