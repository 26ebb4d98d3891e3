import { afterAll, afterEach, beforeAll, beforeEach, expect, setDefaultTimeout } from "bun:test";
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
import { JOB_END_TYPES } from "../../shared/domain/webhook.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { createWebhook } from "../../shared/store/resources/webhooks.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { type OverlapTarget, startOverlapTarget } from "../support/overlap-target.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";

export const LIMIT = 10;
export const JOBS = 60;
const REGIONS: Region[] = ["us-east", "eu-central"];
const SHARDS_PER_REGION = 16;
export const LEASE_TTL_MS = 2_000;
/**
 * The attempt timeout. It is much longer than a test freezes a node whose attempts have to end in time. Together with
 * the grace it is longer than a killed node's attempts may take to come back, so only the proof of the node's death can
 * bring them back.
 */
export const TIMEOUT_MS = 90_000;
/** An attempt whose node is not proved dead is rescued this long after its deadline. */
export const RESCUE_GRACE_MS = 30_000;
const SLOW_MS = 150;
export const DRAINED_MS = 180_000;
export const FROZEN = "delivery-a";

const secretsKey = randomBytes(32);
const ids = createIdSource(randomBytes);
export let database: TestDatabase;
export let db: Database;
export let nats: NatsServer;
export let target: OverlapTarget;
export let worker: ServiceProcess;
export let deliveries: ServiceProcess[];

/**
 * A worker, two delivery nodes and a slow target as real processes, for the tests of one file. Nodes and target are new
 * for each test.
 */
export function useBusyCell(): void {
  setDefaultTimeout(600_000);

  beforeAll(async () => {
    database = await createMigratedDatabase("overlap");
    db = openPatientDatabase(database.url, 4);
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
    // SIGKILL also ends frozen processes.
    for (const service of deliveries) await service.end("SIGKILL");
    await target.stop();
  });
}

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

/** A project that owes all of its jobs to the target at once. */
export async function makeBusyProject(): Promise<ProjectRow> {
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
    events: [...JOB_END_TYPES],
    status: "enabled",
    description: null,
  } as const;
  await createWebhook(
    db,
    {
      ...endpoint,
      events: [...JOB_END_TYPES],
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
 * Stops the first delivery node while the target has as many requests open as there are permits, some from each node.
 * Answers the names of the stopped node's requests. The target answers nothing until the test lets it.
 */
export async function stopAmid(project: ProjectRow, signal: "SIGKILL" | "SIGSTOP"): Promise<Set<string>> {
  const [stopped] = deliveries;
  for (;;) {
    target.hold(() => true);
    await until(() => target.open.length === LIMIT);
    if (isShared(await onWire(project))) break;
    // These requests end, and the next ones are held.
    const passed = new Set(target.open);
    target.hold((arrival) => !passed.has(arrival));
    await until(() => target.open.every((arrival) => !passed.has(arrival)));
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
export const LOST = `
SELECT ((SELECT count(*) FROM runs WHERE project_no = $1 AND status <> 1)
      + (SELECT count(*) FROM delivery_attempts a JOIN webhooks w ON w.id = a.webhook_id WHERE w.project_no = $1 AND a.status <> 1))::int AS lost`;

export async function onWire(project: ProjectRow): Promise<{ name: string; recordId: string }[]> {
  const rows = await db.run<{ name: string; kind: string; id: string }>("on_wire", ON_WIRE, [project.no]);
  return rows.map(({ name, kind, id }) => ({
    name,
    recordId: uuidToId(kind === "job" ? RUN_PREFIX : EVENT_PREFIX, id),
  }));
}

export async function openCount(project: ProjectRow): Promise<number> {
  return Number((await db.run<{ count: string }>("open", OPEN, [project.no]))[0]?.count);
}

export async function silentMs(name: string): Promise<number> {
  const [row] = await db.run<{ ms: number }>(
    "silent",
    "SELECT (extract(epoch FROM now() - max(seen_at)) * 1000)::float8 AS ms FROM nodes WHERE name = $1",
    [name],
  );
  return row?.ms ?? Number.POSITIVE_INFINITY;
}

/** Expects that everything has ended well, no permit is in use, and the target never had more requests open than the limit. */
export async function expectAllDelivered(project: ProjectRow): Promise<void> {
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

/** The names that arrived more than once. */
export function repeated(kind: "job" | "webhook"): string[] {
  const names = target.arrivals.filter((each) => each.kind === kind).map(({ name }) => name);
  return names.filter((name, index) => names.indexOf(name) !== index);
}
