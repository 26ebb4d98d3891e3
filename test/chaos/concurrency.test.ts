import {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  expect,
  setDefaultTimeout,
  test,
} from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import {
  createIdSource,
  EVENT_PREFIX,
  JOB_PREFIX,
  REQUEST_PREFIX,
  RUN_PREFIX,
  uuidToId,
  WEBHOOK_PREFIX,
} from "../../shared/domain/ids.ts";
import type { Region } from "../../shared/domain/scope.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import { EVENT_TYPES } from "../../shared/domain/webhook.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal.ts";
import { type Database, openDatabase } from "../../shared/store/database.ts";
import { createJobs } from "../../shared/store/jobs.ts";
import { migrate } from "../../shared/store/migrate.ts";
import type { ProjectRow } from "../../shared/store/projects.ts";
import { createWebhook } from "../../shared/store/webhooks.ts";
import { until } from "../flow/support.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { type OverlapTarget, startOverlapTarget } from "../support/overlap-target.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";

setDefaultTimeout(180_000);

const LIMIT = 10;
const JOBS = 60;
const REGIONS: Region[] = ["us-east", "eu-central"];
const SHARDS_PER_REGION = 16;
const LEASE_TTL_MS = 2_000;
const TIMEOUT_MS = 8_000;
/** Behind the deadline, before a node whose death nobody can prove is held to be gone. */
const RESCUE_GRACE_MS = 30_000;
const SLOW_MS = 150;
const DRAINED_MS = 60_000;
const FROZEN = "delivery-a";

const secretsKey = randomBytes(32);
const ids = createIdSource(randomBytes);
let database: TestDatabase;
let db: Database;
let nats: NatsServer;
let target: OverlapTarget;
let worker: ServiceProcess;
let deliveries: ServiceProcess[];

beforeAll(async () => {
  database = await createTestDatabase("overlap");
  await migrate(database.url);
  db = openDatabase(database.url, { connections: 4, log: createLog({ level: "error", name: "test" }) });
  nats = await startNatsServer();
  worker = await startService("worker", environment("worker"));
});
afterAll(async () => {
  await worker.end("SIGKILL");
  await nats.stop();
  await db.close();
  await database.drop();
});
beforeEach(async () => {
  target = startOverlapTarget(SLOW_MS);
  deliveries = await Promise.all(
    [FROZEN, "delivery-b"].map((name) => startService("delivery", environment(name))),
  );
});
afterEach(async () => {
  // Which ends those as well that are frozen.
  for (const service of deliveries) await service.end("SIGKILL");
  await target.stop();
});

const environment = (name: string) => ({
  DATABASE_URL: database.url,
  NATS_URL: nats.url,
  SECRETS_KEY: secretsKey.toString("base64"),
  NODE_NAME: name,
  LEASE_TTL_MS: String(LEASE_TTL_MS),
  ATTEMPT_TIMEOUT_MS: String(TIMEOUT_MS),
  WEBHOOK_TIMEOUT_MS: String(TIMEOUT_MS),
  SHARDS_PER_REGION: String(SHARDS_PER_REGION),
});

