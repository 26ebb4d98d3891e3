import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect, type NatsConnection } from "@nats-io/transport-node";
import { Glob } from "bun";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { openTestDatabase } from "../support/database.ts";
import { claimPort } from "../support/port.ts";
import { createTestDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { startTarget } from "../support/target.ts";
import { type ConfinedProcess, startConfined } from "./confined-process.ts";
import { layOut, readImage } from "./image.ts";
import { environmentOf, findWorkloads, renderCell, type Workload } from "./manifests.ts";
import { type NatsCluster, startNatsCluster } from "./nats-cluster.ts";

setDefaultTimeout(200_000);

const READY_TIMEOUT_MS = 180_000;
/** A cluster may have to be replaced a few times (nats-cluster.ts). */
const CLUSTER_TIMEOUT_MS = 400_000;
/** A command tells of a job that is due within a minute, but not at once. */
const COMMANDED_MS = 10_000;
const LOOK_EVERY_MS = 20;
const SERVICES = ["gateway", "worker", "delivery"] as const;

const resources = renderCell("production");
const image = readImage();
const folder = mkdtempSync(join(tmpdir(), "image-"));
const secretsKey = randomBytes(32);
let held: Promise<void> | undefined;
const target = startTarget(async ({ path, attempt }) => {
  await held;
  return new Response("", { status: path.endsWith("/once-failing") && attempt === 1 ? 500 : 200 });
});
let database: TestDatabase;
let nats: NatsCluster;
let key = "";

interface Running extends ConfinedProcess {
  workload: Workload;
  /** The ports on which it listens, by their names in the manifest. */
  ports: Record<string, number>;
}
const running: Record<string, Running> = {};

beforeAll(async () => {
  layOut(image, folder);
  for (const path of new Glob("**/*").scanSync({ cwd: folder, onlyFiles: false, followSymlinks: false })) {
    if (path !== "node_modules") chmodSync(join(folder, path), 0o555);
  }
  chmodSync(folder, 0o555);
  database = await createTestDatabase("deploy");
  nats = await startNatsCluster();
}, CLUSTER_TIMEOUT_MS);
afterAll(async () => {
  for (const service of Object.values(running)) {
    service.kill();
    await service.ended;
  }
  await nats.stop();
  await target.stop();
  await database.drop();
  chmodSync(folder, 0o755);
  for (const path of new Glob("**/*").scanSync({ cwd: folder, onlyFiles: false, followSymlinks: false })) {
    if (path !== "node_modules") chmodSync(join(folder, path), 0o755);
  }
  rmSync(folder, { recursive: true, force: true });
});

describe("the manifests' services, with their arguments and environment on a read-only file system,", () => {
  test("cannot write to the file system", async () => {
    const script = `await Bun.write("trace", "x").then(() => process.exit(0), () => process.exit(3))`;
    expect(await startConfined(["-e", script], folder, {}).ended).toBe(3);
  });

  test("start after a migration that prepares an empty database, and does nothing the second time", async () => {
    for (const _ of ["first", "second"]) {
      const migration = await start("migrate");
      expect([await migration.ended, migration.output]).toEqual([0, "the schema is up to date\n"]);
    }
    const db = openTestDatabase(database.url, 1);
    const project = { name: "Deploy", plan: "scale", defaultRegion: "us-east" } as const;
    key = (await createProjectWithKeys(db, createSeal(secretsKey), project)).keys.production;
    await db.close();
  });

  test("start, and answer their probes", async () => {
    for (const name of SERVICES) {
      const service = await start(name);
      running[name] = service;
      const { startupProbe, livenessProbe, readinessProbe } = service.workload.container;
      for (const probe of [startupProbe, livenessProbe, readinessProbe])
        await untilAnswered(service, probe?.httpGet);
    }
  });

  test("deliver a job, and deliver a failed one again", async () => {
    const good = await createJob();
    const failing = await createJob({
      target_url: `${target.url}/once-failing`,
      retry_policy: { base_seconds: 1, cap_seconds: 1 },
    });
    await target.until((arrivals) => arrivals.some(({ jobId }) => jobId === good));
    await target.until((arrivals) =>
      arrivals.some(({ jobId, attempt }) => jobId === failing && attempt === 2),
    );
  });

  test("put commands into a stream of three copies, which workers follow", async () => {
    // The servers of a new cluster first learn how much room the others have, and make copies only afterwards.
    const untilCopies = async (holds: (copies: Copy[]) => boolean) => {
      let copies: Copy[] = [];
      await until(
        async () => {
          copies = await readCopies();
          return holds(copies);
        },
        () => JSON.stringify(copies),
      );
    };
    await untilCopies(
      (copies) => copies.length === 3 && copies.every(({ config }) => config.num_replicas === 3),
    );
    const countConsumers = (copies: Copy[]) =>
      copies.reduce((sum, { state }) => sum + state.consumer_count, 0);
    await untilCopies((copies) => countConsumers(copies) === REGIONS.length);
    // A command is sent once, and is lost while the copies elect a leader, so the test goes on to create jobs. Of one that is due
    // a delivery node hears without a command.
    await until(async () => {
      await createJob({ run_at: new Date(Date.now() + COMMANDED_MS).toISOString() });
      return (await readCopies()).every(({ state }) => state.last_seq > 0);
    });
  });

  test("lack no NATS permission", () => {
    expect(nats.log).not.toContain("Violation");
  });

  test.each([
    ["gateway", "publish", "answers.1"],
    ["gateway", "publish", "hint.us-east.0"],
    ["gateway", "publish", "beat.worker"],
    ["gateway", "publish", "$JS.API.STREAM.DELETE.cmd"],
    ["gateway", "publish", "$JS.API.STREAM.CREATE.other"],
    ["gateway", "publish", "$JS.API.CONSUMER.CREATE.cmd"],
    ["gateway", "subscribe", "cmd.>"],
    ["gateway", "subscribe", "due.>"],
    ["gateway", "subscribe", "_INBOX.>"],
    ["gateway", "subscribe", "_INBOX.*.*"],
    ["gateway", "subscribe", "_INBOX.worker.>"],
    ["gateway", "subscribe", "_INBOX.delivery.>"],
    ["gateway", "subscribe", "$JS.>"],
    ["gateway", "publish", "_INBOX.worker.1"],
    ["gateway", "publish", "$JS.API.DIRECT.GET.cmd"],
    ["worker", "publish", "answers.1"],
    ["worker", "publish", "beat.delivery"],
    ["worker", "publish", "$JS.API.STREAM.PURGE.cmd"],
    ["worker", "publish", "$JS.API.STREAM.MSG.GET.cmd"],
    ["worker", "subscribe", "due.>"],
    ["worker", "subscribe", "_INBOX.>"],
    ["worker", "subscribe", "_INBOX.gateway.>"],
    ["worker", "subscribe", "_INBOX.delivery.>"],
    ["worker", "subscribe", "cmd.>"],
    ["worker", "publish", "_INBOX.gateway.1"],
    ["delivery", "publish", "due.1"],
    ["delivery", "publish", "cmd.us-east.0.1"],
    ["delivery", "publish", "beat.worker"],
    ["delivery", "publish", "$JS.API.CONSUMER.CREATE.cmd"],
    ["delivery", "subscribe", "cmd.>"],
    ["delivery", "subscribe", ">"],
    ["delivery", "subscribe", "_INBOX.>"],
    ["delivery", "subscribe", "_INBOX.gateway.>"],
    ["delivery", "subscribe", "_INBOX.worker.>"],
    ["delivery", "subscribe", "answers.*"],
    ["delivery", "publish", "_INBOX.gateway.1"],
    ["delivery", "publish", "$JS.API.STREAM.MSG.GET.cmd"],
  ] as const)("are limited by NATS: %s may not %s %s", async (user, act, subject) => {
    const connection = await logIn(user);
    const subscription = act === "subscribe" ? connection.subscribe(subject, { callback() {} }) : undefined;
    if (act === "publish") connection.publish(subject);
    await connection.flush();
    await until(() => isRefused(user, act, subject));
    subscription?.unsubscribe();
    await connection.close();
  });

  test("may answer, as the worker, a flow control that only a flood brings", async () => {
    const connection = await logIn("worker");
    connection.publish("$JS.FC.cmd.consumer.1");
    connection.publish("marker");
    await until(() => isRefused("worker", "publish", "marker"));
    expect(isRefused("worker", "publish", "$JS.FC.cmd.consumer.1")).toBe(false);
    await connection.close();
  });

  test("log in to NATS, while strangers are refused", async () => {
    const { host } = new URL(nats.urlOf("gateway").split(",")[0] ?? "");
    await expect(connect({ servers: host, reconnect: false })).rejects.toThrow(/authoriz/i);
  });

  test("deliver jobs while one of three NATS servers is gone", async () => {
    await nats.kill(0);
    const id = await createJob();
    await target.until((arrivals) => arrivals.some(({ jobId }) => jobId === id));
  });

  test("end with 0 within their grace period after SIGTERM, and delivery only after its attempt has ended", async () => {
    const { promise, resolve: release } = Promise.withResolvers<void>();
    held = promise;
    const id = await createJob();
    await target.until((arrivals) => arrivals.some(({ jobId }) => jobId === id));

    const delivery = serviceOf("delivery");
    const stopped = delivery.stop();
    const ready = delivery.workload.container.readinessProbe?.httpGet;
    await until(async () => (await ask(delivery, ready)) !== 200);
    release();
    await stopped;
    for (const name of SERVICES) {
      const service = serviceOf(name);
      const graceMs = (service.workload.pod.terminationGracePeriodSeconds ?? 0) * 1_000;
      const begunAt = performance.now();
      await service.stop();
      expect(await service.ended).toBe(0);
      expect(performance.now() - begunAt).toBeLessThan(graceMs);
    }
    const settled = delivery.output
      .split("\n")
      .filter((line) => line.includes("attempt.settled") && line.includes(id));
    expect(settled).toEqual([expect.stringContaining("succeeded")]);
  });
});

/** A server's copy of the stream, and the consumers on it. */
interface Copy {
  config: { num_replicas: number };
  state: { consumer_count: number; last_seq: number };
}

/** Reads the copies from the monitoring pages, which need no login. */
async function readCopies(): Promise<Copy[]> {
  const pages = nats.monitors.map(async (monitor) => {
    const answer = await fetch(`${monitor}/jsz?streams=1&config=1`);
    const page = (await answer.json()) as { account_details?: { stream_detail?: Copy[] }[] };
    return page.account_details?.flatMap((account) => account.stream_detail ?? []) ?? [];
  });
  return (await Promise.all(pages)).flat();
}

/**
 * Starts a service of the manifests. Only this function replaces parts of the cluster: secrets, ports, and a target
 * that is not public.
 */
async function start(name: string): Promise<Running> {
  const workload = findWorkloads(resources).find((candidate) => candidate.name === name);
  if (workload === undefined) throw new Error(`production has no ${name}`);
  const environment = environmentOf(workload, resources, { podName: `${name}-0`, secretOf });
  const ports: Record<string, number> = {};
  for (const { name: portName = "", containerPort } of workload.container.ports ?? []) {
    const variable = Object.keys(environment).find(
      (candidate) => environment[candidate] === String(containerPort),
    );
    if (variable === undefined) throw new Error(`${name} is not told to listen on ${containerPort}`);
    ports[portName] = await claimPort();
    environment[variable] = String(ports[portName]);
  }
  const args = [...(workload.container.command ?? []), ...(workload.container.args ?? [])];
  const forTest = { ALLOW_INSECURE_TARGETS: "true" };
  const confined = startConfined(args, folder, { ...image.environment, ...environment, ...forTest });
  return Object.defineProperties({ workload, ports } as Running, Object.getOwnPropertyDescriptors(confined));
}

function secretOf(secret: string, secretKey: string): string {
  const secrets: Record<string, string> = {
    "jobwheel-database url": database.url,
    "jobwheel-database direct-url": database.url,
    "jobwheel-nats gateway-url": nats.urlOf("gateway"),
    "jobwheel-nats worker-url": nats.urlOf("worker"),
    "jobwheel-nats delivery-url": nats.urlOf("delivery"),
    "jobwheel-secrets-key key": secretsKey.toString("base64"),
    "jobwheel-secrets-key fallbacks": randomBytes(32).toString("hex"),
  };
  const value = secrets[`${secret} ${secretKey}`];
  if (value === undefined) throw new Error(`nobody fills in ${secretKey} of ${secret}`);
  return value;
}

async function logIn(user: string): Promise<NatsConnection> {
  const { host, password } = new URL(nats.urlOf(user).split(",")[0] ?? "");
  return connect({ servers: host, user, pass: password, reconnect: false });
}

/** True if a server's log tells of the refusal, in words that stay the same. */
function isRefused(user: string, act: "publish" | "subscribe", subject: string): boolean {
  const violation = act === "publish" ? "Publish" : "Subscription";
  const line = `${violation} Violation - User "${user}".*Subject "${RegExp.escape(subject)}"`;
  return new RegExp(line).test(nats.log);
}

function serviceOf(name: string): Running {
  const service = running[name];
  if (service === undefined) throw new Error(`${name} has not started`);
  return service;
}

interface HttpGet {
  path?: string;
  port: string | number;
}

async function ask(service: Running, { path, port }: HttpGet = { port: "" }): Promise<number> {
  return fetch(`http://127.0.0.1:${service.ports[port]}${path}`).then(
    ({ status }) => status,
    () => 0,
  );
}

async function untilAnswered(service: Running, httpGet: HttpGet | undefined): Promise<void> {
  await until(
    async () => (await ask(service, httpGet)) === 200,
    () => service.output,
  );
}

async function until(holds: () => boolean | Promise<boolean>, explain = () => ""): Promise<void> {
  const giveUpAt = performance.now() + READY_TIMEOUT_MS;
  while (!(await holds())) {
    if (performance.now() > giveUpAt) throw new Error(`it did not come true in time. ${explain()}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

async function createJob(fields: object = {}): Promise<string> {
  const response = await fetchServed(`http://127.0.0.1:${serviceOf("gateway").ports.http}/v2/jobs`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify({ target_url: target.url, payload: {}, ...fields }),
  });
  const text = await response.text();
  expect([response.status, text]).toEqual([201, expect.any(String)]);
  return JSON.parse(text).id;
}
