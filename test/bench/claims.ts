import { randomBytes } from "node:crypto";
import { createIdSource, JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../shared/domain/ids.ts";
import type { Environment } from "../../shared/domain/scope.ts";
import { createLog } from "../../shared/platform/log.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import { openDatabase } from "../../shared/store/database/database.ts";
import type { Settlement } from "../../shared/store/queue/settle.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import { cancelJob, retryRun } from "../../shared/store/resources/jobs-by-hand.ts";
import { listRuns } from "../../shared/store/resources/run-list.ts";
import { claimShortFirst, orRefused, settleShortFirst } from "../../shared/store/test-support.ts";
import { keyCause } from "../support/cause.ts";
import { createTestDatabase, stopOwnServer } from "../support/postgres.ts";
import { newJob } from "./harness/jobs.ts";
import { median, printTable } from "./harness/measure.ts";

/**
 * Are the statements of claims and settlements exact under READ COMMITTED, and what do they cost? Two processes
 * claim batches of 100 over 1, 100 and 10,000 projects, with cancels and manual retries between them. Meanwhile the
 * permits counted in the flows must equal the attempts on the wire and stay within the limits. In the end nothing may
 * be on the wire, and no deadlock may have occurred.
 */

const JOBS = 20_000;
const BATCH = 100;
/** A batch is drawn at random from this many due attempts, so that the two claimers collide in some attempts only. */
const PICK_AMONG = 4 * BATCH;
/** New work stops with fewer due attempts than this; otherwise the end would be many small batches. */
const DISTURB_UNTIL_DUE = 10 * BATCH;
const DISTURB_EVERY_MS = 5;
const CHECK_EVERY_MS = 25;
const IDLE_LOOKS_MAX = 5;
const IDLE_LOOK_MS = 100;
const log = createLog({ name: "claims", level: "warn" });

async function main(): Promise<void> {
  const rows: string[][] = [];
  for (const projectCount of [1, 100, 10_000]) rows.push(await measure(projectCount));
  printTable(
    [
      "projects",
      "claim µs/row",
      "settle µs/row",
      "rows a claim",
      "checks in flight",
      "worst in use / limit",
      "deadlocks",
      "attempts",
    ],
    rows,
  );
}

async function measure(projectCount: number): Promise<string[]> {
  const created = await createTestDatabase("claims");
  await migrate(created.url);
  const db = openDatabase(created.url, { connections: 8, log });
  const limit = projectCount === 10_000 ? 2 : 120;
  await db.run("seed", seed(projectCount, limit), []);
  const lanes = new Set<string>();
  for (let start = 0; start < JOBS; start += 1_000) {
    const jobs = Array.from({ length: 1_000 }, (_, index) =>
      newJob({
        projectNo: ((start + index) % projectCount) + 1,
        environment: index % 3 === 0 ? "development" : "production",
        targetUrl: "https://example.com/hook",
        payload: '{"n":1}',
        runAt: Date.now(),
        maxAttempts: 3,
        baseSeconds: 1,
        capSeconds: 1,
      }),
    );
    await createJobs(db, jobs, lanes);
  }
  await db.run("analyze", "ANALYZE", []);
  const claimers = [1, 2].map((number) =>
    Bun.spawn(
      [process.execPath, import.meta.path, "claimer", created.url, String(number), String(projectCount)],
      {
        stdout: "pipe",
        stderr: "inherit",
      },
    ),
  );
  let running = true;
  const checks = { count: 0, worst: 0 };
  const watching = (async () => {
    while (running) {
      // One statement reads one snapshot: the flows and the wire must agree in it whatever commits meanwhile.
      const [row] = await db.run<{ wrong: number; in_use: number; worst: number }>("check_flows", CHECK, []);
      if (row === undefined || row.wrong > 0)
        throw new Error(`flows disagree with the wire in ${row?.wrong} projects`);
      if (row.worst > 1) throw new Error("a limit was exceeded");
      checks.worst = Math.max(checks.worst, row.worst);
      if (row.in_use > 0) checks.count++;
      await Bun.sleep(CHECK_EVERY_MS);
    }
  })();
  const disturbing = disturb(created.url, projectCount, () => running);
  const reports = await Promise.all(
    claimers.map(async (claimer) => JSON.parse(await new Response(claimer.stdout).text())),
  );
  running = false;
  const disturbed = await disturbing;
  await watching;
  const [end] = await db.run<{
    on_wire: number;
    in_use: number;
    deadlocks: number;
    doubled: number;
    runs: number;
    month_runs: number;
  }>("end", END, []);
  if (end === undefined || end.on_wire !== 0 || end.in_use !== 0)
    throw new Error(`left over: ${JSON.stringify(end)}`);
  if (end.deadlocks !== 0 || end.runs !== end.month_runs)
    throw new Error(`not exact: ${JSON.stringify(end)}`);
  await db.close();
  await created.drop();
  process.stderr.write(
    `${projectCount} projects: ${disturbed.canceled} cancels, ${disturbed.retried} manual retries\n`,
  );
  return [
    String(projectCount),
    median(reports.flatMap((report) => report.claimUs)).toFixed(1),
    median(reports.flatMap((report) => report.settleUs)).toFixed(1),
    median(reports.flatMap((report) => report.sizes)).toFixed(0),
    String(checks.count),
    checks.worst.toFixed(2),
    String(end.deadlocks),
    String(end.runs),
  ];
}

/** One claimer: claims due attempts until none has been due for a while. Half of the attempts fail. */
async function claimAndSettle(url: string, number: number, projectCount: number): Promise<void> {
  const db = openDatabase(url, { connections: 4, log });
  const ids = createIdSource(randomBytes);
  const node = await addNode(db, {
    kind: "delivery",
    name: `claimer-${number}`,
    regions: ["us-east"],
    process: "bench",
  });
  if (node === null) throw new Error("the name is taken");
  const report = { claimUs: [] as number[], settleUs: [] as number[], sizes: [] as number[] };
  let idle = 0;
  while (idle < IDLE_LOOKS_MAX) {
    const start = 1 + Math.floor(Math.random() * projectCount);
    const among = await db.run<PickedRow>("pick", PICK, [start, PICK_AMONG]);
    const due = drawByLot(among, BATCH);
    idle = due.length === 0 ? idle + 1 : 0;
    if (due.length === 0) {
      await Bun.sleep(IDLE_LOOK_MS);
      continue;
    }
    const claims = due.map((row) => ({
      projectNo: row.project_no,
      environment: (row.environment === 0 ? "development" : "production") as Environment,
      region: "us-east" as const,
      jobId: uuidToId(JOB_PREFIX, row.job_id),
      attempt: row.attempt,
      runId: ids.next(RUN_PREFIX, Date.now()),
    }));
    let askedAt = performance.now();
    const answers = await claimShortFirst(db, node, claims);
    const granted: Settlement[] = [];
    for (const [index, answer] of answers.entries()) {
      const claim = claims[index];
      if (answer.kind !== "granted" || claim === undefined) continue;
      const fails = Math.random() < 0.5;
      const retried = fails && claim.attempt < answer.attempt.attemptsAllowed;
      granted.push({
        ...claim,
        shard: 0,
        runId: answer.attempt.runId,
        status: fails ? "failed" : "succeeded",
        responseStatus: fails ? 500 : 200,
        error: fails ? "no" : null,
        durationMs: 3,
        next: retried ? { status: "queued", waitMs: 0 } : { status: fails ? "failed" : "succeeded" },
      });
    }
    if (claims.length === BATCH) report.claimUs.push(((performance.now() - askedAt) * 1_000) / claims.length);
    report.sizes.push(claims.length);
    if (granted.length === 0) continue;
    askedAt = performance.now();
    await settleShortFirst(db, granted);
    if (granted.length > BATCH / 2)
      report.settleUs.push(((performance.now() - askedAt) * 1_000) / granted.length);
  }
  await db.close();
  process.stdout.write(JSON.stringify(report));
}

interface PickedRow {
  project_no: number;
  environment: number;
  job_id: string;
  attempt: number;
}

function drawByLot<Row>(rows: Row[], count: number): Row[] {
  return rows
    .map((row) => ({ row, lot: Math.random() }))
    .sort((a, b) => a.lot - b.lot)
    .slice(0, count)
    .map(({ row }) => row);
}

/** Cancels and retries random jobs, one after the other, while there is enough left to claim. */
async function disturb(
  url: string,
  projectCount: number,
  goOn: () => boolean,
): Promise<{ canceled: number; retried: number }> {
  const db = openDatabase(url, { connections: 2, log });
  const ids = createIdSource(randomBytes);
  const done = { canceled: 0, retried: 0 };
  while (goOn()) {
    const [{ due } = { due: 0 }] = await db.run<{ due: number }>("due", DUE, [DISTURB_UNTIL_DUE]);
    if (due < DISTURB_UNTIL_DUE) break;
    const scope = {
      projectNo: 1 + Math.floor(Math.random() * projectCount),
      environment: "production" as const,
      sinceAt: 0,
    };
    const [open] = await db.run<{ job_id: string }>(
      "any_open",
      "SELECT job_id FROM open_jobs WHERE project_no = $1 AND environment = 1 AND region = 0 ORDER BY job_id DESC LIMIT 1",
      [scope.projectNo],
    );
    if (open !== undefined) {
      const canceled = await orRefused(cancelJob(db, scope, uuidToId(JOB_PREFIX, open.job_id), keyCause()));
      if (canceled.kind === "canceled") done.canceled++;
    }
    const query = { ...scope, jobId: null, status: "failed", beforeId: null, limit: 3 } as const;
    const { rows: failed } = await listRuns(db, query);
    for (const run of failed) {
      const retried = await orRefused(
        retryRun(db, scope, run.id, ids.next(RUN_PREFIX, Date.now()), keyCause()),
      );
      if (retried.kind === "retried") done.retried++;
    }
    await Bun.sleep(DISTURB_EVERY_MS);
  }
  await db.close();
  return done;
}

const seed = (projectCount: number, limit: number) => `
WITH project AS (
  INSERT INTO projects (id, name, plan, api_version)
  SELECT gen_random_uuid(), 'p' || n, 'scale', '2026-11-01' FROM generate_series(1, ${projectCount}) n RETURNING no)
INSERT INTO flows (project_no, concurrency, month, retention_class)
SELECT no, ${limit}, date_trunc('month', now())::date, 2 FROM project`;

/** Finds due attempts from one project on; if there are too few, also from the first project on. */
const PICK = `
SELECT * FROM (
  (SELECT project_no, environment, job_id, attempt FROM open_jobs
    WHERE project_no >= $1 AND due_at <= now() ORDER BY project_no, region, environment, due_at LIMIT $2)
   UNION ALL
  (SELECT project_no, environment, job_id, attempt FROM open_jobs
    WHERE project_no < $1 AND due_at <= now() ORDER BY project_no, region, environment, due_at LIMIT $2)) due
 LIMIT $2`;

const DUE = `
SELECT count(*)::int AS due FROM (SELECT FROM open_jobs WHERE due_at <= now() LIMIT $1) due`;

const CHECK = `
SELECT count(*) FILTER (WHERE f.development_jobs + f.production_jobs <> coalesce(o.n, 0))::int AS wrong,
       sum(f.development_jobs + f.production_jobs)::int AS in_use,
       max((f.development_jobs + f.production_jobs)::float8 / f.concurrency) AS worst
  FROM flows f
  LEFT JOIN (SELECT project_no, count(*) AS n FROM open_jobs WHERE node_id IS NOT NULL GROUP BY project_no) o
    ON o.project_no = f.project_no`;

const END = `
SELECT (SELECT count(*)::int FROM open_jobs WHERE node_id IS NOT NULL) AS on_wire,
       (SELECT sum(development_jobs + production_jobs)::int FROM flows) AS in_use,
       (SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()) AS deadlocks,
       (SELECT count(*)::int FROM runs WHERE error IS DISTINCT FROM 'x') AS runs,
       (SELECT sum(month_runs)::int FROM flows) AS month_runs`;

if (process.argv[2] === "claimer")
  await claimAndSettle(process.argv[3] ?? "", Number(process.argv[4]), Number(process.argv[5]));
else {
  await main();
  await stopOwnServer();
}