describe("60 slow jobs in two regions and the 60 webhooks that they make, over two delivery nodes", () => {
  test("never overlap more than the limit, and all arrive, each once", async () => {
    const project = await makeBusyProject();
    await expectAllDelivered(project);
    expect(repeated("job")).toEqual([]);
    expect(repeated("webhook")).toEqual([]);
  });

  test("never overlap more while a node is killed amid them: what it had comes back by the proof of its death", async () => {
    const project = await makeBusyProject();
    const held = await stopAmid(project, "SIGKILL");
    // Their connections went with the process.
    await until(() => target.open.every(({ recordId }) => !held.has(recordId)));
    const lostCount = target.arrivals.filter(({ recordId }) => held.has(recordId)).length;
    target.hold(() => false);
    await expectAllDelivered(project);
    expect(repeated("job")).toEqual([]);
    // An event's name is the same on every attempt; only those that were lost were sent again.
    expect(repeated("webhook").length).toBeLessThanOrEqual(lostCount);
    expect((await db.run<{ lost: number }>("lost", LOST, [project.no]))[0]?.lost).toBe(lostCount);
  });

  test("never overlap more while a node is frozen for many leases, and what it had ends once it goes on, sent once", async () => {
    const project = await makeBusyProject();
    const held = await stopAmid(project, "SIGSTOP");
    const [stopped] = deliveries;
    const stoppedAt = performance.now();
    target.hold(({ recordId }) => held.has(recordId));
    const arrived = target.arrivals.length;
    // The other node works on with the permits that are left; what the frozen one holds open counts all the while.
    await until(() => target.arrivals.length > arrived + LIMIT);
    await until(() => performance.now() - stoppedAt > 3 * LEASE_TTL_MS);
    expect(target.open.filter(({ recordId }) => held.has(recordId)).length).toBe(held.size);
    target.hold(() => false);
    process.kill(stopped?.pid ?? 0, "SIGCONT");
    await expectAllDelivered(project);
    expect(repeated("job")).toEqual([]);
    expect(repeated("webhook")).toEqual([]);
    expect((await db.run<{ lost: number }>("lost", LOST, [project.no]))[0]?.lost).toBe(0);
  });

  test("never overlap more while a node is frozen past its attempts' deadlines: their permits come back 30 s behind those and no sooner, and waking it sends nothing", async () => {
    const project = await makeBusyProject();
    const held = await stopAmid(project, "SIGSTOP");
    const stoppedAt = performance.now();
    target.hold(({ recordId }) => held.has(recordId));
    await until(() => performance.now() - stoppedAt > TIMEOUT_MS);
    expect(target.open.filter(({ recordId }) => held.has(recordId)).length).toBe(held.size);
    // The target is done with them. Nobody else knows that, so their permits stay with the frozen node.
    target.hold(() => false);
    const permitsHeld = async () => (await onWire(project)).filter(({ name }) => name === FROZEN).length;
    await until(async () => (await openCount(project)) === held.size, DRAINED_MS);
    await until(async () => (await permitsHeld()) < held.size, DRAINED_MS);
    expect(performance.now() - stoppedAt).toBeGreaterThan(RESCUE_GRACE_MS);
    await until(async () => (await openCount(project)) === 0, DRAINED_MS);
    const arrivedCount = target.arrivals.length;
    process.kill(deliveries[0]?.pid ?? 0, "SIGCONT");
    // It has heard what was said while it was frozen, and said that it lives.
    await until(async () => (await silentMs(FROZEN)) < 1_000);
    await expectAllDelivered(project);
    expect(target.arrivals.length).toBe(arrivedCount);
    expect(repeated("job")).toEqual([]);
  });
});

/** A project that has everything owed at once, to the target. */
async function makeBusyProject(): Promise<ProjectRow> {
  const sealing = createSeal(secretsKey);
  const { project } = await createProjectWithKeys(db, sealing, {
    name: "busy",
    plan: "scale",
    defaultRegion: "us-east",
  });
  await db.run("limit", "UPDATE flows SET concurrency = $2 WHERE project_no = $1", [project.no, LIMIT]);
  const now = Date.now();
  const endpoint = {
    url: target.url,
    events: [...EVENT_TYPES],
    status: "enabled",
    description: null,
  } as const;
  await createWebhook(
    db,
    {
      ...endpoint,
      events: [...EVENT_TYPES],
      id: ids.next(WEBHOOK_PREFIX, now),
      projectNo: project.no,
      environment: "production",
      sealedSecret: sealing.seal(makeSecret(randomBytes)),
    },
    { requestId: ids.next(REQUEST_PREFIX, now), keyNo: 0 },
    null,
  );
  const jobs = Array.from({ length: JOBS }, (_, index) => ({
    id: ids.next(JOB_PREFIX, now),
    projectNo: project.no,
    environment: "production" as const,
    region: REGIONS[index % REGIONS.length] ?? "us-east",
    shard: shardOf(project.no, SHARDS_PER_REGION),
    targetUrl: target.url,
    payload: "{}",
    runAt: now,
    maxAttempts: 5,
    baseSeconds: 1,
    capSeconds: 1,
    cause: null,
  }));
  await createJobs(db, jobs, new Set());
  return project;
}

