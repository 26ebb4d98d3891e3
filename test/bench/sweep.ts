import { randomBytes } from "node:crypto";
import { parseArgs } from "node:util";
import pg from "pg";
import type { Entry } from "../../services/worker/shard/entry.ts";
import type { RememberedLane } from "../../services/worker/shard/remembered-lane.ts";
import { Shard } from "../../services/worker/shard/shard.ts";
import { Timers } from "../../services/worker/shard/timers.ts";
import { Sweeper } from "../../services/worker/sweeper.ts";
import { createIdSource, RUN_PREFIX } from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { type Clock, startClock } from "../../shared/platform/clock.ts";
import { createLog } from "../../shared/platform/log.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import { askTime, type Database, openDatabase } from "../../shared/store/database/database.ts";
import { claimAttempts } from "../../shared/store/queue/claim.ts";
import { type Settlement, settleAttempts } from "../../shared/store/queue/settle.ts";
import { sweepShards } from "../../shared/store/queue/sweep.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import { createTestDatabase, stopOwnServer } from "../support/postgres.ts";
import { newJob } from "./harness/jobs.ts";
import { formatCount, median, printTable, summarize } from "./harness/measure.ts";

/**
 * Is the sweep flat? 10,000 projects share 64 shards, with jobs stored for tomorrow. Then one project has a million due
 * jobs. Then a session holds a snapshot open while 100,000 jobs pass through: half of them that project's, a sixth one
 * other project's, a third all projects'. Sweeps are timed with steady churn beside them, with the marks that the
 * worker keeps, and without marks as in a new worker. The benchmark also measures a stored job on disk.
 *
 * `--future N` stores N jobs for tomorrow (1,000,000), `--due N` makes N due (1,000,000).
 */

const PROJECTS = 10_000;
const SHARDS = 64;
const REGION = "us-east";
const ENVIRONMENT = "production";
const CONCURRENCY = 500;
/** The project with the backlog, and another project that is busier than the rest. */
const LOADED_PROJECT = 1;
const BUSY_PROJECT = 2;
const CHURNED_JOBS = 100_000;
const BATCH = 100;
/** A few hundred jobs a second while sweeps are timed. */
const CHURN_EVERY_MS = 250;
const SWEEPS = 15;
const SWEEP_EVERY_MS = 200;
const SEED_ROWS_PER_STATEMENT = 250_000;
const PAYLOAD_BYTES = 200;
const VACUUM_EVERY = 20;

const log = createLog({ name: "sweep", level: "warn" });
const { values: options } = parseArgs({
  options: {
    future: { type: "string", default: "1000000" },
    due: { type: "string", default: "1000000" },
  },
});
const futureCount = Number(options.future);
const dueCount = Number(options.due);

async function main(): Promise<void> {
  const created = await createTestDatabase("sweep");
  try {
    await migrate(created.url);
    const admin = await connectUnbounded(created.url);
    await admin.query(SEED_PROJECTS, [shardsOfProjects()]);
    const spy = createSpy(openDatabase(created.url, { connections: 8, log }));
    const worker = await createWorker(spy.db);
    const rows: string[][] = [];
    const measure = async (name: string) => {
      note(name);
      rows.push(...(await measureSweeps(name, worker, spy, created.url)));
    };

    await measure("nothing stored");
    await seedJobs(admin, futureCount, FUTURE);
    const sizes = await measureSizes(admin);
    await measure(`${formatCount(futureCount)} for tomorrow`);
    await seedJobs(admin, dueCount, DUE);
    await measure(`and ${formatCount(dueCount)} due in one project`);

    const idle = await connectUnbounded(created.url);
    await idle.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
    await idle.query("SELECT count(*) FROM flows");
    await worker.churn(CHURNED_JOBS);
    await measure(`and a snapshot held over ${formatCount(CHURNED_JOBS)} jobs`);
    await idle.query("ROLLBACK");
    await idle.end();
    await admin.query("VACUUM open_jobs");
    await measure("snapshot gone, vacuumed");

    printTable(["sweep", "ms", "µs a lane", "rows", "buffers", "refill ms", "refill buffers"], rows);
    console.log(`\nBytes on disk a job stored for tomorrow, ${PAYLOAD_BYTES} of payload:`);
    printTable(["relation", "bytes a job"], sizes);
    await worker.stop();
    await admin.end();
  } finally {
    await created.drop();
  }
}

