import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import {
  createIdSource,
  EVENT_PREFIX,
  idToUuid,
  REQUEST_PREFIX,
  uuidToId,
  WEBHOOK_PREFIX,
} from "../../shared/domain/ids.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import { type EventType, JOB_END_TYPES } from "../../shared/domain/webhook.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { createWebhook } from "../../shared/store/resources/webhooks.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import { countArrivals, createLoad, untilTerminal } from "../support/load.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget, type Target } from "../support/target.ts";
import { listUnmatchedEvents } from "../support/unmatched-events.ts";

setDefaultTimeout(600_000);

const LEASE_TTL_MS = 3_000;
const POST_EVERY_MS = 25;
/** How many more jobs are attempted between two kills, and while a process is dead. */
const JOBS_BETWEEN = 60;
const DRAINED_MS = 180_000;
/** Waits of 5 s become 250 ms, so that a refused delivery comes again while the killing goes on. */
const RETRY_SCALE = "0.05";
/** Every fourth job fails for good, and every fifth delivery is refused at first. */
const FAILING_EVERY = 4;
const REFUSED_EVERY = 5;

let database: TestDatabase;
let db: Database;
let nats: NatsServer;
let key = "";
const services: Record<"gateway" | "worker" | "delivery", ServiceProcess> = {} as never;
const base = () => `http://127.0.0.1:${services.gateway.port}`;

const jobs = startTarget(async ({ body }) => {
  await Bun.sleep(20);
  return new Response("", { status: JSON.parse(body).fails ? 500 : 200 });
});
/**
 * Refuses the first delivery of some events, and answers slowly, so that some deliveries are on the wire when a node is
 * killed.
 */
function startEndpoint(): Target {
  const refused = new Set<string>();
  let count = 0;
  return startTarget(async ({ headers }) => {
    await Bun.sleep(20);
    const event = headers["webhook-id"] ?? "";
    if (refused.has(event) || ++count % REFUSED_EVERY !== 0) return new Response("");
    refused.add(event);
    return new Response("", { status: 503 });
  });
}
const endpoints: Record<"all" | "failures", { target: Target; id: string; types: EventType[] }> = {
  all: { target: startEndpoint(), id: "", types: [...JOB_END_TYPES] },
  failures: { target: startEndpoint(), id: "", types: ["job.failed"] },
};

beforeAll(async () => {
  database = await createMigratedDatabase("events");
  nats = await startNatsServer();
  const secretsKey = randomBytes(32);
  const seal = createSeal(secretsKey);
  db = openPatientDatabase(database.url, 2);
  const made = await createProjectWithKeys(db, seal, {
    name: "chaos",
    plan: "scale",
    defaultRegion: "us-east",
  });
  key = made.keys.production;
  await db.run("limits", "UPDATE projects SET requests_per_minute = 1000000", []);
  const [project] = await db.run<{ no: number }>("project", "SELECT no FROM projects", []);
  const ids = createIdSource(randomBytes);
  for (const endpoint of Object.values(endpoints)) {
    endpoint.id = ids.next(WEBHOOK_PREFIX, Date.now());
    await createWebhook(
      db,
      {
        id: endpoint.id,
        projectNo: project?.no ?? 0,
        environment: "production",
        url: endpoint.target.url,
        events: endpoint.types,
        status: "enabled",
        description: null,
        sealedSecret: seal.seal(makeSecret(randomBytes)),
      },
      { requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 0 },
      null,
    );
  }
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    LEASE_TTL_MS: String(LEASE_TTL_MS),
    WEBHOOK_RETRY_SCALE: RETRY_SCALE,
    DRAIN_TIMEOUT_MS: "5000",
    SHARDS_PER_REGION: "16",
  };
  for (const name of ["gateway", "worker", "delivery"] as const)
    services[name] = await startService(name, environment);
});
afterAll(async () => {
  for (const service of Object.values(services)) await service.end("SIGKILL");
  await db.close();
  await nats.stop();
  for (const { target } of [{ target: jobs }, ...Object.values(endpoints)]) await target.stop();
  await database.drop();
});

const count = async (name: string, text: string) =>
  (await db.run<{ count: number }>(`test_${name}`, `SELECT count(*)::int AS count ${text}`, []))[0]?.count ??
  -1;

