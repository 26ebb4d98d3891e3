import { parseArgs } from "node:util";
import pg from "pg";
import {
  createIdSource,
  firstIdAt,
  idToUuid,
  JOB_PREFIX,
  SCHEDULE_PREFIX,
  uuidToId,
} from "../../shared/domain/ids.ts";
import { createLog } from "../../shared/platform/log.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { type JobListQuery, listJobs } from "../../shared/store/resources/job-list.ts";
import { listRuns, type RunListQuery } from "../../shared/store/resources/run-list.ts";
import { createTestDatabase, stopOwnServer } from "../support/postgres.ts";
import { formatCount, median, printTable } from "./harness/measure.ts";

/**
 * What does a page cost that is filtered by tag, schedule, status, region or time? One project has a million jobs: nearly all have
 * succeeded, a third has a common tag, a fifth is of one schedule, and some hundred have a rare tag. Each filter alone and every
 * pair of them is asked for pages of 50, from the newest on and from places in between, and every three that name a tag, a
 * schedule and a status. The same of runs.
 *
 * `--jobs N` stores N jobs (1,000,000), `--rounds N` asks each page so often (30).
 */

const { values: options } = parseArgs({
  options: { jobs: { type: "string", default: "1000000" }, rounds: { type: "string", default: "30" } },
});
const jobCount = Number(options.jobs);
const rounds = Number(options.rounds);

const PAGE = 51;
const ROWS_PER_STATEMENT = 100_000;
const PROJECT = 1;
const DAY_MS = 86_400_000;
const DAYS = 60;
const RUNNING = 50;
/** One job in so many. */
const [COMMON, RARE, OF_SCHEDULE, FAILED, QUEUED] = [3, 20_000, 5, 50, 70];
const now = Date.now();
const begin = now - DAYS * DAY_MS;
const SCHEDULE = createIdSource((count) => new Uint8Array(count)).next(SCHEDULE_PREFIX, begin);
const at = (share: number) => Math.floor(begin + share * DAYS * DAY_MS);

const scope = { projectNo: PROJECT, environment: "production" as const };
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
  const created = await createTestDatabase("find");
  try {
    await migrate(created.url);
    const admin = await connectUnbounded(created.url);
    await seed(admin);
    const log = createLog({ name: "find", level: "warn" });
    const db = openDatabase(created.url, { connections: 1, log });
    console.log(
      `${formatCount(jobCount)} jobs, ms for a page of ${PAGE - 1} at the median and at worst of ${rounds}\n`,
    );
    const places = await findPlaces(admin);
    await measure(
      db,
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
      db,
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
    await db.close();
    await admin.end();
  } finally {
    await created.drop();
  }
}

const earlier = (one: string | null, other: string | null) =>
  one === null || other === null ? (one ?? other) : one < other ? one : other;

/** Each filter alone, every two, and tag, schedule and status together. */
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
  db: Database,
  name: string,
  queries: Map<string, Filters>,
  ask: (filters: Filters, beforeId: string | null) => Promise<{ rows: unknown[]; endId: string | null }>,
  places: readonly string[],
): Promise<void> {
  const rows: string[][] = [];
  await db.run("warm", "SELECT 1", []);
  for (const [label, filters] of queries) {
    const [newest, between]: [number[], number[]] = [[], []];
    const first = await ask(filters, null);
    for (let round = 0; round < rounds; round++) {
      newest.push(await timed(() => ask(filters, null)));
      between.push(await timed(() => ask(filters, places[round % places.length] ?? null)));
    }
    const shown = (samples: number[]) => [formatCount(median(samples)), formatCount(Math.max(...samples))];
    rows.push([
      label,
      String(first.rows.length),
      first.endId === null ? "" : "cut",
      ...shown(newest),
      ...shown(between),
    ]);
  }
  printTable([name, "rows", "", "newest", "worst", "between", "worst"], rows);
  console.log();
}

async function timed(act: () => Promise<unknown>): Promise<number> {
  const start = performance.now();
  await act();
  return performance.now() - start;
}

/** Ids of jobs all over the time. */
async function findPlaces(admin: pg.Client): Promise<string[]> {
  const found: string[] = [];
  for (let place = 1; place <= rounds; place++) {
    const { rows } = await admin.query<{ id: string }>(
      "SELECT id FROM jobs WHERE project_no = $1 AND environment = 1 AND region = 0 AND id >= $2 ORDER BY id LIMIT 1",
      [PROJECT, idToUuid(firstIdAt(JOB_PREFIX, at(place / (rounds + 1))))],
    );
    if (rows[0] !== undefined) found.push(uuidToId(JOB_PREFIX, rows[0].id));
  }
  return found;
}

