import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { repeatedArrivals } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget, type Target } from "../support/target.ts";

setDefaultTimeout(600_000);

const JOBS = 600;
const PER_SECOND = 60;
const KILLS = 3;
const LEASE_TTL_MS = 2_000;
const LOOK_EVERY_MS = 20;

let database: TestDatabase;
let nats: NatsServer;
let db: Database;
let gateway: ServiceProcess;
let delivery: ServiceProcess;
const workers: ServiceProcess[] = [];
let target: Target;
let isBroken = true;
let key = "";

beforeAll(async () => {
  database = await createMigratedDatabase("bulk");
  nats = await startNatsServer();
  target = startTarget(() =>
    isBroken ? new Response("the backend is gone", { status: 503 }) : new Response("ok"),
  );
  const secretsKey = randomBytes(32);
  db = openPatientDatabase(database.url, 2);
  const terms = { name: "chaos", plan: "scale", defaultRegion: "us-east" } as const;
  key = (await createProjectWithKeys(db, createSeal(secretsKey), terms)).keys.production;
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    LEASE_TTL_MS: String(LEASE_TTL_MS),
    SHARDS_PER_REGION: "8",
    ALLOW_INSECURE_TARGETS: "true",
  };
  gateway = await startService("gateway", environment);
  delivery = await startService("delivery", environment);
  for (let index = 0; index < 2; index++) workers.push(await startService("worker", environment));
});
afterAll(async () => {
  for (const service of [gateway, delivery, ...workers]) await service.end("SIGKILL");
  await target.stop();
  await nats.stop();
  await db.close();
  await database.drop();
});

async function ask<T>(method: string, path: string, body?: object): Promise<T> {
  const response = await fetchServed(`http://127.0.0.1:${gateway.port}${path}`, {
    method,
    headers: { Authorization: `Bearer ${key}`, "Content-Type": "application/json" },
    ...(body === undefined ? {} : { body: JSON.stringify(body) }),
  });
  const text = await response.text();
  if (!response.ok) throw new Error(`${path}: ${response.status} ${text}`);
  return JSON.parse(text) as T;
}

interface Bulk {
  id: string;
  status: string;
  matched: number | null;
  done: number;
  skipped: number;
  failed: number;
}

const bulkOf = (id: string) => ask<Bulk>("GET", `/v2/bulk/${id}`);

async function until<Answer>(
  look: () => Promise<Answer>,
  isIt: (answer: Answer) => boolean,
): Promise<Answer> {
  for (;;) {
    const answer = await look();
    if (isIt(answer)) return answer;
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

const countOf = async (text: string): Promise<number> =>
  (await db.run<{ count: number }>(`count ${Bun.hash(text)}`, text, []))[0]?.count ?? 0;
const failedCount = () => countOf("SELECT count(*)::int AS count FROM ended_jobs WHERE status = 1");
const succeededCount = () => countOf("SELECT count(*)::int AS count FROM ended_jobs WHERE status = 0");

test("workers that are killed three times amid a bulk retry: each job is sent once more, at no more than the pace", async () => {
  const job = { target_url: target.url, retry_policy: { max_attempts: 1 } };
  for (let made = 0; made < JOBS; made += 100) {
    await ask("POST", "/v2/jobs/batch", { jobs: Array.from({ length: 100 }, () => job) });
  }
  await until(failedCount, (count) => count === JOBS);
  isBroken = false;

  const filter = { error_contains: "backend is gone" };
  const dry = await ask<Bulk>("POST", "/v2/bulk", { action: "retry", filter, dry_run: true });
  expect(
    await until(
      () => bulkOf(dry.id),
      ({ status }) => status === "counted",
    ),
  ).toMatchObject({ matched: JOBS, done: 0 });

  const { id } = await ask<Bulk>("POST", "/v2/bulk", { action: "retry", filter, per_second: PER_SECOND });
  for (let kill = 0; kill < KILLS; kill++) {
    // Both workers are killed, so that the one that carries out the operation is among them.
    const { done } = await until(
      () => bulkOf(id),
      ({ done }) => done > kill * 100 + 20,
    );
    await Promise.all(workers.map((worker) => worker.end("SIGKILL")));
    expect((await bulkOf(id)).done).toBeGreaterThanOrEqual(done);
    for (const worker of workers) await worker.startAgain();
  }
  const bulk = await until(
    () => bulkOf(id),
    ({ status }) => status === "done",
  );
  expect(bulk).toMatchObject({ matched: JOBS, done: JOBS, skipped: 0, failed: 0 });
  await until(succeededCount, (count) => count === JOBS);

  expect(repeatedArrivals(target.arrivals)).toEqual([]);
  const second = target.arrivals.filter(({ attempt }) => attempt === 2);
  expect(new Set(second.map(({ jobId }) => jobId)).size).toBe(JOBS);
  expect(target.arrivals.length).toBe(2 * JOBS);
  expect(await countOf("SELECT count(*)::int AS count FROM bulk_members")).toBe(0);
  expect(await countOf("SELECT month_runs::int AS count FROM flows")).toBe(2 * JOBS);
  // A run's id tells when it was made, within the page that judged it.
  const most = await countOf(`
    SELECT max(n)::int AS count FROM (
      SELECT count(*) OVER (ORDER BY at RANGE BETWEEN CURRENT ROW AND '0.999999 s' FOLLOWING) AS n
        FROM (SELECT to_timestamp(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint / 1000.0) AS at
                FROM runs WHERE attempt = 2) r) w`);
  expect(most).toBeLessThanOrEqual(PER_SECOND + Math.ceil(PER_SECOND / 10));
});