describe("events, when every process is killed in turn under load", () => {
  test("all arrive: every job ends, and no delivery stays owed", async () => {
    const load = createLoad(base, key);
    let jobCount = 0;
    const job = () => ({
      target_url: jobs.url,
      payload: { fails: ++jobCount % FAILING_EVERY === 0 },
      retry_policy: { max_attempts: 2, base_seconds: 1, cap_seconds: 1 },
    });
    const heard = countArrivals(endpoints.all.target, ({ headers }) => headers["webhook-id"]);
    await using running = load.begin(job, POST_EVERY_MS, heard);
    const more = (target: Target, countMore: number) => {
      const enough = target.arrivals.length + countMore;
      return target.until((arrivals) => arrivals.length >= enough, DRAINED_MS);
    };
    for (const name of [
      "delivery",
      "worker",
      "gateway",
      "delivery",
      "worker",
      "gateway",
      "delivery",
    ] as const) {
      await more(endpoints.all.target, JOBS_BETWEEN);
      await services[name].end("SIGKILL");
      await services[name].startAgain();
    }
    await nats.kill("SIGKILL");
    await more(endpoints.all.target, JOBS_BETWEEN);
    nats = await startNatsServer({ port: nats.port, storeDir: nats.storeDir });
    await more(endpoints.all.target, JOBS_BETWEEN);
    await running.stop();
    await retrySomeByHand();
    const ended = await untilTerminal(base(), key, load, DRAINED_MS);
    expect(ended.filter(({ status }) => status === "canceled")).toEqual([]);
    await until(async () => (await count("open", "FROM open_jobs")) === 0, DRAINED_MS);
    await until(async () => (await count("open_deliveries", "FROM open_deliveries")) === 0, DRAINED_MS);
    expect(load.accepted.size).toBeGreaterThan(300);
  });

  test("match the terminal transitions one to one, both ways", async () => {
    expect(await listUnmatchedEvents(db)).toEqual([]);
    const last = await db.run(
      "test_last",
      `SELECT j.job_id FROM ended_jobs j
        WHERE NOT EXISTS (SELECT FROM events e WHERE e.job_id = j.job_id AND e.attempt = j.attempts AND e.type = j.status)`,
      [],
    );
    expect(last).toEqual([]);
    // The jobs that were retried by hand have ended twice.
    expect(
      await count("twice", "FROM (SELECT job_id FROM events GROUP BY job_id HAVING count(*) = 2) t"),
    ).toBeGreaterThan(5);
    expect(await count("events", "FROM events WHERE type = 1")).toBeGreaterThan(50);
  });

  test("are owed once to each endpoint that subscribed to them, and to no other", async () => {
    const wrong = await db.run(
      "test_wrong",
      `SELECT e.id AS event_id, w.id AS webhook_id, d.id AS delivery_id
         FROM (events e CROSS JOIN webhooks w) FULL JOIN ended_deliveries d ON d.event_id = e.id AND d.webhook_id = w.id
        WHERE (d.id IS NOT NULL) IS DISTINCT FROM (w.events & (1 << e.type) <> 0) OR d.status <> 0`,
      [],
    );
    expect(wrong).toEqual([]);
    const doubled = await db.run(
      "test_doubled",
      "SELECT event_id FROM ended_deliveries GROUP BY event_id, webhook_id HAVING count(*) > 1",
      [],
    );
    expect(doubled).toEqual([]);
  });

  test("arrive at least once, and at most once for each recorded attempt", async () => {
    for (const { target, id } of Object.values(endpoints)) {
      const rows = await db.run<{ event_id: string; attempts: number; recorded: number }>(
        "test_recorded",
        `SELECT d.event_id, d.attempts, count(a.*)::int AS recorded
           FROM ended_deliveries d LEFT JOIN delivery_attempts a ON a.delivery_id = d.id
          WHERE d.webhook_id = $1 GROUP BY d.event_id, d.attempts`,
        [idToUuid(id)],
      );
      const arrived = Map.groupBy(target.arrivals, ({ headers }) => headers["webhook-id"] ?? "");
      const recorded = new Map(rows.map((row) => [uuidToId(EVENT_PREFIX, row.event_id), row]));
      expect([...arrived.keys()].sort()).toEqual([...recorded.keys()].sort());
      for (const [event, row] of recorded) {
        const arrivals = arrived.get(event) ?? [];
        expect({
          event,
          isLogged: row.recorded === row.attempts,
          isTooOften: arrivals.length > row.recorded,
        }).toEqual({
          event,
          isLogged: true,
          isTooOften: false,
        });
        expect(new Set(arrivals.map(({ body }) => body)).size).toBe(1);
      }
    }
    // Some deliveries were refused, and some were on the wire when their node was killed; otherwise this test would prove
    // nothing.
    expect(await count("refused", "FROM delivery_attempts WHERE response_status = 503")).toBeGreaterThan(20);
    expect(
      await count("lost", "FROM delivery_attempts WHERE error LIKE 'The node that sent this attempt died%'"),
    ).toBeGreaterThan(0);
  });

  test("leave no permit in use", async () => {
    const [flow] = await db.run(
      "test_flow",
      "SELECT development_jobs, production_jobs, development_webhooks, production_webhooks FROM flows",
      [],
    );
    expect(flow).toEqual({
      development_jobs: 0,
      production_jobs: 0,
      development_webhooks: 0,
      production_webhooks: 0,
    });
  });

  /** Retries some failed jobs by hand, so that they end again and make another event. */
  async function retrySomeByHand(): Promise<void> {
    const headers = { authorization: `Bearer ${key}` };
    let retriedCount = 0;
    await until(async () => {
      const response = await fetchServed(`${base()}/v2/jobs?status=failed&limit=50`, { headers });
      const { data } = (await response.json()) as { data: { id: string; attempts: number }[] };
      for (const { id } of data.filter(({ attempts }) => attempts === 2)) {
        const runs = await fetchServed(`${base()}/v2/runs?job_id=${id}`, { headers });
        const [last] = ((await runs.json()) as { data: { id: string }[] }).data;
        const retried = await fetchServed(`${base()}/v2/runs/${last?.id}/retry`, { method: "POST", headers });
        if (retried.status === 201) retriedCount++;
      }
      return retriedCount >= 10;
    }, DRAINED_MS);
  }
});
