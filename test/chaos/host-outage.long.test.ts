import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { type Client, createClient, type Host } from "../../shared/client/index.ts";
import {
  HOST_DOWN_ATTEMPTS_MIN,
  HOST_DOWN_SECONDS_MIN,
  PROBE_SECONDS,
} from "../../shared/domain/host-state.ts";
import type { RunStatus } from "../../shared/domain/run.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { endedStatusCode, runStatusOf } from "../../shared/store/database/codes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { claimPort } from "../support/port.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { type Arrival, startTarget, type Target } from "../support/target.ts";

/**
 * A host dies for ten minutes under a steady load, and comes back. Its attempts are parked meanwhile: only probes are spent, and
 * nothing is lost.
 */

const OUTAGE_MS = 600_000;
const PER_BATCH = 50;
const BATCH_EVERY_MS = 500;
/** The load goes on for so long before the host dies and after it is opened. */
const AROUND_MS = 10_000;
/** No job's attempts are all spent before the host is down. */
const PATIENT = { max_attempts: 10, base_seconds: 5 };
/** Attempts that were claimed just before the host was down may still start. */
const UNDER_WAY_MS = 1_000;
const DRAINED_MS = 600_000;

setDefaultTimeout(OUTAGE_MS + 2 * DRAINED_MS);

let database: TestDatabase;
let nats: NatsServer;
let db: Database;
const services: ServiceProcess[] = [];
let client: Client;
let projectNo = 0;

beforeAll(async () => {
  database = await createMigratedDatabase("host_outage");
  nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  db = openPatientDatabase(database.url, 2);
  const terms = { name: "outage", plan: "scale", defaultRegion: "us-east" } as const;
  const { project, keys } = await createProjectWithKeys(db, createSeal(secretsKey), terms);
  projectNo = project.no;
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    SHARDS_PER_REGION: "8",
  };
  for (const name of ["gateway", "worker", "delivery", "delivery"] as const)
    services.push(await startService(name, environment));
  client = createClient({ baseUrl: `http://127.0.0.1:${services[0]?.port}`, apiKey: keys.production });
});
afterAll(async () => {
  for (const service of services) await service.end("SIGKILL");
  await nats.stop();
  await db.close();
  await database.drop();
});

/** Creates jobs in batches until it is stopped. Answers the ids of all. */
function beginLoad(targetUrl: string): { stop(): Promise<string[]> } {
  const ids: string[] = [];
  const pending = new Set<Promise<void>>();
  const failed: unknown[] = [];
  const timer = setInterval(() => {
    const jobs = Array.from({ length: PER_BATCH }, () => ({ target_url: targetUrl, retry_policy: PATIENT }));
    const asking: Promise<void> = client.jobs
      .createBatch(jobs)
      .then(
        ({ data }) => void ids.push(...data.map(({ id }) => id)),
        (error: unknown) => void failed.push(error),
      )
      .finally(() => pending.delete(asking));
    pending.add(asking);
  }, BATCH_EVERY_MS);
  return {
    async stop() {
      clearInterval(timer);
      await Promise.all(pending);
      expect(failed).toEqual([]);
      return ids;
    },
  };
}

const hostNow = async (): Promise<Host | null> => (await client.hosts.list({ limit: 1 })).data[0] ?? null;
const hostIn = (state: Host["state"], timeoutMs: number): Promise<Host> =>
  until(async () => {
    const host = await hostNow();
    return host?.state === state && host;
  }, timeoutMs);

/** The times of probes, in seconds after the host was down. Each wait is twice the one before, up to the maximum. */
function probeSecondsUntil(seconds: number): number[] {
  const sent: number[] = [];
  let wait: number = PROBE_SECONDS.first;
  for (let at = wait; at <= seconds; at += wait) {
    sent.push(at);
    wait = Math.min(2 * wait, PROBE_SECONDS.max);
  }
  return sent;
}

interface Start {
  at: number;
  status: RunStatus;
}

/** The attempts that started between two instants, in their order. */
async function startsBetween(fromAt: number, untilAt: number): Promise<Start[]> {
  const rows = await db.run<{ at: number; status: number }>(
    "starts_between",
    `SELECT extract(epoch FROM started_at)::float8 * 1000 AS at, status
       FROM runs WHERE project_no = $1 AND started_at >= to_timestamp($2 / 1000.0) AND started_at < to_timestamp($3 / 1000.0)
      ORDER BY started_at`,
    [projectNo, fromAt, untilAt],
  );
  return rows.map(({ at, status }) => ({ at, status: runStatusOf(status) }));
}

