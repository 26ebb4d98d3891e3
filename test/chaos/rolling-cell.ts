import { expect } from "bun:test";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Database } from "../../shared/store/database/database.ts";
import { until } from "../flow/support.ts";
import { openTestDatabase } from "../support/database.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, createTestDatabase } from "../support/postgres.ts";
import { type Pauses, recordPauses } from "../support/recorded-pauses.ts";
import { CHECKOUT, type ServiceProcess, startService } from "../support/service-process.ts";
import { startTarget, type Target } from "../support/target.ts";
import { Balancer, Traffic } from "./rolling-traffic.ts";

/** A cell of real processes under traffic, whose processes are replaced one after the other. */

const PROJECTS = 3;
const SHARDS_PER_REGION = 8;
/** A schedule fires at a second of its own in each half of a minute, so that two of these fire every second. */
const SCHEDULES = 60;
const SCHEDULE_SECONDS = 30;
/** Long enough for all that a target takes, as it is for customers' targets in production. */
const DRAIN_TIMEOUT_MS = 60_000;
/** In a cluster a balancer hears that a gateway stops a moment after the gateway was told to stop. */
const HEARD_AFTER_MS = 500;
/** The attempts that a delivery node has on the wire when it is told to stop. */
const ON_WIRE_MIN = 2;
const ARRIVALS_AFTER_NATS = 50;
/** One in five events takes this long at its endpoint. */
const SLOW_EVENT_MS = 1_200;

export interface RollingCell {
  db: Database;
  target: Target;
  /** The status that the target answered, by the id of the run. */
  answered: Map<string, number>;
  traffic: Traffic;
  schedules: { id: string; firstAt: number }[];
  pauses: Pauses;
  services: Map<string, ServiceProcess>;
  /** Applies the migrations of a version, as `npm run migrate` does. */
  migrate(checkout: string): Promise<void>;
  /** Stops a process as a deployment does, and starts one of that version in its place, which is ready when this resolves. */
  replace(name: string, checkout: string): Promise<void>;
  /** Restarts NATS, which keeps its store. Resolves once attempts arrive again. */
  replaceNats(): Promise<void>;
  /** When NATS was replaced. */
  withoutNats: { fromAt: number; toAt: number } | null;
  /** Resolves once the worker has shards. */
  untilOwner(worker: string): Promise<void>;
  stop(): Promise<void>;
}

/** Starts two gateways, so many workers, and two delivery nodes of the version in that folder, and the traffic. */
export async function startRollingCell(checkout: string, workers: number): Promise<RollingCell> {
  const isToday = checkout === CHECKOUT;
  const database = await (isToday ? createMigratedDatabase : createTestDatabase)("rolling");
  const environment = { DATABASE_URL: database.url, SECRETS_KEY: randomBytes(32).toString("base64") };
  const migrate = async (from: string) =>
    void (await runProgram(from, environment, "services/admin/migrate.ts"));
  if (!isToday) await migrate(checkout);
  const keys: string[] = [];
  for (let count = 0; count < PROJECTS; count++) {
    const wish = ["project", "create", "--name", "rolling", "--plan", "scale", "--json"];
    const made = await runProgram(checkout, environment, "services/admin/main.ts", ...wish);
    keys.push(JSON.parse(made).keys.production);
  }

  const storeDir = mkdtempSync(join(tmpdir(), "rolling-nats-"));
  let nats = await startNatsServer({ storeDir });
  const settings = {
    ...environment,
    NATS_URL: nats.url,
    SHARDS_PER_REGION: String(SHARDS_PER_REGION),
    DRAIN_TIMEOUT_MS: String(DRAIN_TIMEOUT_MS),
  };
  const names = [
    ...["gateway-0", "gateway-1", "delivery-0", "delivery-1"],
    ...Array.from({ length: workers }, (_, index) => `worker-${index}`),
  ];
  const started = names.map(async (name): Promise<[string, ServiceProcess]> => {
    return [name, await startService(kindOf(name), { ...settings, NODE_NAME: name }, { checkout })];
  });
  const services = new Map(await Promise.all(started));
  const db = openTestDatabase(database.url);
  const { target, answered } = startSlowTarget();
  const balancer = new Balancer();
  for (const [name, service] of services) if (kindOf(name) === "gateway") balancer.add(service);
  const traffic = new Traffic(balancer, keys, target.url);
  const schedules = await addResources(traffic);
  const pauses = await recordPauses(database.url, () => [nats, ...services.values()]);
  traffic.begin();

  async function isBusy(name: string): Promise<boolean> {
    const [row] = await db.run<{ count: number }>("on_wire_of", ON_WIRE_OF, [name]);
    return (row?.count ?? 0) >= ON_WIRE_MIN;
  }
  async function untilOwner(name: string): Promise<void> {
    await until(async () => {
      const [row] = await db.run<{ count: number }>("shards_of", SHARDS_OF, [name]);
      return (row?.count ?? 0) > 0;
    });
  }

  /** Stops a gateway: it takes requests until the balancer has heard that it stops, and then ends those that it has. */
  async function retireGateway(gateway: ServiceProcess): Promise<number | null> {
    const upload = await traffic.beginUpload(gateway);
    await Bun.sleep(HEARD_AFTER_MS);
    balancer.remove(gateway);
    // Only the upload is left. One that has failed by then is among the failed requests.
    await until(() => balancer.openAt(gateway) <= 1);
    const ended = gateway.end("SIGTERM");
    // If the upload has failed, it has nothing to finish and may be gone.
    const isReady = () =>
      fetch(`http://127.0.0.1:${gateway.opsPort}/readyz`).then(
        ({ status }) => status !== 503,
        () => false,
      );
    await until(async () => !(await isReady()));
    await upload.finish();
    return ended;
  }

  const cell: RollingCell = {
    db,
    target,
    answered,
    traffic,
    schedules,
    pauses,
    services,
    migrate,
    async replace(name, otherCheckout) {
      const service = services.get(name);
      if (service === undefined) throw new Error(`there is no ${name}`);
      const kind = kindOf(name);
      if (kind === "delivery") await until(() => isBusy(name));
      if (kind === "worker") await untilOwner(name);
      const code = kind === "gateway" ? await retireGateway(service) : await service.end("SIGTERM");
      expect({ name, code }).toEqual({ name, code: 0 });
      await service.startAgain(otherCheckout);
      if (kind === "gateway") balancer.add(service);
    },
    async replaceNats() {
      const fromAt = Date.now();
      await nats.stop();
      nats = await startNatsServer({ port: nats.port, storeDir });
      const arrived = target.arrivals.length;
      await until(() => target.arrivals.length > arrived + ARRIVALS_AFTER_NATS);
      cell.withoutNats = { fromAt, toAt: Date.now() };
    },
    withoutNats: null,
    untilOwner,
    async stop() {
      await traffic.stop();
      await pauses.stop();
      for (const service of services.values()) await service.end("SIGKILL");
      await nats.stop();
      rmSync(storeDir, { recursive: true, force: true });
      await target.stop();
      await db.close();
      await database.drop();
    },
  };
  return cell;
}

