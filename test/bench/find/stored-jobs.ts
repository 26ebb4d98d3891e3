import pg from "pg";
import {
  createIdSource,
  firstIdAt,
  idToUuid,
  JOB_PREFIX,
  SCHEDULE_PREFIX,
  uuidToId,
} from "../../../shared/domain/ids.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import { SHARDS_PER_REGION } from "../harness/jobs.ts";
import { formatCount } from "../harness/measure.ts";

/**
 * The jobs that `find` looks among. SQL writes them in the order of time, spread over the last 60 days. Nearly all have
 * succeeded, a third has a common tag, a fifth is of one schedule, and a few hundred have a rare tag. The newest ones wait
 * for an attempt that was asked for by hand. Others are due at the same instant and stay so, since the project is held.
 */

const ROWS_PER_STATEMENT = 100_000;
/** Several connections write at once, so that a busy machine delays only the one that waits for it. */
const WRITERS = 4;
const DAY_MS = 86_400_000;
const DAYS = 60;
/** One job fewer than explain reads of the jobs that are due at one instant. */
const DUE_TOGETHER = 4_999;
/** Each is one job in so many. */
const [COMMON, RARE, OF_SCHEDULE, FAILED, QUEUED] = [3, 20_000, 5, 50, 70];
const now = Date.now();
export const begin = now - DAYS * DAY_MS;
export const SCHEDULE = createIdSource((count) => new Uint8Array(count)).next(SCHEDULE_PREFIX, begin);
/** The instant at that share of the time. */
export const at = (share: number) => Math.floor(begin + share * DAYS * DAY_MS);

/** The last `retriedCount` of `jobCount` jobs were asked for by hand. */
export async function fillWithJobs(
  databaseUrl: string,
  projectNo: number,
  { jobCount, retriedCount }: { jobCount: number; retriedCount: number },
): Promise<void> {
  const shard = shardOf(projectNo, SHARDS_PER_REGION);
  const admin = await connectUnbounded(databaseUrl);
  await admin.query(ADD_LANES, [projectNo, REGIONS.length, shard]);
  await admin.query("UPDATE flows SET held = true WHERE project_no = $1", [projectNo]);
  let next = 0;
  async function write(): Promise<void> {
    const writer = await connectUnbounded(databaseUrl);
    while (next < jobCount) {
      const from = next;
      next = Math.min(jobCount, from + ROWS_PER_STATEMENT);
      await writer.query(ADD_JOBS, [from, next - 1, projectNo, jobCount, retriedCount]);
      if ((from / ROWS_PER_STATEMENT) % 10 === 9) process.stderr.write(`${formatCount(from)} stored\n`);
    }
    await writer.end();
  }
  await Promise.all(Array.from({ length: WRITERS }, write));
  await admin.query(ADD_DUE, [projectNo, DUE_TOGETHER]);
  await admin.query(
    "VACUUM (ANALYZE) jobs, job_tags, job_tag_states, open_jobs, ended_jobs, runs, run_tags, flows",
  );
  await admin.end();
}

/** The statement_timeout of the services' role is too short for writing millions of rows. */
export async function connectUnbounded(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url });
  await client.connect();
  await client.query("SET statement_timeout = 0; SET synchronous_commit = off");
  return client;
}

/** Finds ids spread over the whole time, of jobs that match a table, the column of its ids, and a condition. */
export async function findPlaces(
  client: pg.Client,
  projectNo: number,
  count: number,
  { table, id, condition }: { table: string; id: string; condition: string },
): Promise<string[]> {
  const found: string[] = [];
  for (let place = 1; place <= count; place++) {
    const { rows } = await client.query<{ id: string }>(
      `SELECT ${id} AS id FROM ${table}
        WHERE project_no = $1 AND environment = 1 AND region = 0 AND ${condition} AND ${id} >= $2 ORDER BY ${id} LIMIT 1`,
      [projectNo, idToUuid(firstIdAt(JOB_PREFIX, at(place / (count + 1))))],
    );
    if (rows[0] !== undefined) found.push(uuidToId(JOB_PREFIX, rows[0].id));
  }
  return found;
}

