import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createIdSource, JOB_PREFIX, REQUEST_PREFIX } from "../../shared/domain/ids.ts";
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
import { median, printTable } from "./measure.ts";

/**
 * What do jobs cost that are held at one host, and how much later do jobs of the same project start that lead elsewhere?
 * A worker and a delivery node as processes over NATS, Postgres with fsync, and the target in this process. CPU is of the
 * processes and of their connections' backends, while nothing comes; lateness is from a job's `run_at` to its arrival.
 *
 * `--held N,N,...` (0,4500,100000) jobs, `--seconds N` (20) of watching, and `--probes N` (100) of other jobs.
 */

const SHARDS_PER_REGION = 1;
const PROBE_EVERY_MS = 40;
const LEAD_MS = 2_500;
const LOOK_EVERY_MS = 250;
/** For all of what is held to come to rest, if it does. */
const REST_MS_MAX = 60_000;
const PROBES_MS_MAX = 60_000;
const MS_PER_TICK = 10;

const PATIENT = "options=-c%20statement_timeout%3D120s";

const { values } = parseArgs({
  options: {
    held: { type: "string", default: "0,4500,100000" },
    seconds: { type: "string", default: "20" },
    probes: { type: "string", default: "100" },
  },
});
const probeCount = Number(values.probes);
const log = createLog({ name: "bench", level: "error" });
const ids = createIdSource(randomBytes);

const rows: string[][] = [];
for (const held of values.held.split(",")) rows.push(await measure(Number(held)));
printTable(
  ["held", "at rest after s", "CPU ms/s worker", "delivery", "Postgres", "late ms median", "p99", "arrived"],
  rows,
);

async function measure(held: number): Promise<string[]> {
  const database = await createTestDatabase("held");
  await migrate(database.url);
  const db = openDatabase(`${database.url}?${PATIENT}`, { connections: 4, log, answerTimeoutMs: 120_000 });
  const nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  const arrivedAt = new Map<string, number>();
  const target = Bun.serve({
    hostname: "127.0.0.1",
    port: 0,
    fetch(request) {
      arrivedAt.set(request.headers.get("service-job-id") ?? "", Date.now());
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
  const requestId = ids.next(REQUEST_PREFIX, Date.now());
  await setHostLimit(db, { host: "127.0.0.1", requests: 0 }, { requestId, operator: "bench" });
  const services = [await startService("worker", environment), await startService("delivery", environment)];
  try {
    const seal = createSeal(secretsKey);
    const wish = { name: "held", plan: "scale", defaultRegion: "us-east" } as const;
    const { project } = await createProjectWithKeys(db, seal, wish);
    const shard = shardOf(project.no, SHARDS_PER_REGION);
    if (held > 0)
      await db.run("held", ADD_DUE_JOBS, [project.no, held, `http://127.0.0.1:${target.port}/held`, shard]);
    const restMs = await until(async () => (await countDue(db)) === 0, REST_MS_MAX);
    const pids = services.map(({ pid }) => pid);
    const before = await readCpuMs(db, pids);
    await Bun.sleep(Number(values.seconds) * 1_000);
    const after = await readCpuMs(db, pids);
    const late = await probe(db, project, `http://localhost:${target.port}/probe`, arrivedAt);
    return [
      String(held),
      restMs === null ? "never" : (restMs / 1_000).toFixed(1),
      ...after.map((ms, index) => ((ms - (before[index] ?? 0)) / Number(values.seconds)).toFixed(1)),
      median(late).toFixed(1),
      (late.toSorted((a, b) => a - b)[Math.floor(late.length * 0.99)] ?? Number.NaN).toFixed(1),
      `${late.length} of ${probeCount}`,
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

/** Of each process, and of all backends but this one's together. */
async function readCpuMs(db: Database, pids: readonly number[]): Promise<number[]> {
  const backends = await db.run<{ pid: number }>(
    "backends",
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    [],
  );
  const sum = backends.reduce((total, { pid }) => total + cpuMsOf(pid), 0);
  return [...pids.map(cpuMsOf), sum];
}

function cpuMsOf(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ") ?? [];
  return (Number(fields[11]) + Number(fields[12])) * MS_PER_TICK;
}

/** Jobs that are due one after the other; answers with the lateness of those that arrive. */
async function probe(
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
  await until(async () => jobs.every(({ id }) => arrivedAt.has(id)), PROBES_MS_MAX);
  return jobs.flatMap(({ id, runAt }) => {
    const at = arrivedAt.get(id);
    return at === undefined ? [] : [at - runAt];
  });
}

/** After how long it is so, in milliseconds; null if it does not come to be. */
async function until(holds: () => Promise<boolean>, msMax: number): Promise<number | null> {
  const startedAt = performance.now();
  while (!(await holds())) {
    if (performance.now() > startedAt + msMax) return null;
    await Bun.sleep(LOOK_EVERY_MS);
  }
  return performance.now() - startedAt;
}
