import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { readFileSync } from "node:fs";
import { SQL } from "bun";
import { type CreatedProject, createProjectWithKeys } from "../../services/admin/create-project.ts";
import { ENVIRONMENTS, type Environment } from "../../shared/domain/scope.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { setProjectHeld, setRegionsHeld } from "../../shared/store/cell/holds.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { RETENTION_LOCK } from "../../shared/store/retention/retention.ts";
import { RULES_FILE, readRules } from "../deploy/monitoring.ts";
import { type Firing, type Prometheus, startPrometheus } from "../deploy/prometheus.ts";
import { until } from "../flow/support.ts";
import { testCause } from "../support/cause.ts";
import { openPatientDatabase } from "../support/database.ts";
import { countArrivals, createLoad } from "../support/load.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { watchPauses } from "../support/pauses.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget } from "../support/target.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp-proxy.ts";

/**
 * A cell of real processes, watched by a real Prometheus with the deployed rules. Every duration in the rules becomes
 * seconds; every threshold stays. First no alert may fire, although a project waits for its limit all the while. Then
 * the tests make the condition of every alert true.
 */

setDefaultTimeout(1_200_000);

/** The arrivals of some eight seconds of jobs and their webhooks. */
const HEALTHY_ARRIVALS = 300;
const POST_EVERY_MS = 40;
const HEALTHY_MS_MAX = 120_000;
/**
 * At least so many jobs wait for their project's limit when a round begins. It lets seven start in a second, so they
 * last for 40 s. They stay far below 1,000, which would be a backlog of which an alert rightly tells.
 */
const HELD_BACK = 300;
/** A new process is slow for its first second, which weighs much in windows of seconds. */
const WARMUP_ARRIVALS = 100;
/** A machine that stands still for longer makes attempts late through no fault of the cell. */
const STILL_MS_MAX = 250;
/** The machine stood still for so long that delivery was late. */
const LATE_STILL_MS_MIN = 1_000;
/** On a busy machine many rounds may pass until one can be judged. None begins later than this. */
const HEALTHY_ROUNDS_MS = 840_000;
const STARVED_MS = 150;
/** The delay is more than the attempt timeout of a second. */
const LATE_MS = 1_300;
/** So many endpoints make more deliveries due than the project's limit of 500, and the rest is a backlog. */
const ENDPOINTS = 10;
/** On a busy machine what was asked before is still being sent long after, and its successes keep an alert from firing. */
const FIRES_MS_MAX = 240_000;
/** The audit of permits runs once a minute, and for the first time before there are permits. */
const AUDITED_MS_MAX = FIRES_MS_MAX + 75_000;
const LOOK_EVERY_MS = 200;
const SHARDS_PER_REGION = 4;

const held = Promise.withResolvers<void>();
const together = Promise.withResolvers<void>();
const target = startTarget(async ({ path }) => {
  if (path === "/slow") await Bun.sleep(300);
  if (path === "/held") await held.promise;
  if (path === "/together") await together.promise;
  if (path === "/failing") return new Response("no", { status: 500 });
  return new Response("ok");
});
const urlOf = (path: string) => target.url.replace("/hook", path);

let database: TestDatabase;
let db: Database;
let nats: NatsServer;
let proxy: TcpProxy;
let sql: SQL;
let prometheus: Prometheus;
let session: SQL;
let customer: CreatedProject;
let limited: CreatedProject;
let crowd: CreatedProject;
let idle: CreatedProject;
let gateway: ServiceProcess;
let homeWorker: ServiceProcess;
let farWorker: ServiceProcess;
let delivery: ServiceProcess;
/** The alerts that have fired so far, with their labels. */
const fired = new Map<string, Firing>();
let isWatching = true;
let watching: Promise<void>;