/** The statement_timeout of the services' role is too short for seeding millions of rows. */
async function connectUnbounded(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query(
    "SET statement_timeout = 0; SET idle_in_transaction_session_timeout = 0; SET synchronous_commit = off",
  );
  return client;
}

const shardsOfProjects = () => Array.from({ length: PROJECTS }, (_, index) => shardOf(index + 1, SHARDS));

const SEED_PROJECTS = `
WITH project AS (
  INSERT INTO projects (id, name, plan, api_version)
  SELECT gen_random_uuid(), 'p' || n, 'scale', '2026-11-01' FROM generate_series(1, ${PROJECTS}) n RETURNING no
), flow AS (
  INSERT INTO flows (project_no, concurrency, month, retention_class)
  SELECT no, ${CONCURRENCY}, date_trunc('month', now())::date, 2 FROM project
)
INSERT INTO lanes (project_no, region, environment, shard)
SELECT no, 0, 1, ($1::int[])[no] FROM project ORDER BY random()`;

/** Projects take turns, as they would over a day. The order decides how full the pages of the indexes are. */
const FUTURE = { project: `1 + n % ${PROJECTS}`, due: "now() + interval '1 day' + n * interval '1 ms'" };
const DUE = { project: String(LOADED_PROJECT), due: "now() - interval '1 hour' + n * interval '1 ms'" };

async function seedJobs(
  admin: pg.Client,
  count: number,
  { project, due }: { project: string; due: string },
): Promise<void> {
  for (let start = 1; start <= count; start += SEED_ROWS_PER_STATEMENT) {
    const end = Math.min(count, start + SEED_ROWS_PER_STATEMENT - 1);
    await admin.query(`
      WITH made AS MATERIALIZED (
        SELECT uuidv7() AS id, ${project} AS project_no, ${due} AS due_at, n
          FROM generate_series(${start}, ${end}) n
      ), asked AS (
        INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds)
        SELECT id, project_no, 1, 0, 'https://example.com/hooks/jobs', rpad('{"n":' || n || ',"text":"', ${PAYLOAD_BYTES - 2}, 'x') || '"}',
               due_at, 5, 10, 3600
          FROM made
      )
      INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
      SELECT project_no, 1, 0, id, due_at, 5 FROM made`);
    if ((start / SEED_ROWS_PER_STATEMENT) % VACUUM_EVERY < 1) note(`${formatCount(end)} stored`);
  }
  await admin.query("VACUUM (ANALYZE) jobs, open_jobs, flows, lanes");
}

async function measureSizes(admin: pg.Client): Promise<string[][]> {
  const { rows } = await admin.query<{ name: string; bytes: string }>(`
    SELECT relname AS name, pg_relation_size(oid) AS bytes FROM pg_class
     WHERE relname ~ '^(open_)?jobs' AND relkind IN ('r', 'i') ORDER BY relname`);
  const shown = rows.map(({ name, bytes }) => [name, formatCount(Number(bytes) / futureCount)]);
  const total = rows.reduce((sum, { bytes }) => sum + Number(bytes), 0);
  return [...shown, ["together", formatCount(total / futureCount)]];
}

interface Call {
  text: string;
  values: unknown[];
  tookMs: number;
  rowCount: number;
}

/** Remembers the last call of each statement. */
function createSpy(db: Database): { db: Database; last: Map<string, Call> } {
  const last = new Map<string, Call>();
  return {
    last,
    db: {
      drizzle: db.drizzle,
      transact: db.transact,
      close: db.close,
      async run<Row>(name: string, text: string, values: unknown[]) {
        const start = performance.now();
        const rows = await db.run<Row>(name, text, values);
        last.set(name, { text, values, tookMs: performance.now() - start, rowCount: rows.length });
        return rows;
      },
    },
  };
}

