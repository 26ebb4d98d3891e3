import { randomBytes } from "node:crypto";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { shardOf } from "../../../shared/domain/shard.ts";
import { startEmbeddedPostgres } from "../../../shared/platform/embedded-postgres/embedded-postgres.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { migrate } from "../../../shared/store/cell/migrate.ts";
import { openDatabase } from "../../../shared/store/database/database.ts";
import { makeAuthority } from "../../runtime-contract/certificates.ts";
import { findNatsServer } from "../../support/nats-binary.ts";
import { claimPort } from "../../support/port.ts";
import { PAYLOAD, SHARDS_PER_REGION, storeJobs } from "../harness/jobs.ts";
import type { Load, LoadReport } from "../harness/load.ts";
import { isOk, parentOf, ROOT, runProgram, spawnBound, until } from "../harness/processes.ts";
import { type Received, SINK, type SinkSettings } from "../harness/sink.ts";
import type { Watched } from "./readings.ts";

/** Jobs that are due one after the other from `firstAt` on. */
export interface Stored {
  count: number;
  firstAt: number;
  perS: number;
  targetUrl: string;
  payload: string;
}

/**
 * A whole cell as real processes: a gateway, a worker, a delivery node, a nats-server, and a Postgres of its own with
 * the settings of deploy/postgres/cluster.yaml, so that its log and its use belong to this cell alone.
 */
export interface Cell {
  watched: Watched;
  /** The production key has no webhook endpoint; the development key has one. */
  keys: { production: string; development: string };
  /** The key of another project. */
  neighbourKey: string;
  gatewayUrl: string;
  /** The URLs of the targets; `other` is the first one under another host name. */
  sink: { http: string; https: string; other: string };
  load(load: Omit<Load, "port">): Promise<LoadReport>;
  beginReceiving(): Promise<void>;
  received(): Promise<Received>;
  /** Resolves once this many were received and nothing is on the wire. */
  untilReceived(count: number): Promise<Received>;
  /** Commits jobs as a gateway does, without announcing them. */
  store(stored: Stored): Promise<void>;
  /** Stores schedules that fire once, one after the other from `firstAt` on. */
  storeSchedules(count: number, firstAt: number, perS: number, targetUrl: string): Promise<void>;
  stop(): Promise<void>;
}

/** The project's limit: more than one node takes on, so that the node meets its own bound first. */
const CONCURRENCY = 10_000;
/** The manifest's settings that a running server accepts and this build knows. */
const SETTINGS = [
  "max_wal_size",
  "checkpoint_timeout",
  "random_page_cost",
  "autovacuum_naptime",
  "autovacuum_vacuum_cost_limit",
];