beforeAll(async () => {
  [database, nats] = await Promise.all([createMigratedDatabase("alerts"), startNatsServer()]);
  const secretsKey = randomBytes(32);
  db = openPatientDatabase(database.url, 2);
  sql = new SQL(database.url, { max: 2 });
  session = new SQL(database.url, { max: 1 });
  const seal = createSeal(secretsKey);
  const add = async (name: string) =>
    createProjectWithKeys(db, seal, { name, plan: "scale", defaultRegion: "us-east" });
  customer = await add("customer");
  limited = await add("limited");
  crowd = await add("crowd");
  idle = await add("idle");
  await sql`UPDATE flows SET concurrency = 2 WHERE project_no = ${limited.project.no}`;

  const { hostname, port } = new URL(database.url);
  proxy = await startTcpProxy({ host: hostname, port: Number(port) });
  const proxied = new URL(database.url);
  proxied.host = `127.0.0.1:${proxy.port}`;
  const environment = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    SHARDS_PER_REGION: String(SHARDS_PER_REGION),
  };
  homeWorker = await startService("worker", {
    ...environment,
    REGIONS: "us-east,us-west,ap-southeast",
    NODE_NAME: "home",
  });
  [farWorker, delivery, gateway] = await Promise.all([
    startService("worker", { ...environment, REGIONS: "eu-central", NODE_NAME: "far" }),
    startService("delivery", { ...environment, NODE_NAME: "delivery" }),
    startService("gateway", { ...environment, DATABASE_URL: proxied.href }),
  ]);
  const addressOf = ({ opsPort }: ServiceProcess) => `127.0.0.1:${opsPort}`;
  prometheus = await startPrometheus({
    rules: hasten(readFileSync(RULES_FILE, "utf8")),
    targets: {
      gateway: [addressOf(gateway)],
      worker: [addressOf(homeWorker), addressOf(farWorker)],
      delivery: [addressOf(delivery)],
    },
  });
  // The rules report each process as missing until Prometheus has scraped it once.
  await until(
    async () =>
      (await prometheus.ask("count(up == 1)")) === 4 &&
      (await prometheus.firing()).filter(isOfCell).length === 0,
  );
  watching = watch();
});

afterAll(async () => {
  isWatching = false;
  held.resolve();
  await watching;
  await prometheus.stop();
  for (const service of [gateway, homeWorker, farWorker, delivery]) await service.end("SIGKILL");
  await nats.stop();
  await proxy.stop();
  await target.stop();
  await Promise.all([sql.close(), session.close()]);
  await db.close();
  await database.drop();
});

test("no alert fires on a healthy cell, although a project waits for its limit all the while", async () => {
  await post(customer, "production", "webhooks", { url: urlOf("/hook"), events: ["job.succeeded"] });
  const load = createLoad(() => `http://127.0.0.1:${gateway.port}`, customer.keys.production);
  const pauses = await watchPauses(database.url, () => [gateway, homeWorker, farWorker, delivery]);
  const ofCell = () => [...fired.values()].filter(isOfCell);
  const work = async (arrivalCount: number) => {
    const enough = target.arrivals.length + arrivalCount;
    const arrived = countArrivals(target, ({ path, jobId }) => (path === "/hook" && jobId) || undefined);
    const running = load.begin(() => ({ target_url: urlOf("/hook") }), POST_EVERY_MS, arrived);
    await target.until((arrivals) => arrivals.length > enough, HEALTHY_MS_MAX).finally(() => running.stop());
  };
  const giveUpAt = performance.now() + HEALTHY_ROUNDS_MS;
  let isJudged = false;
  let leastStillMs = Number.POSITIVE_INFINITY;
  try {
    await work(WARMUP_ARRIVALS);
    while (!isJudged && performance.now() < giveUpAt) {
      await until(async () => (await prometheus.firing()).filter(isOfCell).length === 0, HEALTHY_MS_MAX);
      pauses.longestMs();
      fired.clear();
      while ((await countOpen(limited)) < HELD_BACK)
        await postBatch(limited, "production", urlOf("/slow"), 100);
      await work(HEALTHY_ARRIVALS);
      const stillMs = pauses.longestMs();
      leastStillMs = Math.min(leastStillMs, stillMs);
      isJudged = stillMs < STILL_MS_MAX || ofCell().length === 0;
    }
  } finally {
    await pauses.stop();
  }
  const granted = (start: string) => prometheus.ask(`sum(jobwheel_attempts_granted_total{start="${start}"})`);
  expect(await granted("held_back")).toBeGreaterThan(5);
  expect(await granted("on_time")).toBeGreaterThan(HEALTHY_ARRIVALS / 4);
  if (!isJudged && leastStillMs < LATE_STILL_MS_MIN)
    throw new Error("the machine stood still in every round; nothing can be said of the cell");
  if (!isJudged) console.log("the machine stood still in every round, and alerts fired:", ofCell());
  expect(ofCell().filter(({ alertname }) => isJudged || !STILL_ALERTS.has(alertname))).toEqual([]);
});