/** The statement_timeout of the services' role is too short for seeding millions of rows. */
async function connectUnbounded(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query("SET statement_timeout = 0; SET synchronous_commit = off");
  return client;
}

async function seed(admin: pg.Client): Promise<void> {
  await admin.query(SEED_PROJECT);
  for (let from = 0; from < jobCount; from += ROWS_PER_STATEMENT) {
    await admin.query(SEED_JOBS, [from, Math.min(jobCount, from + ROWS_PER_STATEMENT) - 1]);
    if ((from / ROWS_PER_STATEMENT) % 10 === 9) process.stderr.write(`${formatCount(from)} stored\n`);
  }
  await admin.query(
    "VACUUM (ANALYZE) jobs, job_tags, job_tag_states, open_jobs, ended_jobs, runs, run_tags, flows",
  );
}

const SEED_PROJECT = `
WITH project AS (
  INSERT INTO projects (id, name, plan, api_version) VALUES (gen_random_uuid(), 'find', 'scale', '2026-11-01') RETURNING no
)
INSERT INTO flows (project_no, concurrency, month, retention_class)
SELECT no, 500, date_trunc('month', now())::date, 2 FROM project`;

const uuidAt = (random: string) =>
  `(lpad(to_hex((${begin} + n * ${DAYS * DAY_MS}::bigint / ${jobCount})::bigint), 12, '0') || left(md5(n || '${random}'), 20))::uuid`;

// Statuses as in codes.ts: jobs succeeded 0, failed 1, canceled 2; runs succeeded 1, failed 2. -1 is queued, -2 is running.
const SEED_JOBS = `
WITH made AS MATERIALIZED (
  SELECT n, ${uuidAt("job")} AS id, ${uuidAt("run")} AS run_id, (CASE n % 10 WHEN 7 THEN 1 WHEN 8 THEN 2 WHEN 9 THEN 3 ELSE 0 END)::smallint AS region,
         CASE WHEN n >= ${jobCount - RUNNING} THEN -2 WHEN n % ${QUEUED} = 0 THEN -1 WHEN n % ${FAILED} = 0 THEN 1 WHEN n % 90 = 1 THEN 2 ELSE 0 END AS state,
         CASE WHEN n % ${OF_SCHEDULE} = 0 THEN '${idToUuid(SCHEDULE)}'::uuid END AS schedule_id,
         CASE WHEN n % ${RARE} < 4 THEN ARRAY['common', 'rare', 'customer:' || n % 1000]
              WHEN n % ${COMMON} = 0 THEN ARRAY['common', 'customer:' || n % 1000] END AS tags
    FROM generate_series($1::bigint, $2::bigint) n
), asked AS (
  INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds, schedule_id, tags)
  SELECT id, ${PROJECT}, 1, region, 'https://example.com/hooks/jobs', '{"invoice":' || n || '}', now(), 5, 10, 3600, schedule_id, tags FROM made
), tag AS (
  INSERT INTO job_tags (project_no, environment, region, job_id, schedule_id, tag)
  SELECT ${PROJECT}, 1, region, id, schedule_id, unnest(tags) FROM made
), state AS (
  INSERT INTO job_tag_states (project_no, environment, region, job_id, state, tag)
  SELECT ${PROJECT}, 1, region, id, greatest(state, -1), unnest(tags) FROM made
), open AS (
  INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed, schedule_id, tags, run_id, started_at, node_id)
  SELECT ${PROJECT}, 1, region, id, CASE state WHEN -1 THEN now() + interval '1 day' END, 5, schedule_id, tags,
         CASE state WHEN -2 THEN run_id END, CASE state WHEN -2 THEN now() END, CASE state WHEN -2 THEN 1 END
    FROM made WHERE state < 0
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT ${PROJECT}, 1, region, id, state, 1, now(), schedule_id FROM made WHERE state >= 0
), ran AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, started_at, duration_ms, schedule_id)
  SELECT run_id, id, ${PROJECT}, 1, 2, 1, state + 1, 200,
         to_timestamp((${begin} + n * ${DAYS * DAY_MS}::bigint / ${jobCount}) / 1000.0), 5, schedule_id FROM made WHERE state IN (0, 1)
)
INSERT INTO run_tags (ended_on, project_no, environment, status, id, schedule_id, tag)
SELECT now(), ${PROJECT}, 1, state + 1, run_id, schedule_id, unnest(tags) FROM made WHERE state IN (0, 1)`;

await main();
await stopOwnServer();