interface ChurningWorker {
  /** Creates and delivers jobs, one statement after the other without a pause. */
  churn(count: number): Promise<void>;
  sweep(): Promise<void>;
  stop(): Promise<void>;
}

/** Makes the worker's own shards and sweeper, with one loop in place of the bus and the delivery nodes. */
async function createWorker(db: Database): Promise<ChurningWorker> {
  const clock: Clock = await startClock(() => askTime(db));
  const ids = createIdSource(randomBytes);
  const node = await addNode(db, { kind: "delivery", name: "sweep", regions: [REGION], process: "bench" });
  if (node === null) throw new Error("the name is taken");
  const sweeper = new Sweeper(db, clock);
  const sendable = new Set<RememberedLane>();
  const timers = new Timers<Entry>(clock.now());
  const shards = Array.from(
    { length: SHARDS },
    (_, shard) =>
      new Shard({ region: REGION, shard, epoch: 1 }, clock.now(), timers, {
        onSendable: (lane) => sendable.add(lane),
        onLow: (lane, held) => sweeper.noteLow(lane, held),
        onGranted: () => undefined,
      }),
  );
  const shardOfProject = (projectNo: number) => {
    const shard = shards[shardOf(projectNo, SHARDS)];
    if (shard === undefined) throw new Error(`no shard for project ${projectNo}`);
    return shard;
  };
  const knownLanes = new Set<string>();

  async function create(): Promise<void> {
    const jobs = Array.from({ length: BATCH / 2 }, (_, index) => {
      const projectNo = index % 3 === 0 ? BUSY_PROJECT : 1 + Math.floor(Math.random() * PROJECTS);
      return newJob({ projectNo, targetUrl: "https://example.com/hooks/jobs", runAt: clock.now() }, SHARDS);
    });
    const created = await createJobs(db, jobs, knownLanes);
    for (const [index, job] of jobs.entries()) {
      const answer = created[index];
      if (answer?.kind !== "created") throw new Error("a job was refused");
      for (const owed of answer.owed) shardOfProject(job.projectNo).learn(owed, clock.now());
    }
  }

  async function deliver(nodeId: number): Promise<number> {
    const now = clock.now();
    timers.advance(now, (entry) => entry.shard.comeDue(entry, now));
    const lanes = [...sendable];
    sendable.clear();
    const taken = lanes.flatMap((lane) => {
      const shard = shardOfProject(lane.name.projectNo);
      const entries = shard.take(lane, BATCH / 2, 1, now);
      if (lane.isSendable(now)) sendable.add(lane);
      return entries.map((entry) => ({ ...entry, shard }));
    });
    if (taken.length === 0) return 0;
    const claims = taken.map(({ projectNo, id: jobId, attempt }) => {
      const runId = ids.next(RUN_PREFIX, clock.now());
      return { projectNo, environment: ENVIRONMENT, region: REGION, jobId, attempt, runId } as const;
    });
    const claimed = await claimAttempts(db, nodeId, claims);
    const settlements: Settlement[] = [];
    for (const [index, { shard, projectNo, id, attempt }] of taken.entries()) {
      const claim = claims[index];
      const answer = claimed[index];
      if (claim === undefined || answer === undefined) throw new Error("a claim has no answer");
      // "gone": a sweep that was under way during the claim has found the job once more.
      if (answer.kind !== "granted" && answer.kind !== "gone")
        throw new Error(`a claim was answered ${answer.kind}`);
      const { kind } = answer;
      shard.answer({ projectNo, shard: shard.held.shard, id, attempt, answer: { kind } }, clock.now());
      if (kind === "gone") continue;
      const outcome = { status: "succeeded", responseStatus: 200, error: null, durationMs: 1 } as const;
      settlements.push({ ...claim, ...outcome, shard: shard.held.shard, next: { status: "succeeded" } });
    }
    await settleAttempts(db, settlements);
    if (sweeper.hasLow) await sweeper.refill();
    return settlements.length;
  }

  async function sweep(): Promise<void> {
    for (const shard of shards) shard.tidy(clock.now());
    await sweeper.sweep(shards);
  }

  return {
    sweep,
    async churn(count) {
      let sweptAt = performance.now();
      for (let done = 0; done < count; ) {
        await create();
        done += await deliver(node);
        if (performance.now() - sweptAt > 1_000) {
          sweptAt = performance.now();
          await sweep();
        }
      }
    },
    async stop() {
      clock.stop();
      await db.close();
    },
  };
}