describe("alerts", () => {
  test("have conditions in the database, which the next look at the cell notices: they are made true", async () => {
    await sql`UPDATE secrets_keys SET first_used_at = now() - interval '367 days'`;
    await setRegionsHeld(db, ["us-west"], true, testCause());
    await setProjectHeld(db, idle.project.id, true, testCause());
    await sql`UPDATE flows SET production_webhooks = 3 WHERE project_no = ${idle.project.no}`;
    const yearly = { name: "yearly", cron: "0 0 1 1 *", target_url: urlOf("/hook") };
    expect(await post(idle, "production", "schedules", yearly)).toBe(201);
    await keepFromMakingRunTables();
    await dropRunTablesAhead();
    // The noted time moves back, as if the clock had leapt by two days since.
    await sql`UPDATE clock_watch SET seen_at = seen_at - interval '2 days'`;
    process.kill(farWorker.pid, "SIGSTOP");
    for (const environment of ENVIRONMENTS) {
      const hook = { url: urlOf("/held"), events: ["job.succeeded"] };
      for (let endpoint = 0; endpoint < ENDPOINTS; endpoint++)
        expect(await post(crowd, environment, "webhooks", hook)).toBe(201);
      await postBatch(crowd, environment, urlOf("/together"), 100);
      for (let batch = 0; batch < 7; batch++) await postBatch(limited, environment, urlOf("/slow"), 100);
    }
    // All of these jobs are on the wire before the first of their webhooks takes a permit.
    await target.until(
      (arrivals) => arrivals.filter(({ path }) => path === "/together").length === ENVIRONMENTS.length * 100,
    );
    together.resolve();
    const owed = async () =>
      (await sql`SELECT count(*)::int AS n FROM open_deliveries WHERE project_no = ${crowd.project.no}`)[0].n;
    await until(async () => (await owed()) === ENVIRONMENTS.length * 100 * ENDPOINTS);
  });

  test("have conditions in delivery: its node is frozen with attempts on the wire", async () => {
    await post(customer, "production", "jobs", { target_url: urlOf("/held") });
    await target.until((arrivals) => arrivals.some(({ path, jobId }) => path === "/held" && jobId !== ""));
    process.kill(delivery.pid, "SIGSTOP");
    // With so many jobs many attempts succeed beside those that are on the wire for too long.
    for (let batch = 0; batch < 6; batch++) await postBatch(customer, "production", urlOf("/hook"), 100);
  });

  test("fire when a process gets little time, and when Postgres refuses, is slow or is silent", async () => {
    const starvedSince = performance.now();
    while (!fires("JobwheelEventLoopBlocked") && performance.now() < starvedSince + FIRES_MS_MAX) {
      process.kill(gateway.pid, "SIGSTOP");
      await Bun.sleep(STARVED_MS);
      process.kill(gateway.pid, "SIGCONT");
      await Bun.sleep(STARVED_MS / 2);
    }
    expect(fires("JobwheelEventLoopBlocked")).toBe(true);

    await sql`ALTER TABLE jobs RENAME TO jobs_away`;
    expect(await post(customer, "production", "jobs", { target_url: urlOf("/hook") })).toBe(500);
    await sql`ALTER TABLE jobs_away RENAME TO jobs`;
    await untilFires("JobwheelStatementsRefused");

    // Each project waits for its own limit only.
    const projects = [customer, limited, crowd, idle];
    const ask = async (alerts: string[]) => {
      const giveUpAt = performance.now() + FIRES_MS_MAX;
      while (!alerts.every((name) => fires(name)) && performance.now() < giveUpAt)
        await Promise.all(
          projects.flatMap((project) => Array.from({ length: 15 }, () => get(project, "jobs"))),
        );
      expect(alerts.filter((name) => !fires(name))).toEqual([]);
    };
    await sql.begin(async (tx) => {
      await tx`SET LOCAL idle_in_transaction_session_timeout = 0`;
      await tx`LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE`;
      await ask(["JobwheelPoolWaits"]);
    });
    proxy.freeze();
    await ask(["JobwheelPostgresUnavailable", "JobwheelApiFails"]);
    proxy.thaw();
  });

  test("fire for the conditions that were made true before", async () => {
    await sql.begin(async (tx) => {
      await tx`SET LOCAL idle_in_transaction_session_timeout = 0`;
      await tx`LOCK TABLE firings IN ACCESS EXCLUSIVE MODE`;
      await sql`UPDATE schedules SET next_run_at = now() - interval '2 min'`;
      await untilFires("JobwheelFiringsStand");
    });
    await untilFires("JobwheelSecretsKeyOld");
    await untilFires("JobwheelRegionHeld");
    await untilFires("JobwheelHoldForgotten", { kind: "project" });
    await untilFires("JobwheelRunTablesRunOut");
    await untilFires("JobwheelClockLeapt", {}, AUDITED_MS_MAX);
    await untilFires("JobwheelShardsWithoutOwner", { region: "eu-central" });
    await untilFires("JobwheelNodeSilent", { kind: "worker" });
    await untilFires("JobwheelNodeSilent", { kind: "delivery" });
    await untilFires("JobwheelProcessDown", { service: "worker" });
    await untilFires("JobwheelServiceDown", { service: "delivery" });
    await untilFires("JobwheelBacklogGrows", { kind: "jobs" });
    await untilFires("JobwheelBacklogGrows", { kind: "webhooks" });
    await untilFires("JobwheelDueWorkWaits", { region: "us-east" });
    // A busy machine may have made attempts late earlier; none can have been late since delivery is frozen.
    for (const [key, { alertname }] of fired) if (alertname.startsWith("JobwheelLate")) fired.delete(key);
  });

  test("fire when delivery goes on late, when no attempt succeeds, and when it dies with attempts on the wire", async () => {
    process.kill(delivery.pid, "SIGCONT");
    // Attempts that a node finds by itself do not count, and a node looks for them after 2 s without a worker.
    const giveUpAt = performance.now() + FIRES_MS_MAX;
    while (!fires("JobwheelLate", { region: "us-east" }) && performance.now() < giveUpAt) {
      process.kill(delivery.pid, "SIGSTOP");
      await postBatch(customer, "production", urlOf("/hook"), 50);
      await Bun.sleep(LATE_MS);
      process.kill(delivery.pid, "SIGCONT");
      await Bun.sleep(LATE_MS);
    }
    await untilFires("JobwheelLate", { region: "us-east" });
    await untilFires("JobwheelLateSlowly", { region: "us-east" });
    await untilOver("JobwheelEverythingFails");
    for (const { project } of [limited, crowd]) await setProjectHeld(db, project.id, true, testCause());
    await until(async () => {
      await postBatch(customer, "production", urlOf("/failing"), 20);
      await Bun.sleep(LOOK_EVERY_MS);
      return fires("JobwheelEverythingFails", { service: "delivery" });
    }, FIRES_MS_MAX);
    await delivery.end("SIGKILL");
    await delivery.startAgain();
    await untilFires("JobwheelRescuesGoOn");
  });

  test("fire without NATS, and without a gateway", async () => {
    await nats.kill("SIGKILL");
    await untilFires("JobwheelBusFails");
    await gateway.end("SIGKILL");
    await untilFires("JobwheelServiceDown", { service: "gateway" });
  });

  test("fire for permits that differ from what is on the wire, at the audit", async () => {
    await untilFires("JobwheelPermitsMiscounted", {}, AUDITED_MS_MAX);
  });

  test("fire without any worker, also for the one that reported on the cell", async () => {
    await untilOver("JobwheelCellUntold");
    await homeWorker.end("SIGKILL");
    await untilFires("JobwheelCellUntold");
    await untilFires("JobwheelServiceDown", { service: "worker" });
  });

  test("have fired for every rule", () => {
    const silent = readRules().filter(({ alert, labels }) => alert !== undefined && !fires(alert, labels));
    expect(silent.map(({ alert, labels }) => [alert, labels])).toEqual([]);
  });
});

