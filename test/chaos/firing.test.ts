import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { idToUuid } from "../../shared/domain/ids.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";

setDefaultTimeout(600_000);

/** Every schedule fires twice a minute; this many fire in each second of the half minute. */
const SCHEDULES_PER_SECOND = 4;
const SECONDS = 30;
/** The `overlap` of a schedule: what a firing does while jobs of the schedule are not over. Undefined leaves it out. */
const OVERLAPS = [undefined, "skip", "replace"] as const;
const LEASE_TTL_MS = 2_000;
const KILLS = 6;

let database: TestDatabase;
let nats: NatsServer;
let db: Database;
let gateway: ServiceProcess;
const workers: ServiceProcess[] = [];
let key = "";

beforeAll(async () => {
  database = await createMigratedDatabase("firing");
  nats = await startNatsServer();
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
  };
  gateway = await startService("gateway", environment);
  for (let index = 0; index < 2; index++) workers.push(await startService("worker", environment));
});
afterAll(async () => {
  for (const service of [gateway, ...workers]) await service.end("SIGKILL");
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
  expect({ path, status: response.status, text: response.ok ? "" : text }).toEqual({
    path,
    status: method === "POST" ? 201 : 200,
    text: "",
  });
  return JSON.parse(text) as T;
}

interface Firing {
  at: string;
  status: string;
  job_id: string | null;
  replaced?: number;
}

test("shard owners that are killed amid hundreds of firings: every instant of every schedule fires exactly once", async () => {
  const schedules: string[] = [];
  const overlapOf = new Map<string, (typeof OVERLAPS)[number]>();
  for (let index = 0; index < SCHEDULES_PER_SECOND * SECONDS; index++) {
    const second = index % SECONDS;
    const overlap = OVERLAPS[index % OVERLAPS.length];
    const { id } = await ask<{ id: string }>("POST", "/v2/schedules", {
      name: `every half minute ${index}`,
      cron: `${second},${second + 30} * * * * *`,
      target_url: "https://example.com/hook",
      ...(overlap === undefined ? {} : { overlap }),
    });
    schedules.push(id);
    overlapOf.set(id, overlap);
  }
  const startedAt = Date.now();
  const countFirings = async () => {
    const [row] = await db.run<{ count: string }>("count_firings", "SELECT count(*) FROM firings", []);
    return Number(row?.count);
  };
  const seen = async (countMin: number) => {
    while ((await countFirings()) < countMin) await Bun.sleep(10);
  };
  for (let kill = 0; kill < KILLS; kill++) {
    // The kill falls amid firings. The living worker has to take over, and fire every next instant once.
    await seen((await countFirings()) + 25 + kill * 3);
    await workers[kill % 2]?.end("SIGKILL");
    await seen((await countFirings()) + 8);
    await workers[kill % 2]?.startAgain();
  }
  await seen(SCHEDULES_PER_SECOND * SECONDS * 2);
  // Each schedule has a firing for every half minute since its creation.
  const halves = Math.floor((Date.now() - startedAt) / 30_000);
  await seen(schedules.length * halves);
  // The workers stop, so that the rows that are read from here on do not grow meanwhile.
  for (const worker of workers) expect(await worker.end("SIGTERM")).toBe(0);

  // No job ever starts here, so that each firing meets the job of the one before.
  let firedCount = 0;
  let jobCount = 0;
  for (const id of schedules) {
    const { data } = await ask<{ data: Firing[] }>("GET", `/v2/schedules/${id}/firings?limit=200`);
    const [first, ...later] = data.toReversed();
    const overlap = overlapOf.get(id);
    expect({ overlap, status: first?.status }).toEqual({ overlap, status: "fired" });
    const expected = overlap === "skip" ? "skipped_overlap" : "fired";
    expect(later.filter(({ status }) => status !== expected)).toEqual([]);
    if (overlap === "replace") {
      expect([first, ...later].map((firing) => firing?.replaced)).toEqual([0, ...later.map(() => 1)]);
    }
    const [open] = await db.run<{ count: number }>(
      "open",
      "SELECT count(*)::int FROM open_jobs WHERE schedule_id = $1",
      [idToUuid(id)],
    );
    expect({ overlap, open: open?.count }).toEqual({
      overlap,
      open: overlap === undefined ? data.length : 1,
    });
    firedCount += data.length;
    jobCount += overlap === "skip" ? 1 : data.length;
  }
  const [doubled] = await db.run<{ count: string }>(
    "doubled",
    "SELECT count(*) FROM (SELECT FROM jobs GROUP BY schedule_id, run_at HAVING count(*) > 1) d",
    [],
  );
  expect(Number(doubled?.count)).toBe(0);
  const [jobs] = await db.run<{ count: string }>("jobs", "SELECT count(*) FROM jobs", []);
  expect(Number(jobs?.count)).toBe(jobCount);
  expect(firedCount).toBeGreaterThanOrEqual(schedules.length * halves);
});