const ADD_LANES = `
INSERT INTO lanes (project_no, region, environment, shard) SELECT $1, n, 1, $3 FROM generate_series(0, $2::int - 1) n`;

const ADD_DUE = `
WITH job AS (
  INSERT INTO jobs (id, project_no, environment, region, run_at, base_seconds, cap_seconds, max_attempts, target_url, payload)
  SELECT uuidv7(), $1, 1, 0, now(), 1, 1, 5, 'https://example.com', '{}' FROM generate_series(1, $2::int)
  RETURNING id, run_at)
INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
SELECT $1, 1, 0, id, run_at, 5 FROM job`;

const uuidAt = (random: string) =>
  `(lpad(to_hex((${begin} + n * ${DAYS * DAY_MS}::bigint / $4::int)::bigint), 12, '0') || left(md5(n || '${random}'), 20))::uuid`;

// Statuses as in codes.ts: jobs succeeded 0, failed 1, canceled 2; runs succeeded 1, failed 2. -1 is queued, -2 is retried.
const ADD_JOBS = `
WITH made AS MATERIALIZED (
  SELECT n, ${uuidAt("job")} AS id, ${uuidAt("run")} AS run_id, (CASE n % 10 WHEN 7 THEN 1 WHEN 8 THEN 2 WHEN 9 THEN 3 ELSE 0 END)::smallint AS region,
         CASE WHEN n >= $4 - $5::int THEN -2 WHEN n % ${QUEUED} = 0 THEN -1 WHEN n % ${FAILED} = 0 THEN 1 WHEN n % 90 = 1 THEN 2 ELSE 0 END AS state,
         CASE WHEN n % ${OF_SCHEDULE} = 0 THEN '${idToUuid(SCHEDULE)}'::uuid END AS schedule_id,
         CASE WHEN n % ${RARE} < 4 THEN ARRAY['common', 'rare', 'customer:' || n % 1000]
              WHEN n % ${COMMON} = 0 THEN ARRAY['common', 'customer:' || n % 1000] END AS tags
    FROM generate_series($1::bigint, $2::bigint) n
), asked AS (
  INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds, schedule_id, tags)
  SELECT id, $3::int, 1, region, 'https://example.com/hooks/jobs', '{"invoice":' || n || '}', now(), 5, 10, 3600, schedule_id, tags FROM made
), tag AS (
  INSERT INTO job_tags (project_no, environment, region, job_id, schedule_id, tag)
  SELECT $3::int, 1, region, id, schedule_id, unnest(tags) FROM made
), state AS (
  INSERT INTO job_tag_states (project_no, environment, region, job_id, state, tag)
  SELECT $3::int, 1, region, id, greatest(state, -1), unnest(tags) FROM made
), open AS (
  INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed, schedule_id, tags, run_id, started_at)
  SELECT $3::int, 1, region, id, now() + interval '1 day', 5, schedule_id, tags,
         CASE state WHEN -2 THEN run_id END, CASE state WHEN -2 THEN now() END
    FROM made WHERE state < 0
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT $3::int, 1, region, id, state, 1, now(), schedule_id FROM made WHERE state >= 0
), ran AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, started_at, duration_ms, schedule_id, settled_in)
  SELECT run_id, id, $3::int, 1, (SELECT retention_class FROM flows WHERE project_no = $3::int), 1, state + 1, 200,
         to_timestamp((${begin} + n * ${DAYS * DAY_MS}::bigint / $4::int) / 1000.0), 5, schedule_id, NULL FROM made WHERE state IN (0, 1)
)
INSERT INTO run_tags (ended_on, project_no, environment, status, id, schedule_id, tag)
SELECT now(), $3::int, 1, state + 1, run_id, schedule_id, unnest(tags) FROM made WHERE state IN (0, 1)`;