/** Where the machine stands still for a second in every round, these fire although the cell is right. */
const STILL_ALERTS = new Set([
  "JobwheelLate",
  "JobwheelLateSlowly",
  "JobwheelDueWorkWaits",
  "JobwheelPoolWaits",
  "JobwheelPostgresUnavailable",
  "JobwheelApiFails",
  "JobwheelNodeSilent",
  "JobwheelProcessDown",
  "JobwheelServiceDown",
  "JobwheelShardsWithoutOwner",
]);

/** Leaves out the alert that depends on the machine instead of the cell. */
const isOfCell = ({ alertname }: Firing) => alertname !== "JobwheelEventLoopBlocked";

/** Turns every window and every wait into seconds. */
function hasten(rules: string): string {
  return rules
    .replace(/\[\d+[mhd](:\d+m)?\]/g, (_, step) => (step === undefined ? "[6s]" : "[6s:1s]"))
    .replace(/^( *for:) .*$/gm, "$1 2s");
}

async function watch(): Promise<void> {
  while (isWatching) {
    for (const alert of await prometheus.firing()) fired.set(JSON.stringify(alert), alert);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

/** True if the alert has fired so far with these labels. */
function fires(alertname: string, labels: Record<string, string> = {}): boolean {
  const wanted = Object.entries({ alertname, ...labels });
  return [...fired.values()].some((alert) => wanted.every(([label, value]) => alert[label] === value));
}

/**
 * Waits until an alert does not fire, and forgets that it has fired. A busy machine may have made it fire: a window is six seconds
 * here, and a condition that has to last for a minute has to last for two seconds.
 */
async function untilOver(alertname: string): Promise<void> {
  const isMeant = (alert: Firing) => alert.alertname === alertname;
  await until(async () => !(await prometheus.firing()).some(isMeant), FIRES_MS_MAX);
  for (const [key, alert] of fired) if (isMeant(alert)) fired.delete(key);
}

function untilFires(alertname: string, labels?: Record<string, string>, timeoutMs = FIRES_MS_MAX) {
  return until(() => fires(alertname, labels), timeoutMs).catch(() => {
    throw new Error(`${alertname} did not fire in ${timeoutMs} ms`);
  });
}

const call = (
  project: CreatedProject,
  environment: Environment,
  path: string,
  body?: unknown,
  idempotencyKey = crypto.randomUUID(),
) =>
  fetch(`http://127.0.0.1:${gateway.port}/v2/${path}`, {
    method: body === undefined ? "GET" : "POST",
    headers: {
      authorization: `Bearer ${project.keys[environment]}`,
      "content-type": "application/json",
      ...(body !== undefined && { "idempotency-key": idempotencyKey }),
    },
    body: body === undefined ? null : JSON.stringify(body),
  });
const get = (project: CreatedProject, path: string) => call(project, "production", path);
/** Repeats the request after a 503, as the API asks clients to: a busy machine looks like an outage of Postgres. */
async function post(project: CreatedProject, environment: Environment, path: string, body: unknown) {
  const key = crypto.randomUUID();
  for (;;) {
    const { status } = await call(project, environment, path, body, key);
    if (status !== 503) return status;
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

async function postBatch(project: CreatedProject, environment: Environment, url: string, count: number) {
  const jobs = Array.from({ length: count }, () => ({ target_url: url }));
  expect(await post(project, environment, "jobs/batch", { jobs })).toBe(201);
}

async function countOpen({ project }: CreatedProject): Promise<number> {
  const [row] = await sql`SELECT count(*)::int AS n FROM open_jobs WHERE project_no = ${project.no}`;
  return row.n;
}

/** Keeps new run tables from being made, by the lock that a hanging migration would hold. */
async function keepFromMakingRunTables(): Promise<void> {
  await session.unsafe(`SELECT pg_advisory_lock(${RETENTION_LOCK})`);
}

async function dropRunTablesAhead(): Promise<void> {
  const tables = await sql`SELECT inhrelid::regclass::text AS name FROM pg_inherits
    WHERE inhparent = 'runs_hobby'::regclass AND inhrelid <> 'runs_hobby_default'::regclass ORDER BY 1 DESC LIMIT 3`;
  for (const { name } of tables) await sql.unsafe(`DROP TABLE ${name}`);
}
