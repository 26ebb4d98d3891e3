import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { rmSync } from "node:fs";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import {
  countArrivals,
  createLoad,
  expectNothingDoubled,
  expectNothingRefused,
  expectRunsMatch,
  untilTerminal,
} from "../support/load.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { recordPauses } from "../support/recorded-pauses.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget } from "../support/target.ts";

setDefaultTimeout(1_200_000);

const LEASE_TTL_MS = 3_000;
const POST_EVERY_MS = 20;
/** The time between a fault and the next one. */
const FAULT_MS = 1_500;
/** On an idle machine arrivals go on within some seconds. */
const GOES_ON_MS = 60_000;
/** On an idle machine all jobs have ended after some seconds. A lost job never ends. */
const DRAINED_MS = 120_000;

const target = startTarget(async ({ body, attempt }) => {
  await Bun.sleep(20);
  return new Response("x", { status: JSON.parse(body).fails && attempt === 1 ? 500 : 200 });
});
let database: TestDatabase;
let nats: NatsServer;
let key = "";
const services: Record<"gateway" | "worker" | "delivery", ServiceProcess> = {} as never;
const base = () => `http://127.0.0.1:${services.gateway.port}`;
const job = () => ({
  target_url: target.url,
  payload: { fails: Math.random() < 0.2 },
  retry_policy: { base_seconds: 1, cap_seconds: 1 },
});

beforeAll(async () => {
  database = await createMigratedDatabase("three");
  nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  const db = openPatientDatabase(database.url, 2);
  const made = await createProjectWithKeys(db, createSeal(secretsKey), {
    name: "chaos",
    plan: "scale",
    defaultRegion: "us-east",
  });
  key = made.keys.production;
  await db.run("limits", "UPDATE projects SET requests_per_minute = 1000000", []);
  await db.close();
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    LEASE_TTL_MS: String(LEASE_TTL_MS),
    DRAIN_TIMEOUT_MS: "5000",
    SHARDS_PER_REGION: "16",
  };
  for (const name of ["gateway", "worker", "delivery"] as const)
    services[name] = await startService(name, environment);
});
afterAll(async () => {
  for (const service of Object.values(services)) await service.end("SIGKILL");
  await nats.stop();
  await target.stop();
  await database.drop();
});

describe("three processes over NATS", () => {
  test("killed and restarted in turn under load: every accepted job ends, and no attempt arrives twice", async () => {
    const load = createLoad(base, key);
    await using running = load.begin(job, POST_EVERY_MS, countArrivals(target));
    for (const name of ["delivery", "worker", "gateway", "delivery", "worker"] as const) {
      await target.until(reached(target.arrivals.length + 50), GOES_ON_MS);
      await services[name].end("SIGKILL");
      await Bun.sleep(FAULT_MS);
      await services[name].startAgain();
    }
    await target.until(reached(target.arrivals.length + 50), GOES_ON_MS);
    await running.stop();
    await expectAllEnded(load);
  });

  test("stopped with SIGTERM in turn under load: each exits with 0, and no attempt is interrupted", async () => {
    const load = createLoad(base, key);
    await using running = load.begin(job, POST_EVERY_MS, countArrivals(target));
    for (const name of ["delivery", "worker", "gateway"] as const) {
      await target.until(reached(target.arrivals.length + 50), GOES_ON_MS);
      expect(await services[name].end("SIGTERM")).toBe(0);
      await services[name].startAgain();
    }
    await running.stop();
    await expectAllEnded(load);
  });

  test("without NATS, whose store is wiped under load: POST answers 201, and due jobs are sent", async () => {
    const load = createLoad(base, key);
    const pauses = await recordPauses(database.url, () => [services.gateway]);
    await using running = load.begin(job, POST_EVERY_MS, countArrivals(target));
    await target.until(reached(target.arrivals.length + 100), GOES_ON_MS);
    await nats.kill("SIGKILL");
    rmSync(nats.storeDir, { recursive: true, force: true });
    const acceptedBefore = load.accepted.size;
    const silentFrom = target.arrivals.length;
    // More jobs than were claimed or on their way when NATS ended, so some were found without it.
    await target.until(reached(silentFrom + 200), GOES_ON_MS);
    await until(() => load.accepted.size > acceptedBefore + 100);
    nats = await startNatsServer({ port: nats.port, storeDir: nats.storeDir });
    await target.until(reached(target.arrivals.length + 200), GOES_ON_MS);
    await running.stop();
    await pauses.stop();
    expectNothingRefused(load, pauses, [services.gateway]);
    await expectAllEnded(load);
  });
});

const reached = (count: number) => (arrivals: unknown[]) => arrivals.length >= count;

async function expectAllEnded(load: ReturnType<typeof createLoad>): Promise<void> {
  const jobs = await untilTerminal(base(), key, load, DRAINED_MS);
  expect(jobs.length).toBe(load.accepted.size);
  expect(jobs.filter((ended) => ended.status !== "succeeded")).toEqual([]);
  expectNothingDoubled(target);
  await expectRunsMatch(base(), key, jobs);
}