export async function startCostCell(): Promise<Cell> {
  const stops: (() => unknown)[] = [];
  const stop = async () => {
    for (const each of stops.splice(0).reverse()) await each();
  };
  try {
    return { ...(await compose(stops)), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function compose(stops: (() => unknown)[]): Promise<Omit<Cell, "stop">> {
  const folder = mkdtempSync(join(tmpdir(), "cost-"));
  stops.push(() => rmSync(folder, { recursive: true, force: true }));
  const postgres = await startEmbeddedPostgres({ dataDir: folder });
  stops.push(postgres.stop);
  const log = createLog({ name: "cost", level: "warn" });
  await migrate(postgres.url);
  const db = openDatabase(postgres.url, { connections: 4, log });
  stops.push(db.close);
  await db.run("walinspect", "CREATE EXTENSION pg_walinspect", []);
  for (const [name, value] of settingsOfManifest())
    await db.run(`set_${name}`, `ALTER SYSTEM SET ${name} = '${value}'`, []);
  const [own] = await db.run<{ pid: number }>(
    "reload",
    "SELECT pg_backend_pid() AS pid FROM pg_reload_conf()",
    [],
  );

  const spawn = (command: string[], environment: Record<string, string>) =>
    spawnBound(command, environment, stops);
  const [natsPort, monitorPort, gatewayPort] = [await claimPort(), await claimPort(), await claimPort()];
  const [httpPort, httpsPort] = [await claimPort(), await claimPort()];
  const nats = spawn(
    [
      await findNatsServer(),
      ...["--jetstream", "--store_dir", join(folder, "nats"), "--log", join(folder, "nats.log")],
      ...["--addr", "127.0.0.1", "--port", String(natsPort), "--http_port", String(monitorPort)],
    ],
    {},
  );
  const natsMonitor = `http://127.0.0.1:${monitorPort}`;
  await until("nats-server is ready", () => isOk(`${natsMonitor}/healthz`));

  const authority = makeAuthority();
  stops.push(authority.remove);
  const { cert, key } = authority.issue("IP:127.0.0.1");
  writeFileSync(join(folder, "sink.pem"), cert);
  writeFileSync(join(folder, "sink.key"), key);
  const tls = { port: httpsPort, cert: join(folder, "sink.pem"), key: join(folder, "sink.key") };
  spawn([process.execPath, SINK, JSON.stringify({ port: httpPort, tls } satisfies SinkSettings)], {});
  const environment: Record<string, string> = {
    HOST: "127.0.0.1",
    PORT: String(gatewayPort),
    DATABASE_URL: postgres.url,
    NATS_URL: `nats://127.0.0.1:${natsPort}`,
    SECRETS_KEY: randomBytes(32).toString("hex"),
    SHARDS_PER_REGION: String(SHARDS_PER_REGION),
    ALLOW_INSECURE_TARGETS: "true",
    NODE_EXTRA_CA_CERTS: authority.certPath,
  };
  const { project, keys } = await administer(environment, [
    "project",
    "create",
    "--name",
    "Cost",
    "--plan",
    "enterprise",
  ]);
  await administer(environment, [
    ...["project", "set", project.id, "--requests-per-minute", "1000000"],
    ...["--concurrency", String(CONCURRENCY)],
  ]);
  const [row] = await db.run<{ no: number }>("project_no", "SELECT no FROM projects", []);
  const neighbour = await administer(environment, [
    ...["project", "create", "--name", "Neighbour", "--plan", "enterprise"],
  ]);
  const projectNo = row?.no ?? 0;
  const pids = { gateway: 0, worker: 0, delivery: 0, nats };
  for (const service of ["worker", "delivery", "gateway"] as const) {
    const opsPort = await claimPort();
    pids[service] = spawn([process.execPath, `services/${service}/main.ts`], {
      ...environment,
      OPS_PORT: String(opsPort),
    });
    await until(`${service} is ready`, () => isOk(`http://127.0.0.1:${opsPort}/readyz`));
  }
  const sink = {
    http: `http://127.0.0.1:${httpPort}`,
    https: `https://127.0.0.1:${httpsPort}`,
    other: `http://127.0.0.2:${httpPort}`,
  };
  await until("the sink is ready", () => isOk(sink.http));
  await ask(gatewayPort, keys.development, "/v2/webhooks", {
    url: `${sink.http}/hook`,
    events: ["job.succeeded"],
  });

  const received = async () => (await (await fetch(sink.http)).json()) as Received;
  return {
    watched: { db, pids, postmaster: parentOf(own?.pid ?? 0), natsMonitor },
    keys,
    neighbourKey: neighbour.keys.production,
    gatewayUrl: `http://127.0.0.1:${gatewayPort}`,
    sink,
    load: async (load) =>
      (await runProgram<LoadReport>("load.ts", { ...load, port: gatewayPort } satisfies Load)).report,
    async beginReceiving() {
      await fetch(`${sink.http}/begin?bytes&lateness`);
    },
    received,
    async untilReceived(count) {
      await until(`${count} were received`, async () => (await received()).count >= count);
      await until("everything was settled", async () => {
        const [flow] = await db.run<{ count: number }>("on_the_wire", ON_THE_WIRE, []);
        return flow?.count === 0;
      });
      return received();
    },
    store: ({ count, firstAt, perS, targetUrl, payload }) =>
      storeJobs(db, count, (index) => ({
        projectNo,
        targetUrl,
        payload,
        runAt: Math.round(firstAt + (index * 1_000) / perS),
      })),
    async storeSchedules(count, firstAt, perS, targetUrl) {
      await db.run("schedules", SCHEDULES, [
        new Date(firstAt),
        perS,
        projectNo,
        shardOf(projectNo, SHARDS_PER_REGION),
        targetUrl,
        PAYLOAD,
        count,
      ]);
    },
  };
}

const ON_THE_WIRE = `
SELECT sum(development_jobs + production_jobs + development_webhooks + production_webhooks)::int AS count FROM flows`;

/** Stores schedules that fire at the stored instant, and then only on New Year's Day. */
const SCHEDULES = `
INSERT INTO schedules (next_run_at, project_no, base_seconds, cap_seconds, environment, shard, max_attempts, id, name,
                       cron, timezone, target_url, payload)
SELECT $1::timestamptz + n * interval '1 second' / $2::float8, $3, 10, 3600, 1, $4, 5, gen_random_uuid(),
       gen_random_uuid()::text, '0 0 1 1 *', 'UTC', $5, $6
  FROM generate_series(0, $7::int - 1) AS n`;

/** The manifest's Postgres parameters among SETTINGS. */
export function settingsOfManifest(): [string, string][] {
  const text = readFileSync(join(ROOT, "deploy", "postgres", "cluster.yaml"), "utf8");
  const cluster = Bun.YAML.parse(text) as { spec: { postgresql: { parameters: Record<string, string> } } };
  const { parameters } = cluster.spec.postgresql;
  return SETTINGS.flatMap((name) => (parameters[name] === undefined ? [] : [[name, parameters[name]]]));
}

interface CreatedProject {
  project: { id: string };
  keys: Cell["keys"];
}

/** Runs the operator's command line. */
async function administer(environment: Record<string, string>, words: string[]): Promise<CreatedProject> {
  const child = Bun.spawn([process.execPath, "services/admin/main.ts", ...words, "--json"], {
    cwd: ROOT,
    env: { ...process.env, ...environment },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const text = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error(`admin ${words.join(" ")} failed`);
  return JSON.parse(text) as CreatedProject;
}

async function ask(port: number, key: string, path: string, body: object): Promise<void> {
  const response = await fetch(`http://127.0.0.1:${port}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  if (response.status !== 201) throw new Error(await response.text());
}
