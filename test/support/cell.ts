import { randomBytes } from "node:crypto";
import { NODE_LIMITS, type NodeLimits } from "../../services/delivery/concurrency.ts";
import { startDelivery } from "../../services/delivery/start.ts";
import { startWorker } from "../../services/worker/start.ts";
import type { Bus } from "../../shared/bus/bus.ts";
import { sendCommands } from "../../shared/bus/hints.ts";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import type { Flow } from "../../shared/domain/flow-key.ts";
import {
  createIdSource,
  JOB_PREFIX,
  PROJECT_PREFIX,
  REQUEST_PREFIX,
  WEBHOOK_PREFIX,
} from "../../shared/domain/ids.ts";
import type { Plan } from "../../shared/domain/plan.ts";
import { type Environment, REGIONS, type Region } from "../../shared/domain/scope.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import { NEWEST_API_VERSION } from "../../shared/domain/version.ts";
import { type EventType, JOB_END_TYPES } from "../../shared/domain/webhook.ts";
import { type Clock, startClock } from "../../shared/platform/clock.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { describeThisProcess } from "../../shared/platform/process-identity.ts";
import { createSeal, type Seal } from "../../shared/platform/seal/seal.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import { joinCell } from "../../shared/store/cell/membership.ts";
import { askTime, type Database } from "../../shared/store/database/database.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import { findJob, type JobRow } from "../../shared/store/resources/jobs.ts";
import { createProject, type ProjectRow } from "../../shared/store/resources/projects.ts";
import { listRuns } from "../../shared/store/resources/run-list.ts";
import type { RunRow } from "../../shared/store/resources/runs.ts";
import { createWebhook } from "../../shared/store/resources/webhooks.ts";
import { testCause } from "./cause.ts";
import { openPatientDatabase, openTestDatabase } from "./database.ts";
import { createMigratedDatabase } from "./postgres.ts";

/** A database, a bus, and the workers and delivery nodes that a test starts in this process. Every project has its own rows. */
export interface Cell {
  /** The test's own connections to Postgres. */
  db: Database;
  /** The connections of all workers and delivery nodes that are given no others. */
  serviceDb: Database;
  bus: Bus;
  clock: Clock;
  seal: Seal;
  url: string;
  addProject(options?: {
    plan?: Plan;
    concurrency?: number;
  }): Promise<ProjectRow & { secrets: Record<Environment, string> }>;
  /** Commits jobs as the gateway does; `tell` also sends their commands. */
  addJobs(project: ProjectRow, jobs: JobWish[], options?: { tell?: boolean }): Promise<string[]>;
  /** Adds an endpoint, for both event types unless told otherwise. */
  addEndpoint(project: ProjectRow, wish: EndpointWish): Promise<{ id: string; secret: string }>;
  startWorker(options?: {
    name?: string;
    regions?: readonly Region[];
    leaseMs?: number;
    clock?: Clock;
    attemptTimeoutMs?: number;
    webhookTimeoutMs?: number;
    webhookRetryScale?: number;
    /** The worker's own connections to Postgres. */
    db?: Database;
  }): Promise<{ stop(): Promise<void> }>;
  startDelivery(options?: {
    db?: Database;
    name?: string;
    regions?: readonly Region[];
    attemptTimeoutMs?: number;
    webhookTimeoutMs?: number;
    webhookRetryScale?: number;
    drainTimeoutMs?: number;
    limits?: NodeLimits;
  }): Promise<{ stop(): Promise<void> }>;
  job(project: ProjectRow, id: string, environment?: Environment): Promise<JobRow>;
  /** The job's runs, the first attempt first. */
  runs(project: ProjectRow, id: string, environment?: Environment): Promise<RunRow[]>;
  stop(): Promise<void>;
}

export interface JobWish {
  targetUrl: string;
  payload?: string;
  runAt?: number;
  region?: Region;
  environment?: Environment;
  maxAttempts?: number;
  baseSeconds?: number;
  capSeconds?: number;
  tags?: string[];
  flow?: Flow;
}

export interface EndpointWish {
  url: string;
  events?: EventType[];
  environment?: Environment;
}

export const SHARDS_PER_REGION = 8;
/** A worker keeps a lease of this length even when this process stands still for a moment. */
const LEASE_MS = 10_000;
const OWN_CONNECTIONS = 8;
const SERVICE_CONNECTIONS = 16;
/** A cell's pools open so many connections, as they are needed. */
export const CELL_CONNECTIONS = OWN_CONNECTIONS + SERVICE_CONNECTIONS;
/** An attempt that a test holds does not time out, even when this process stands still. */
const ATTEMPT_TIMEOUT_MS = 30_000;
const WEBHOOK_TIMEOUT_MS = 5_000;

