import { randomBytes } from "node:crypto";
import { parseArgs } from "node:util";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { startService } from "../support/service-process.ts";
import { median, printTable, summarize } from "./measure.ts";

/**
 * How much later do a project's jobs start while another project at its limit has a backlog of due jobs? A worker and a
 * delivery node as processes over NATS, Postgres with fsync, and the targets in this process. Lateness is from a job's
 * `run_at` to its arrival, of jobs that are due one by one; with and without the backlog in the same round, both projects
 * in one region and one shard.
 *
 * `--jobs N` (100,000) in the backlog, `--limit N` (100) of its project, `--answer-ms N` (100) that its target takes,
 * `--probes N` (200) of the other project, and `--rounds N` (3).
 */

const SHARDS_PER_REGION = 1;
const PROBE_EVERY_MS = 40;
/** Before the first probe is due, so that it stands on the wheel in time. */
const LEAD_MS = 2_500;
const LOOK_EVERY_MS = 20;
const GIVE_UP_MS = 60_000;
const AIM_MS = 50;

const SEED = `
WITH made AS (
  SELECT (lpad(to_hex(1700000000000 + n), 12, '0') || left(md5(n::text), 20))::uuid AS id,
         now() - interval '1 hour' + n * interval '1 ms' AS due_at
    FROM generate_series(1, $2::int) n
), job AS (
  INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds)
  SELECT id, $1, 1, 0, $3, '{}', due_at, 5, 10, 3600 FROM made
), lane AS (
  INSERT INTO lanes (project_no, region, environment, shard) VALUES ($1, 0, 1, $4)
)
INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
SELECT $1, 1, 0, id, due_at, 5 FROM made`;
const PATIENT = "options=-c%20statement_timeout%3D120s";

const { values } = parseArgs({
  options: {
    jobs: { type: "string", default: "100000" },
    limit: { type: "string", default: "100" },
    "answer-ms": { type: "string", default: "100" },
    probes: { type: "string", default: "200" },
    rounds: { type: "string", default: "3" },
  },
});
const jobCount = Number(values.jobs);
const limit = Number(values.limit);
const probeCount = Number(values.probes);
const log = createLog({ name: "bench", level: "error" });
const ids = createIdSource(randomBytes);

interface Round {
  alone: number[];
  beside: number[];
  /** Of the backlog, while the probes were sent. */
  processedPerSecond: number;
  openMax: number;
}

const rounds: Round[] = [];
for (let round = 0; round < Number(values.rounds); round++) rounds.push(await measureRound());
const p99 = (samples: readonly number[]) =>
  samples.toSorted((a, b) => a - b)[Math.floor(samples.length * 0.99)] ?? 0;
const row = (name: string, pick: (round: Round) => number[]) => [
  name,
  summarize(rounds.map((round) => median(pick(round)))),
  summarize(rounds.map((round) => p99(pick(round)))),
];
printTable(
  ["lateness of the other project's jobs, ms", "median", "p99"],
  [
    row("without a backlog", ({ alone }) => alone),
    row(`beside ${jobCount} due jobs`, ({ beside }) => beside),
  ],
);
const delays = rounds.map(({ alone, beside }) => median(beside) - median(alone));
console.log(
  `\nThe backlog, with ${Math.max(...rounds.map(({ openMax }) => openMax))} of ${limit} at once, went at` +
    ` ${summarize(rounds.map(({ processedPerSecond }) => processedPerSecond))} jobs/s meanwhile, and delayed the median by` +
    ` ${summarize(delays)} ms (at most ${AIM_MS}).`,
);
process.exit(Math.max(...delays) <= AIM_MS ? 0 : 1);

async function measureRound(): Promise<Round> {
  const database = await createTestDatabase("backlog");
  await migrate(database.url);
  const db = openDatabase(database.url, { connections: 4, log });
  const seeding = openDatabase(`${database.url}?${PATIENT}`, {
    connections: 1,
    log,
    answerTimeoutMs: 120_000,
  });
  const nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  const seal = createSeal(secretsKey);
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    SHARDS_PER_REGION: String(SHARDS_PER_REGION),
    LOG_LEVEL: "warn",
  };
  const services = [await startService("worker", environment), await startService("delivery", environment)];
  const arrivedAt = new Map<string, number>();
  let processed = 0;
  let open = 0;
  let openMax = 0;
  const target = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    idleTimeout: 0,
    async fetch(request) {
      if (request.url.endsWith("/probe")) {
        arrivedAt.set(request.headers.get("service-job-id") ?? "", Date.now());
        return new Response("ok");
      }
      openMax = Math.max(openMax, ++open);
      await Bun.sleep(Number(values["answer-ms"]));
      open--;
      processed++;
      return new Response("ok");
    },
  });
  const url = `http://127.0.0.1:${target.port}`;

  const makeProject = async (name: string) =>
    (await createProjectWithKeys(db, seal, { name, plan: "enterprise", defaultRegion: "us-east" })).project;
  const [other, loaded] = [await makeProject("other"), await makeProject("loaded")];
  await db.run("limit", "UPDATE flows SET concurrency = $2 WHERE project_no = $1", [loaded.no, limit]);
  const probe = () => sendProbes(db, other, `${url}/probe`, arrivedAt);
  try {
    const alone = await probe();
    const shard = shardOf(loaded.no, SHARDS_PER_REGION);
    await seeding.run("seed_backlog", SEED, [loaded.no, jobCount, `${url}/backlog`, shard]);
    await until(() => open >= limit);
    const [before, beganAt] = [processed, performance.now()];
    const beside = await probe();
    const seconds = (performance.now() - beganAt) / 1_000;
    if (processed + limit >= jobCount) throw new Error("the backlog did not last: give it more --jobs");
    if (openMax > limit) throw new Error(`${openMax} were open at once`);
    return { alone, beside, processedPerSecond: (processed - before) / seconds, openMax };
  } finally {
    for (const service of services) await service.end("SIGKILL");
    await nats.stop();
    await target.stop(true);
    await Promise.all([db.close(), seeding.close()]);
    await database.drop();
  }
}

/** Jobs that are due one after the other; answers with the lateness of each in milliseconds. */
async function sendProbes(
  db: Database,
  project: ProjectRow,
  targetUrl: string,
  arrivedAt: ReadonlyMap<string, number>,
): Promise<number[]> {
  const firstAt = Date.now() + LEAD_MS;
  const jobs = Array.from({ length: probeCount }, (_, index) => ({
    id: ids.next(JOB_PREFIX, Date.now()),
    projectNo: project.no,
    environment: "production" as const,
    region: "us-east" as const,
    shard: shardOf(project.no, SHARDS_PER_REGION),
    targetUrl,
    payload: "{}",
    runAt: firstAt + index * PROBE_EVERY_MS,
    maxAttempts: 1,
    baseSeconds: 1,
    capSeconds: 1,
    cause: null,
  }));
  await createJobs(db, jobs, new Set());
  await until(() => jobs.every(({ id }) => arrivedAt.has(id)));
  return jobs.map(({ id, runAt }) => (arrivedAt.get(id) ?? Number.NaN) - runAt);
}

async function until(holds: () => boolean): Promise<void> {
  const giveUpAt = performance.now() + GIVE_UP_MS;
  while (!holds()) {
    if (performance.now() > giveUpAt) throw new Error(`not so within ${GIVE_UP_MS} ms: ${holds}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}
