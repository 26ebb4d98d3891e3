import { createHmac, randomBytes } from "node:crypto";
import type { Bus } from "../../shared/bus/bus.ts";
import { RECEIVE_MS } from "../../shared/domain/body.ts";
import { createIdSource } from "../../shared/domain/ids.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Gate } from "../../shared/platform/gate.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Metrics } from "../../shared/platform/metrics/metrics.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import { NO_TRACES, type Traces } from "../../shared/platform/traces/traces.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { createConsolePages } from "../console/pages.ts";
import { createAnnouncer } from "./announcer.ts";
import { createApp } from "./app.ts";
import { createDocsPages } from "./docs-pages.ts";
import { createRateLimiter } from "./rate/limiter.ts";
import { createAuthenticator } from "./request/authenticate.ts";
import { createIdempotency } from "./request/idempotency.ts";
import { createLastUse } from "./request/last-use.ts";
import { bulkRoutes } from "./routes/bulk.ts";
import { deliveryRoutes } from "./routes/deliveries.ts";
import { flowRoutes } from "./routes/flows.ts";
import { hostRoutes } from "./routes/hosts.ts";
import { createJobCreation } from "./routes/job-creation.ts";
import { jobRoutes } from "./routes/jobs.ts";
import { keyRoutes } from "./routes/keys.ts";
import { createPager } from "./routes/pager.ts";
import { projectRoutes } from "./routes/project.ts";
import { runRoutes } from "./routes/runs.ts";
import { scheduleRoutes } from "./routes/schedules.ts";
import { webhookRoutes } from "./routes/webhooks.ts";

export interface GatewayOptions {
  host: string;
  /** 0 lets the system choose. */
  port: number;
  db: Database;
  bus: Bus;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  shardsPerRegion: number;
  targets: TargetRules;
  /** The URL at which clients reach the API; null stands for the origin that serves the API's description. */
  publicUrl: string | null;
  /** All gateways of a cell have the same seal, so that each opens the others' secrets and accepts their cursors. */
  seal: Seal;
  /** By default nothing is recorded. */
  traces?: Traces;
  /** Under a test clock each request is carried out within the gate, so that no leap falls into the request. */
  gate?: Gate | undefined;
  /** How long a request may wait for Postgres. By default as the API promises; tests give other values. */
  storeTimeMsMax?: number | undefined;
  /** How long a small body may take to arrive. By default as the API promises; tests give other values. */
  receiveMs?: number | undefined;
}

/**
 * Bun closes a connection when its idle timeout is over, and a slowly arriving body does not restart it. So the timeout is
 * longer than the time for a small body and the time for the store together. Until its headers are complete a connection
 * has about 10 s, whatever is set here.
 */
const IDLE_SECONDS_AFTER_BODY = 10;

export async function startGateway(
  options: GatewayOptions,
): Promise<{ port: number; stop(): Promise<void> }> {
  const { db, bus, clock, log, metrics, shardsPerRegion, targets, publicUrl, seal } = options;
  const receiveMs = options.receiveMs ?? RECEIVE_MS;
  const idleTimeout = Math.ceil(receiveMs / 1_000) + IDLE_SECONDS_AFTER_BODY;
  const ids = createIdSource(randomBytes);
  const [ownKey, ...otherKeys] = seal.deriveKeys("cursor");
  const pager = createPager(makeTagOf(ownKey), ...otherKeys.map(makeTagOf));
  const announcer = createAnnouncer({ bus, clock });
  const creation = createJobCreation({ db, announcer, metrics });
  const lastUse = createLastUse({ db, clock, log });
  const authenticator = createAuthenticator(db, lastUse, clock.real && 0);
  const rateLimiter = createRateLimiter(db, log);
  const app = createApp({
    routes: {
      ...jobRoutes({ db, bus, clock, ids, pager, creation, shardsPerRegion, targets }),
      ...scheduleRoutes({ db, bus, clock, pager, creation, shardsPerRegion, targets }),
      ...bulkRoutes({ db, bus, clock, pager, shardsPerRegion }),
      ...flowRoutes({ db, pager }),
      ...runRoutes({ db, bus, clock, ids, pager }),
      ...projectRoutes({ db, clock, seal, authenticator }),
      ...hostRoutes({ db, bus, clock, pager, shardsPerRegion }),
      ...webhookRoutes({ db, pager, targets, seal, shardsPerRegion }),
      ...keyRoutes({ db, pager, seal, authenticator }),
      ...deliveryRoutes({ db, bus, clock, pager, shardsPerRegion }),
    },
    docs: createDocsPages(publicUrl),
    console: createConsolePages(),
    authenticator,
    rateLimiter,
    idempotency: createIdempotency(db),
    clock,
    ids,
    log,
    metrics,
    traces: options.traces ?? NO_TRACES,
    gate: options.gate,
    storeTimeMsMax: options.storeTimeMsMax,
    patience: {
      receiveMs,
      keepOpen: (request, isKept) => server.timeout(request, isKept ? 0 : idleTimeout),
    },
  });
  const server = Bun.serve({
    hostname: options.host,
    port: options.port,
    // With `reusePort` a second process could listen on the same port unnoticed and get some of the requests.
    reusePort: false,
    development: false,
    idleTimeout,
    // Bun's own refusal has no body, so `readBody` limits the size.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    routes: app.paths,
    error: app.answerBug,
  });
  return {
    port: server.port ?? options.port,
    /** Accepts no more requests, finishes those in progress, and returns when their answers have been sent. */
    async stop() {
      await server.stop();
      await Promise.all([creation.drain(), lastUse.stop(), rateLimiter.stop()]);
      announcer.stop();
    },
  };
}

const makeTagOf = (key: Uint8Array) => (bytes: Uint8Array) =>
  createHmac("sha256", key).update(bytes).digest();