/** `startClock` replaces the database's clock: it is called before anything else connects to the database. */
export async function startCell(
  options: { bus?: Bus; startClock?: (url: string) => Promise<Clock> } = {},
): Promise<Cell> {
  const database = await createMigratedDatabase("cell");
  const log = createLog({ name: "test", level: "error" });
  const db = openPatientDatabase(database.url, OWN_CONNECTIONS);
  const serviceDb = openTestDatabase(database.url, SERVICE_CONNECTIONS);
  const clock = await (options.startClock?.(database.url) ?? startClock(() => askTime(db)));
  const bus = options.bus ?? createInProcessBus(log);
  const ids = createIdSource(randomBytes);
  const seal = createSeal(randomBytes(32));
  const lanes = new Set<string>();
  const stops: (() => Promise<void>)[] = [];
  const newCell = (own: { db: Database; clock?: Clock }) => {
    return { bus, clock, log, metrics: createMetrics(), traces: NO_TRACES, ...own };
  };
  const fail = () => {
    throw new Error("declared dead");
  };
  const join = (kind: "worker" | "delivery", name: string | undefined, regions: readonly Region[]) =>
    joinCell(
      db,
      {
        kind,
        name: name ?? `${kind}-${randomBytes(4).toString("hex")}`,
        regions,
        process: describeThisProcess(),
      },
      { leaseMs: LEASE_MS, isProvedDead: () => false },
    );
  const remember = (service: { stop(): Promise<void> }) => {
    let stopped: Promise<void> | undefined;
    const once = { stop: () => (stopped ??= service.stop()) };
    stops.push(once.stop);
    return once;
  };

  return {
    db,
    serviceDb,
    bus,
    clock,
    seal,
    url: database.url,
    async addProject({ plan = "scale", concurrency } = {}) {
      const secrets = { development: makeSecret(randomBytes), production: makeSecret(randomBytes) };
      const project = await createProject(
        db,
        {
          id: ids.next(PROJECT_PREFIX, clock.now()),
          name: "test",
          plan,
          defaultRegion: "us-east",
          apiVersion: NEWEST_API_VERSION,
          keys: [],
          secrets: (["development", "production"] as const).map((environment) => ({
            id: ids.next("sec_", clock.now()),
            environment,
            sealed: seal.seal(secrets[environment]),
          })),
        },
        testCause(),
      );
      if (concurrency !== undefined) {
        await db.run("set_limit", "UPDATE flows SET concurrency = $2 WHERE project_no = $1", [
          project.no,
          concurrency,
        ]);
      }
      return { ...project, secrets };
    },
    async addJobs(project, wishes, { tell = true } = {}) {
      const jobs = wishes.map((wish) => ({
        id: ids.next(JOB_PREFIX, Math.floor(clock.now())),
        projectNo: project.no,
        environment: wish.environment ?? ("production" as const),
        region: wish.region ?? ("us-east" as const),
        shard: shardOf(project.no, SHARDS_PER_REGION),
        targetUrl: wish.targetUrl,
        payload: wish.payload ?? "{}",
        runAt: wish.runAt ?? clock.now(),
        maxAttempts: wish.maxAttempts ?? 5,
        baseSeconds: wish.baseSeconds ?? 1,
        capSeconds: wish.capSeconds ?? 1,
        tags: wish.tags ?? null,
        flow: wish.flow ?? null,
        cause: null,
      }));
      const created = await createJobs(db, jobs, lanes);
      const owed = created.flatMap((answer) => (tell && answer.kind === "created" ? answer.owed : []));
      for (const one of owed) sendCommands(bus, [one], Number.POSITIVE_INFINITY);
      return jobs.map((job) => job.id);
    },
    async addEndpoint(project, { url, events = [...JOB_END_TYPES], environment = "production" }) {
      const secret = makeSecret(randomBytes);
      const id = ids.next(WEBHOOK_PREFIX, clock.now());
      const fields = { url, events, status: "enabled", description: null } as const;
      const place = { id, projectNo: project.no, environment, sealedSecret: seal.seal(secret) };
      const created = await createWebhook(
        db,
        { ...place, ...fields, events },
        { requestId: ids.next(REQUEST_PREFIX, clock.now()), keyNo: 0 },
        null,
      );
      if (created !== "created") throw new Error(created);
      return { id, secret };
    },
    async startWorker({
      name,
      regions = REGIONS,
      leaseMs = LEASE_MS,
      clock: itsClock = clock,
      attemptTimeoutMs = ATTEMPT_TIMEOUT_MS,
      webhookTimeoutMs = WEBHOOK_TIMEOUT_MS,
      webhookRetryScale = 1,
      db: itsDb = serviceDb,
    } = {}) {
      return remember(
        await startWorker(newCell({ db: itsDb, clock: itsClock }), {
          nodeId: await join("worker", name, regions),
          regions,
          shardsPerRegion: SHARDS_PER_REGION,
          leaseTtlMs: leaseMs,
          attemptTimeoutMs,
          webhookTimeoutMs,
          webhookRetryScale,
          isProvedDead: () => false,
          onDeclaredDead: fail,
        }),
      );
    },
    async startDelivery({
      db: itsDb = serviceDb,
      name,
      regions = REGIONS,
      attemptTimeoutMs = ATTEMPT_TIMEOUT_MS,
      webhookTimeoutMs = WEBHOOK_TIMEOUT_MS,
      webhookRetryScale = 1,
      drainTimeoutMs = 5_000,
      limits = NODE_LIMITS,
    } = {}) {
      return remember(
        await startDelivery(newCell({ db: itsDb }), {
          seal,
          nodeId: await join("delivery", name, regions),
          regions,
          targets: { allowInsecure: true, own: [] },
          attemptTimeoutMs,
          webhookTimeoutMs,
          webhookRetryScale,
          drainTimeoutMs,
          limits,
          onDeclaredDead: fail,
        }),
      );
    },
    async job(project, id, environment = "production") {
      const job = await findJob(db, { projectNo: project.no, environment }, id);
      if (job === null) throw new Error(`no job ${id}`);
      return job;
    },
    async runs(project, id, environment = "production") {
      const query = {
        projectNo: project.no,
        environment,
        jobId: id,
        status: null,
        beforeId: null,
        sinceAt: 0,
        limit: 100,
      };
      return (await listRuns(db, query)).rows.reverse();
    },
    async stop() {
      for (const stop of stops.reverse()) await stop();
      await bus.close();
      clock.stop();
      await Promise.all([db.close(), serviceDb.close()]);
      await database.drop();
    },
  };
}
