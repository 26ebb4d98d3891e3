import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import type { Bus } from "../../shared/bus/bus.ts";
import { sendCommands } from "../../shared/bus/hints.ts";
import { openBus } from "../../shared/bus/jetstream.ts";
import { createIdSource, idToUuid, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { rendezvousOwner } from "../../shared/domain/shard.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import type { PooledDatabase } from "../../shared/store/database/database.ts";
import { listShards } from "../../shared/store/queue/shards.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { recordPauses } from "../support/recorded-pauses.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget } from "../support/target.ts";

setDefaultTimeout(1_800_000);

const SHARDS_PER_REGION = 64;
/**
 * On an idle machine the shards move in ten parts within 20 s. Three times as long is for a busy one. Shards that
 * move one by one would take minutes.
 */
const SHARE_MS = 60_000;
const HELD_UP_MS_MAX = 240_000;
const LOOK_EVERY_MS = 50;
/** Half of the jobs are due at once, and messages tell of them. Sweeps find the others in time. */
const AHEAD_MS = { min: 2_000, max: 4_000 };
const LOAD_EVERY_MS = 100;
const JOBS_PER_SECOND = 80;
/** A slow machine that has so many jobs to start is given no more. Some 120 are not due yet. */
const BEHIND_MAX = 400;
const COUNT_EVERY_MS = 500;
/** Jobs that are due around the time at which a shard moves show whether the shard stood still. */
const BEFORE_MS = 600;
const AFTER_MS = 200;
/** So few of them show nothing. A machine that stood still may have no more. */
const NEAR_MOVES_MIN = 10;
const WORKERS_MAX = 4;
/** The start of a process holds up all others for a moment. */
const STARTED_MS = 2_000;

const ids = createIdSource(randomBytes);
const target = startTarget();
const services: ServiceProcess[] = [];
let database: TestDatabase;
let db: PooledDatabase;
let nats: NatsServer;
let bus: Bus;
let addProject: () => Promise<number>;
let start: (service: "worker" | "delivery", name: string) => Promise<void>;

beforeAll(async () => {
  database = await createMigratedDatabase("joining");
  db = openPatientDatabase(database.url, 4);
  nats = await startNatsServer();
  bus = await openBus(nats.url, createLog({ level: "error", name: "test" }));
  const secretsKey = randomBytes(32);
  const wish = { name: "joining", plan: "scale", defaultRegion: "us-east" } as const;
  addProject = async () => (await createProjectWithKeys(db, createSeal(secretsKey), wish)).project.no;
  start = async (service, name) => {
    const settings = {
      DATABASE_URL: database.url,
      NATS_URL: nats.url,
      SECRETS_KEY: secretsKey.toString("base64"),
      NODE_NAME: name,
      SHARDS_PER_REGION: String(SHARDS_PER_REGION),
    };
    services.push(await startService(service, settings));
  };
});
afterAll(async () => {
  for (const service of services) await service.end("SIGKILL");
  await target.stop();
  await bus.close();
  await nats.stop();
  await db.close();
  await database.drop();
});

test("a worker that joins under load has its share of the shards within 60 s, and nothing in these starts later for it", async () => {
  await start("worker", "worker-1");
  await start("delivery", "delivery");
  const load = await beginLoad();
  await until(() => load.due.size > 2 * SHARDS_PER_REGION, HELD_UP_MS_MAX);
  let movedAt: MovedAt;
  let workers = 1;
  do {
    movedAt = await join(++workers);
    await Bun.sleep(AFTER_MS);
  } while (jobsNear(load.due, movedAt).moved.length <= NEAR_MOVES_MIN && workers < WORKERS_MAX);
  await load.stop();
  await until(async () => {
    await Bun.sleep(COUNT_EVERY_MS);
    return (await countStarts()) === load.due.size;
  }, HELD_UP_MS_MAX);
  const startedAt = new Map((await listStarts()).map((start) => [start.id, start.startedAt]));
  const lateOf = ([id, { dueAt }]: [string, DueJob]) => (startedAt.get(id) ?? Number.NaN) - dueAt;

  // A pause of the machine shows in the shards that stay as well.
  const near = jobsNear(load.due, movedAt);
  expect(near.moved.length).toBeGreaterThan(NEAR_MOVES_MIN);
  expect(partOf(near.moved.map(lateOf), 0.8)).toBeLessThanOrEqual(Math.max(...near.stayed.map(lateOf)));
});

/** When each shard of us-east moved that has moved. */
type MovedAt = Map<number, number>;

/** Starts a worker, so that there are so many, and expects that all have their shares in time. */
async function join(workers: number): Promise<MovedAt> {
  const pauses = await recordPauses(database.url, () => [nats, ...services]);
  const sharing = untilShared(workers);
  await start("worker", `worker-${workers}`);
  const { movedAt, joinedAt, sharedAt } = await sharing;
  await pauses.stop();
  expect(sharedAt - joinedAt - pauses.between(joinedAt, sharedAt)).toBeLessThan(SHARE_MS);
  return movedAt;
}