/**
 * Stops the first delivery node while the target is answering as many requests as there are permits, some of each node's.
 * The answer names what was that node's; nothing is answered until the target is told otherwise.
 */
async function stopAmid(project: ProjectRow, signal: "SIGKILL" | "SIGSTOP"): Promise<Set<string>> {
  const [stopped] = deliveries;
  for (;;) {
    await until(async () => isShared(await onWire(project)));
    target.hold(() => true);
    await until(() => target.open.length === LIMIT);
    if (isShared(await onWire(project))) break;
    target.hold(() => false);
  }
  const held = (await onWire(project)).filter(({ name }) => name === FROZEN).map(({ recordId }) => recordId);
  if (signal === "SIGKILL") await stopped?.end(signal);
  else process.kill(stopped?.pid ?? 0, signal);
  return new Set(held);
}

const isShared = (wire: readonly { name: string }[]) =>
  new Set(wire.map(({ name }) => name)).size === 2 && wire.filter(({ name }) => name === FROZEN).length > 1;

const ON_WIRE = `
SELECT n.name, o.kind, o.id FROM (
  SELECT 'job' AS kind, run_id AS id, node_id FROM open_jobs WHERE project_no = $1
   UNION ALL SELECT 'webhook', event_id, node_id FROM open_deliveries WHERE project_no = $1) o
  JOIN nodes n ON n.id = o.node_id`;
const OPEN = `
SELECT (SELECT count(*) FROM open_jobs WHERE project_no = $1) + (SELECT count(*) FROM open_deliveries WHERE project_no = $1) AS count`;
const LOST = `
SELECT ((SELECT count(*) FROM runs WHERE project_no = $1 AND status <> 1)
      + (SELECT count(*) FROM delivery_attempts a JOIN webhooks w ON w.id = a.webhook_id WHERE w.project_no = $1 AND a.status <> 1))::int AS lost`;

async function onWire(project: ProjectRow): Promise<{ name: string; recordId: string }[]> {
  const rows = await db.run<{ name: string; kind: string; id: string }>("on_wire", ON_WIRE, [project.no]);
  return rows.map(({ name, kind, id }) => ({
    name,
    recordId: uuidToId(kind === "job" ? RUN_PREFIX : EVENT_PREFIX, id),
  }));
}

async function openCount(project: ProjectRow): Promise<number> {
  return Number((await db.run<{ count: string }>("open", OPEN, [project.no]))[0]?.count);
}

async function silentMs(name: string): Promise<number> {
  const [row] = await db.run<{ ms: number }>(
    "silent",
    "SELECT (extract(epoch FROM now() - max(seen_at)) * 1000)::float8 AS ms FROM nodes WHERE name = $1",
    [name],
  );
  return row?.ms ?? Number.POSITIVE_INFINITY;
}

/** Everything has ended well, no permit is in use, and at no time had the target more open than the limit. */
async function expectAllDelivered(project: ProjectRow): Promise<void> {
  await until(async () => (await openCount(project)) === 0, DRAINED_MS);
  const [ended] = await db.run(
    "ended",
    `SELECT (SELECT count(*)::int FROM ended_jobs WHERE project_no = $1 AND status = 0) AS jobs,
            (SELECT count(*)::int FROM ended_deliveries WHERE project_no = $1 AND status = 0) AS webhooks,
            development_jobs + production_jobs + development_webhooks + production_webhooks AS in_use
       FROM flows WHERE project_no = $1`,
    [project.no],
  );
  expect(ended).toEqual({ jobs: JOBS, webhooks: JOBS, in_use: 0 } as never);
  const arrived = (kind: "job" | "webhook") =>
    new Set(target.arrivals.filter((each) => each.kind === kind).map(({ name }) => name.split(" ")[0])).size;
  expect([arrived("job"), arrived("webhook")]).toEqual([JOBS, JOBS]);
  expect(target.openMax).toBe(LIMIT);
}

/** Names that arrived more than once. */
function repeated(kind: "job" | "webhook"): string[] {
  const names = target.arrivals.filter((each) => each.kind === kind).map(({ name }) => name);
  return names.filter((name, index) => names.indexOf(name) !== index);
}