test("a host that dies for ten minutes under 100 jobs a second spends probes only, and everything is delivered after it", async () => {
  await client.project.update({ park_failing_hosts: true });
  const port = await claimPort();
  let target: Target = startTarget(undefined, port);
  const arrivals: Arrival[] = [];
  const load = beginLoad(target.url);
  await Bun.sleep(AROUND_MS);
  expect(target.arrivals.length).toBeGreaterThan(0);
  arrivals.push(...target.arrivals);
  await target.stop();
  const diedAt = Date.now();

  const down = await hostIn("down", 2 * HOST_DOWN_SECONDS_MIN * 1_000);
  const downAt = Date.parse(down.since);
  expect(down.by).toBe("breaker");
  expect(downAt - diedAt).toBeGreaterThanOrEqual((HOST_DOWN_SECONDS_MIN - 1) * 1_000);
  expect((await startsBetween(diedAt, downAt)).length).toBeGreaterThanOrEqual(HOST_DOWN_ATTEMPTS_MIN);

  // Amid the outage a job says why it waits, and so do the figures of the project.
  await Bun.sleep(OUTAGE_MS / 2 - (Date.now() - diedAt));
  const [waiting] = (await client.jobs.createBatch([{ target_url: target.url }])).data;
  const explained = await until(async () => {
    const found = await client.jobs.explain(waiting?.id ?? "");
    return found.waiting?.for === "host" && found.waiting;
  });
  expect(explained).toMatchObject({ host: "127.0.0.1", until: (await hostNow())?.next_probe_at });
  expect(explained.message).toStartWith("127.0.0.1 is down, and what is sent there is parked until a probe");
  const { waiting: figures } = await client.project.insights({ period: "1h" });
  expect(figures.by_reason.host).toBeGreaterThan(PER_BATCH);
  expect((await hostNow())?.parked).toBeGreaterThan((OUTAGE_MS / 2 - 2 * HOST_DOWN_SECONDS_MIN * 1_000) / 20);

  await Bun.sleep(OUTAGE_MS - (Date.now() - diedAt));
  target = startTarget(undefined, port);
  const opening = await hostIn("opening", PROBE_SECONDS.max * 1_000 + AROUND_MS);
  const openedAt = Date.parse(opening.since);

  const probes = await startsBetween(downAt + UNDER_WAY_MS, openedAt);
  const waits = probeSecondsUntil((openedAt - downAt) / 1_000);
  console.log(
    `down for ${openedAt - downAt} ms, probes after`,
    probes.map(({ at }) => Math.round(at - downAt)),
  );
  expect(probes.length).toBe(waits.length);
  // The last probe found the host.
  expect(probes.map(({ status }) => status)).toEqual(
    probes.map((_, index) => (index === probes.length - 1 ? "succeeded" : "failed")),
  );
  for (const [index, { at }] of probes.entries())
    expect((at - downAt) / 1_000).toBeGreaterThanOrEqual((waits[index] ?? 0) - 0.1);

  await Bun.sleep(AROUND_MS);
  const ids = await load.stop();
  await until(async () => {
    const [row] = await db.run<{ open: number }>(
      "open_of_project",
      "SELECT count(*)::int AS open FROM open_jobs WHERE project_no = $1",
      [projectNo],
    );
    return row?.open === 0;
  }, DRAINED_MS);
  const drainedAt = Date.now();

  // The pace of the ramp: in its second t no more than 2^floor(t / 10) start.
  const perSecond = new Map<number, number>();
  for (const { at } of await startsBetween(openedAt, drainedAt)) {
    const second = Math.floor((at - openedAt) / 1_000);
    perSecond.set(second, (perSecond.get(second) ?? 0) + 1);
  }
  const ramp = [...perSecond].toSorted(([one], [other]) => one - other);
  console.log(
    `drained after ${drainedAt - openedAt} ms, starts a second`,
    ramp.filter(([second]) => second % 10 === 5),
  );
  expect(ramp.filter(([second, count]) => count > 2 ** Math.floor(second / 10))).toEqual([]);

  // Every job was delivered once and has succeeded: none had spent its attempts before the host was down.
  arrivals.push(...target.arrivals);
  expect(new Set(arrivals.map(({ runId }) => runId)).size).toBe(arrivals.length);
  const delivered = new Set(arrivals.map(({ jobId }) => jobId));
  expect(ids.filter((id) => !delivered.has(id))).toEqual([]);
  expect([delivered.size, arrivals.length]).toEqual([ids.length + 1, ids.length + 1]);
  const statuses = await db.run<{ status: number; count: number }>(
    "statuses",
    "SELECT status, count(*)::int FROM ended_jobs WHERE project_no = $1 GROUP BY 1",
    [projectNo],
  );
  expect(statuses).toEqual([{ status: endedStatusCode("succeeded"), count: ids.length + 1 }]);
  const { totals } = await client.project.insights({ period: "1h" });
  expect(totals.waited_for.host).toBeGreaterThan(ids.length / 2);
  console.log(`${ids.length} jobs, ${arrivals.length} arrivals`);
  await target.stop();
});