async function measureSweeps(
  name: string,
  worker: ChurningWorker,
  spy: { db: Database; last: Map<string, Call> },
  url: string,
): Promise<string[][]> {
  let goOn = true;
  const churning = (async () => {
    while (goOn) {
      await worker.churn(BATCH / 2);
      await Bun.sleep(CHURN_EVERY_MS);
    }
  })();
  const kept = { sweep: [] as number[], refill: [] as number[] };
  const unmarked: number[] = [];
  await worker.sweep();
  for (let round = 0; round < SWEEPS; round++) {
    await worker.sweep();
    kept.sweep.push(spy.last.get("sweep")?.tookMs ?? Number.NaN);
    kept.refill.push(spy.last.get("refill")?.tookMs ?? Number.NaN);
    await Bun.sleep(SWEEP_EVERY_MS);
  }
  const sweepCall = spy.last.get("sweep");
  const refillCall = spy.last.get("refill");
  const everyShard = Array.from({ length: SHARDS }, (_, shard) => ({
    region: REGION,
    shard,
    sinceAt: Number.NEGATIVE_INFINITY,
  })) as Parameters<typeof sweepShards>[1];
  for (let round = 0; round < SWEEPS; round++) {
    await sweepShards(spy.db, everyShard, [], 1_500);
    unmarked.push(spy.last.get("sweep")?.tookMs ?? Number.NaN);
    await Bun.sleep(SWEEP_EVERY_MS);
  }
  goOn = false;
  await churning;
  const unmarkedCall = spy.last.get("sweep");
  const usPerLane = (samples: number[]) => formatCount((median(samples) * 1_000) / PROJECTS);
  return [
    [
      name,
      summarize(kept.sweep),
      usPerLane(kept.sweep),
      String((sweepCall?.rowCount ?? 1) - 1),
      formatCount(await countBuffers(url, sweepCall)),
      summarize(kept.refill),
      formatCount(await countBuffers(url, refillCall)),
    ],
    [
      "  without marks",
      summarize(unmarked),
      usPerLane(unmarked),
      String((unmarkedCall?.rowCount ?? 1) - 1),
      formatCount(await countBuffers(url, unmarkedCall)),
      "",
      "",
    ],
  ];
}

/** Counts the pages that the statement touches with the final plan of a prepared statement. */
async function countBuffers(url: string, call: Call | undefined): Promise<number> {
  if (call === undefined) return Number.NaN;
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  try {
    await client.query("SET plan_cache_mode = force_generic_plan");
    await client.query(`PREPARE asked AS ${call.text}`);
    const values = call.values.map((value) => client.escapeLiteral(String(value))).join(", ");
    const { rows } = await client.query<{ "QUERY PLAN": string }>(
      `EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) EXECUTE asked (${values})`,
    );
    const plan = rows.map((row) => row["QUERY PLAN"]);
    if (process.env.SHOW_PLANS !== undefined) note(plan.join("\n"));
    const buffers = plan.find((line) => line.includes("Buffers:")) ?? "";
    return [...buffers.matchAll(/(?:hit|read)=(\d+)/g)].reduce((sum, match) => sum + Number(match[1]), 0);
  } finally {
    await client.end();
  }
}

function note(text: string): void {
  process.stderr.write(`${text}\n`);
}

await main();
await stopOwnServer();
