import { randomBytes } from "node:crypto";
import { chmodSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { JOB_PREFIX, SCHEDULE_PREFIX, uuidToId } from "../../shared/domain/ids.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { type ArchivingPostgres, startArchivingPostgres } from "../support/archiving-postgres.ts";
import { openPatientDatabase } from "../support/database.ts";
import { countArrivals, createLoad, type Load } from "../support/load.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { type Arrival, startTarget, type Target } from "../support/target.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp-proxy.ts";

export const LEASE_TTL_MS = 2_000;
const POST_EVERY_MS = 20;
const POSTED_MS_MAX = 60_000;
/** Each schedule fires twice a minute, so that one fires every five seconds. */
const SCHEDULE_SECONDS = [0, 5, 10, 15, 20, 25];
/** This many jobs stay in flight until the cell goes down. */
const HELD = 5;
/** The wait is longer than the backup takes, so that the retry still waits when the backup ends. */
const PATIENT_SECONDS = 8;
const LATER_MS = [5_000, 6_500, 8_000, 9_500];

/** A cell of real processes to be backed up, with work in every state. */
export interface RestorableCell {
  folder: string;
  postgres: ArchivingPostgres;
  /** The address at which the services find Postgres. A test that puts another server behind it changes this. */
  place: { host: string; port: number };
  proxy: TcpProxy;
  /** The URL at which the services find Postgres, whichever server is behind it. */
  url: string;
  db: Database;
  services: Record<"gateway" | "worker" | "delivery", ServiceProcess>;
  load: Load;
  target: Target;
  endpoint: Target & { secret: string };
  /** The target answers its held requests now, and later ones at once. */
  release(): void;
  stopLoad(): Promise<void>;
  /** Sends SIGKILL to every process except Postgres, and NATS loses its store. */
  killServices(): Promise<void>;
  /** Starts all these processes anew, with an empty NATS. */
  startServices(names: { worker: string; delivery: string }): Promise<void>;
  /** Asks the API. Throws unless it accepts the request. */
  ask<T>(method: string, path: string, body?: object): Promise<T>;
  stop(): Promise<void>;
}

export async function startRestorableCell(): Promise<RestorableCell> {
  const folder = mkdtempSync(join(tmpdir(), "restore-"));
  chmodSync(folder, 0o755);
  const postgres = await startArchivingPostgres(join(folder, "origin"));
  const place = { host: "127.0.0.1", port: postgres.port };
  const proxy = await startTcpProxy(place);
  const url = new URL(postgres.url);
  url.port = String(proxy.port);
  await migrate(url.href);
  const db = openPatientDatabase(url.href, 2);
  const secretsKey = randomBytes(32);
  const terms = { name: "restored", plan: "scale", defaultRegion: "us-east" } as const;
  const key = (await createProjectWithKeys(db, createSeal(secretsKey), terms)).keys.production;
  await db.run("limits", "UPDATE projects SET requests_per_minute = 1000000", []);

  const isReleased = Promise.withResolvers<void>();
  const target = startTarget((arrival) => answerOf(arrival, isReleased.promise));
  const refused = new Set<string>();
  const endpoint = startTarget(({ headers }) => {
    const event = headers["webhook-id"] ?? "";
    if (refused.has(event) || Math.random() < 0.5) return new Response("");
    refused.add(event);
    return new Response("", { status: 503 });
  });
  let nats: NatsServer;
  const services = {} as RestorableCell["services"];
  const base = () => `http://127.0.0.1:${services.gateway.port}`;
  const load = createLoad(base, key, { send: fetchServed, timeoutMs: POSTED_MS_MAX });
  let running = { stop: async () => {} };

  const cell: RestorableCell = {
    folder,
    postgres,
    place,
    proxy,
    url: url.href,
    db,
    services,
    load,
    target,
    endpoint: Object.assign(endpoint, { secret: "" }),
    release() {
      isReleased.resolve();
    },
    stopLoad: () => running.stop(),
    async killServices() {
      for (const service of Object.values(services)) await service.end("SIGKILL");
      await nats.kill("SIGKILL");
      await nats.stop();
    },
    async startServices({ worker, delivery }) {
      nats = await startNatsServer();
      const environment = {
        DATABASE_URL: url.href,
        NATS_URL: nats.url,
        SECRETS_KEY: secretsKey.toString("base64"),
        LEASE_TTL_MS: String(LEASE_TTL_MS),
        WEBHOOK_RETRY_SCALE: "0.05",
        SHARDS_PER_REGION: "8",
      };
      [services.gateway, services.worker, services.delivery] = await Promise.all([
        startService("gateway", environment),
        startService("worker", { ...environment, NODE_NAME: worker }),
        startService("delivery", { ...environment, NODE_NAME: delivery }),
      ]);
    },
    async ask(method, path, body) {
      const response = await fetchServed(`${base()}${path}`, {
        method,
        headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
      if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
      return (await response.json()) as never;
    },
    async stop() {
      await running.stop();
      await cell.killServices();
      await db.close();
      await proxy.stop();
      await Promise.all([target.stop(), endpoint.stop()]);
      rmSync(folder, { recursive: true, force: true });
    },
  };

  await cell.startServices({ worker: "worker-0", delivery: "delivery-0" });
  const webhook = { url: endpoint.url, events: ["job.succeeded", "job.failed"] };
  cell.endpoint.secret = (await cell.ask<{ secret: string }>("POST", "/v2/webhooks", webhook)).secret;
  for (const second of SCHEDULE_SECONDS) {
    const cron = `${second},${second + 30} * * * * *`;
    const schedule = { name: `at ${second}`, cron, target_url: target.url, payload: { kind: "quick" } };
    await cell.ask("POST", "/v2/schedules", schedule);
  }
  let count = 0;
  const arrived = countArrivals(target);
  running = load.begin(() => jobOf(count++, target.url), POST_EVERY_MS, arrived);
  await target.until((arrivals) => arrivals.filter(({ body }) => kindOf(body) === "held").length === HELD);
  return cell;
}

type Kind = "quick" | "flaky" | "patient" | "held" | "later";

/** The job at this place in the order of posting. Jobs of every sort that a backup may find take turns. */
function jobOf(count: number, target_url: string): object {
  const kind: Kind =
    count < HELD
      ? "held"
      : count % 20 === 0
        ? "later"
        : count % 20 === 1
          ? "patient"
          : count % 2 === 0
            ? "flaky"
            : "quick";
  const laterMs = LATER_MS[count % LATER_MS.length] ?? 0;
  return {
    target_url,
    payload: { kind },
    retry_policy: { max_attempts: 5, base_seconds: 1, cap_seconds: kind === "patient" ? 60 : 1 },
    ...(kind === "later" && { run_at: new Date(Date.now() + laterMs).toISOString() }),
  };
}

const kindOf = (body: string) => (JSON.parse(body) as { kind: Kind }).kind;

async function answerOf({ body, attempt }: Arrival, released: Promise<void>): Promise<Response> {
  const kind = kindOf(body);
  if (kind === "held") await released;
  if (attempt > 1) return new Response("");
  if (kind === "flaky") return new Response("", { status: 500 });
  const headers = { "retry-after": String(PATIENT_SECONDS) };
  return kind === "patient" ? new Response("", { status: 503, headers }) : new Response("");
}

/** The name of a job's attempt, as the target knows it. */
export const nameOf = ({ jobId, attempt }: { jobId: string; attempt: number }) => `${jobId} ${attempt}`;

/** The jobs and attempts in a database. */
export interface Known {
  jobs: Set<string>;
  /** The started attempts, by nameOf. */
  started: Set<string>;
  /** The started attempts that have not ended. */
  inFlight: Set<string>;
}

export async function readKnown(db: Database): Promise<Known> {
  const rows = await db.run<{ job_id: string; attempt: number | null; is_open: boolean }>("known", KNOWN, []);
  const named = rows.map(({ job_id, attempt, is_open }) => {
    const jobId = uuidToId(JOB_PREFIX, job_id);
    return { jobId, name: attempt === null ? null : nameOf({ jobId, attempt }), isOpen: is_open };
  });
  const started = named.flatMap(({ name }) => name ?? []);
  return {
    jobs: new Set(named.map(({ jobId }) => jobId)),
    started: new Set(started),
    inFlight: new Set(named.flatMap(({ name, isOpen }) => (isOpen ? (name ?? []) : []))),
  };
}

const KNOWN = `
SELECT id AS job_id, NULL::int AS attempt, false AS is_open FROM jobs
 UNION ALL
SELECT job_id, attempt, false FROM runs
 UNION ALL
SELECT job_id, attempt, true FROM open_jobs WHERE node_id IS NOT NULL`;

/** The ids of the schedules whose next firing is overdue. */
export async function readOverdueSchedules(db: Database): Promise<string[]> {
  const rows = await db.run<{ id: string }>("overdue", OVERDUE, []);
  return rows.map(({ id }) => uuidToId(SCHEDULE_PREFIX, id));
}

const OVERDUE = "SELECT id::text FROM schedules WHERE next_run_at <= now()";