/** The jobs that were due around the time at which their shard moved, and those of other shards due meanwhile. */
function jobsNear(due: ReadonlyMap<string, DueJob>, movedAt: MovedAt) {
  const [fromAt, toAt] = [Math.min(...movedAt.values()) + STARTED_MS, Math.max(...movedAt.values())];
  const near = { moved: [] as [string, DueJob][], stayed: [] as [string, DueJob][] };
  for (const [id, job] of due) {
    const { dueAt, shard } = job;
    const at = movedAt.get(shard);
    const isNear = at === undefined || (dueAt > at - BEFORE_MS && dueAt < at + AFTER_MS);
    if (isNear && dueAt > fromAt && dueAt < toAt) near[at === undefined ? "stayed" : "moved"].push([id, job]);
  }
  return near;
}

interface DueJob {
  dueAt: number;
  shard: number;
}

const isTold = (index: number) => index % 2 === 0;

/** Makes jobs for all shards in turn. */
async function beginLoad(): Promise<{ due: Map<string, DueJob>; stop(): Promise<void> }> {
  const projectNos: number[] = [];
  for (let shard = 0; shard < SHARDS_PER_REGION; shard++) projectNos.push(await addProject());
  const due = new Map<string, DueJob>();
  const lanes = new Set<string>();
  let addedAt = performance.now();
  let isStopped = false;
  async function add(): Promise<void> {
    if (due.size - (await countStarts()) > BEHIND_MAX) return;
    const now = Date.now();
    // A slow machine makes more jobs at once, but never those of more than a second.
    const seconds = Math.min(1, (performance.now() - addedAt) / 1_000);
    addedAt = performance.now();
    const jobs = Array.from({ length: Math.ceil(seconds * JOBS_PER_SECOND) }, (_, index) => {
      const shard = (due.size + index) % SHARDS_PER_REGION;
      return {
        id: ids.next(JOB_PREFIX, now),
        projectNo: projectNos[shard] ?? 0,
        environment: "production" as const,
        region: "us-east" as const,
        shard,
        targetUrl: target.url,
        payload: "{}",
        runAt: isTold(index) ? now : now + AHEAD_MS.min + Math.random() * (AHEAD_MS.max - AHEAD_MS.min),
        maxAttempts: 1,
        baseSeconds: 1,
        capSeconds: 1,
        cause: null,
      };
    });
    const created = await createJobs(db, jobs, lanes);
    created.forEach((answer, index) => {
      if (answer.kind !== "created") throw new Error(answer.kind);
      for (const owed of answer.owed) due.set(idToUuid(owed.id), { dueAt: owed.dueAt, shard: owed.shard });
      if (isTold(index)) sendCommands(bus, answer.owed, now);
    });
  }
  async function run(): Promise<void> {
    while (!isStopped) {
      await add();
      await Bun.sleep(LOAD_EVERY_MS);
    }
  }
  const running = run();
  // `stop` tells of its error.
  running.catch(() => undefined);
  return {
    due,
    async stop() {
      isStopped = true;
      await running;
    },
  };
}

/** Waits until so many workers own what they should. Answers when the last of them came, and when all had their shares. */
async function untilShared(count: number): Promise<{ movedAt: MovedAt; joinedAt: number; sharedAt: number }> {
  const movedAt: MovedAt = new Map();
  let joinedAt = Number.NaN;
  const before: (number | null)[] = await listWorkers();
  await until(async () => {
    const workers = await listWorkers();
    if (workers.length === count && Number.isNaN(joinedAt)) joinedAt = Date.now();
    const rows = await listShards(db, REGIONS);
    for (const { region, shard, owner } of rows) {
      if (region === "us-east" && !before.includes(owner) && !movedAt.has(shard))
        movedAt.set(shard, Date.now());
    }
    await Bun.sleep(LOOK_EVERY_MS);
    return (
      workers.length === count &&
      rows.every(({ region, shard, owner }) => owner === rendezvousOwner(region, shard, workers))
    );
  }, HELD_UP_MS_MAX);
  return { movedAt, joinedAt, sharedAt: Date.now() };
}

async function listWorkers(): Promise<number[]> {
  const text = "SELECT id FROM nodes WHERE kind = 'worker' ORDER BY id";
  return (await db.run<{ id: number }>("workers", text, [])).map(({ id }) => id);
}

async function countStarts(): Promise<number> {
  const [row] = await db.run<{ count: number }>(
    "count_starts",
    "SELECT count(*)::int AS count FROM runs",
    [],
  );
  return row?.count ?? 0;
}

const listStarts = () =>
  db.run<{ id: string; startedAt: number }>(
    "starts",
    `SELECT job_id AS id, (extract(epoch FROM started_at) * 1000)::float8 AS "startedAt" FROM runs`,
    [],
  );

/** The number below which the given part of all numbers lies. */
const partOf = (numbers: readonly number[], part: number) =>
  numbers.toSorted((one, other) => one - other)[Math.floor(part * numbers.length)];