/** A target that takes some seconds where a job asks for it, and fails at first where a job asks for that. */
function startSlowTarget(): Pick<RollingCell, "target" | "answered"> {
  const answered = new Map<string, number>();
  let events = 0;
  const target = startTarget(async ({ jobId, runId, attempt, body }) => {
    if (jobId === "") {
      await Bun.sleep(events++ % 5 === 0 ? SLOW_EVENT_MS : 0);
      return new Response("ok");
    }
    const { wait_ms = 0, fails = false } = JSON.parse(body) as { wait_ms?: number; fails?: boolean };
    await Bun.sleep(wait_ms);
    const status = fails && attempt === 1 ? 500 : 200;
    answered.set(runId, status);
    return new Response("ok", { status });
  });
  return { target, answered };
}

/** Gives each project an endpoint, and the schedules to the projects in turn. */
async function addResources(traffic: Traffic): Promise<RollingCell["schedules"]> {
  for (let index = 0; index < PROJECTS; index++)
    await traffic.ask(index, "POST", "/v2/webhooks", {
      url: `${traffic.targetUrl}/events`,
      events: ["job.succeeded", "job.failed"],
    });
  const schedules: RollingCell["schedules"] = [];
  for (let index = 0; index < SCHEDULES; index++) {
    const second = index % SCHEDULE_SECONDS;
    const cron = `${second},${second + SCHEDULE_SECONDS} * * * * *`;
    const wish = { name: `second-${index}`, cron, target_url: traffic.targetUrl };
    const made = await traffic.ask<{ id: string; next_run_at: string }>(index, "POST", "/v2/schedules", wish);
    schedules.push({ id: made.id, firstAt: Date.parse(made.next_run_at) });
  }
  return schedules;
}

const kindOf = (name: string) => name.split("-")[0] as "gateway" | "worker" | "delivery";

/** Runs an operator's program of a version. Answers what it wrote. Throws if it fails. */
async function runProgram(
  checkout: string,
  environment: Record<string, string>,
  ...words: string[]
): Promise<string> {
  const child = Bun.spawn([process.execPath, ...words], {
    cwd: checkout,
    env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "", ...environment },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  if (code !== 0) throw new Error(`${words.join(" ")} in ${checkout}: ${stderr}`);
  return stdout;
}

const ON_WIRE_OF = `
SELECT (SELECT count(*) FROM open_jobs o JOIN nodes n ON n.id = o.node_id WHERE n.name = $1)::int
     + (SELECT count(*) FROM open_deliveries o JOIN nodes n ON n.id = o.node_id WHERE n.name = $1)::int AS count`;
const SHARDS_OF = `
SELECT count(*)::int AS count FROM shards s JOIN nodes n ON n.id = s.owner WHERE n.name = $1 AND s.lease_until > now()`;
