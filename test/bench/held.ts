import { randomBytes } from "node:crypto";
import { parseArgs } from "node:util";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createIdSource, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { setHostLimit } from "../../shared/store/cell/host-limits.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { ADD_DUE_JOBS } from "../support/due-jobs.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { startService } from "../support/service-process.ts";
import { newJob } from "./harness/jobs.ts";
import { printTable } from "./harness/measure.ts";
import { cpuUsOf, until } from "./harness/processes.ts";
import { QUANTILES, quantilesOf } from "./harness/quantiles.ts";

/**
 * What do waiting jobs cost, and how much later do other jobs start beside them? A worker and a delivery node run as
 * processes over NATS, with Postgres with fsync, and the targets in this process. CPU is that of the processes and of
 * their connections' backends. Lateness is from a job's `run_at` to its arrival.
 *
 * `--by host,limit`. `host`: jobs wait for a host that is held; the other jobs are of the same project and go to
 * another host. `limit`: jobs wait for their project's limit of 100; the other jobs are of another project in the same
 * shard. `--jobs N,N,...` that wait (0,4500,100000), `--seconds N` of counted CPU (20), `--probes N` other jobs (100).
 */

const SHARDS_PER_REGION = 1;
const LIMIT = 100;
/** The time that the target takes for a job within the limit. */
const ANSWER_MS = 100;
const PROBE_EVERY_MS = 40;
/** The time before the first probe is due, so that it is on the wheel by then. */
const LEAD_MS = 2_500;
const PATIENT = "options=-c%20statement_timeout%3D120s";

const { values } = parseArgs({
  options: {
    by: { type: "string", default: "host,limit" },
    jobs: { type: "string", default: "0,4500,100000" },
    seconds: { type: "string", default: "20" },
    probes: { type: "string", default: "100" },
  },
});
const seconds = Number(values.seconds);
const log = createLog({ name: "bench", level: "error" });
const ids = createIdSource(randomBytes);

const rows: string[][] = [];
for (const by of values.by.split(","))
  for (const jobs of values.jobs.split(",")) rows.push([by, jobs, ...(await measure(by, Number(jobs)))]);
printTable(
  ["wait for", "jobs", "CPU ms/s worker", "delivery", "Postgres", "sent/s", "late ms median", "p99"],
  rows,
);
process.exit(0);

async function measure(by: string, jobs: number): Promise<string[]> {
  const database = await createTestDatabase("held");
  await migrate(database.url);
  const db = openDatabase(`${database.url}?${PATIENT}`, { connections: 4, log, answerTimeoutMs: 120_000 });
  const nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  const arrivedAt = new Map<string, number>();
  let [open, openMax, sent] = [0, 0, 0];
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
      await Bun.sleep(ANSWER_MS);
      open--;
      sent++;
      return new Response("ok");
    },
  });
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    SHARDS_PER_REGION: String(SHARDS_PER_REGION),
    LOG_LEVEL: "warn",
  };
  if (by === "host") {
    const requestId = ids.next(REQUEST_PREFIX, Date.now());
    await setHostLimit(db, { host: "127.0.0.1", requests: 0 }, { requestId, operator: "bench" });
  }
  const services = [await startService("worker", environment), await startService("delivery", environment)];
  try {
    const makeProject = async (name: string) => {
      const wish = { name, plan: "scale", defaultRegion: "us-east" } as const;
      return (await createProjectWithKeys(db, createSeal(secretsKey), wish)).project;
    };
    const waiting = await makeProject("waiting");
    const other = by === "host" ? waiting : await makeProject("other");
    await db.run("limit", "UPDATE flows SET concurrency = $2 WHERE project_no = $1", [waiting.no, LIMIT]);
    if (jobs > 0) {
      const shard = shardOf(waiting.no, SHARDS_PER_REGION);
      await db.run("wait", ADD_DUE_JOBS, [
        waiting.no,
        jobs,
        `http://127.0.0.1:${target.port}/waits`,
        shard,
        1,
      ]);
      if (by === "host") await until("all of them are parked", async () => (await countDue(db)) === 0);
      else await until("the limit is reached", async () => open >= Math.min(LIMIT, jobs));
    }
    const pids = services.map(({ pid }) => pid);
    const [before, sentBefore] = [await readCpuMs(db, pids), sent];
    await Bun.sleep(seconds * 1_000);
    const after = await readCpuMs(db, pids);
    const sentPerS = (sent - sentBefore) / seconds;
    const late = quantilesOf(await probe(db, other, `http://localhost:${target.port}/probe`, arrivedAt));
    if (openMax > LIMIT) throw new Error(`${openMax} requests were open at once`);
    return [
      ...after.map((ms, index) => ((ms - (before[index] ?? 0)) / seconds).toFixed(1)),
      sentPerS.toFixed(0),
      ...[0.5, 0.99].map((part) => (late[QUANTILES.indexOf(part)] ?? Number.NaN).toFixed(1)),
    ];
  } finally {
    for (const service of services) await service.end("SIGKILL");
    await nats.stop();
    await target.stop(true);
    await db.close();
    await database.drop();
  }
}

async function countDue(db: Database): Promise<number> {
  const text = "SELECT count(*)::int AS count FROM open_jobs WHERE due_at <= now()";
  const [row] = await db.run<{ count: number }>("due", text, []);
  return row?.count ?? 0;
}

/** The CPU of each process, and the sum of all backends except this connection's. */
async function readCpuMs(db: Database, pids: readonly number[]): Promise<number[]> {
  const backends = await db.run<{ pid: number }>(
    "backends",
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    [],
  );
  const usedUs = backends.reduce((total, { pid }) => total + cpuUsOf(pid), 0);
  return [...pids.map((pid) => cpuUsOf(pid)), usedUs].map((us) => us / 1_000);
}

/** Sends jobs that are due one after the other. Answers the lateness of each in milliseconds. */
async function probe(
  db: Database,
  project: ProjectRow,
  targetUrl: string,
  arrivedAt: ReadonlyMap<string, number>,
): Promise<number[]> {
  const firstAt = Date.now() + LEAD_MS;
  const jobs = Array.from({ length: Number(values.probes) }, (_, index) => {
    const runAt = firstAt + index * PROBE_EVERY_MS;
    return newJob({ projectNo: project.no, targetUrl, runAt, maxAttempts: 1 }, SHARDS_PER_REGION);
  });
  await createJobs(db, jobs, new Set());
  await until("all other jobs have arrived", async () => jobs.every(({ id }) => arrivedAt.has(id)));
  return jobs.map(({ id, runAt }) => (arrivedAt.get(id) ?? Number.NaN) - runAt);
}
