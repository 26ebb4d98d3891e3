import { createHmac, randomBytes } from "node:crypto";
import type { Bus } from "../../shared/bus/bus.ts";
import { createIdSource } from "../../shared/domain/ids.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Metrics } from "../../shared/platform/metrics/metrics.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import { NO_TRACES, type Traces } from "../../shared/platform/traces/traces.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { createApp } from "./app.ts";
import { createJobCreation } from "./creation.ts";
import { createDocs } from "./docs.ts";
import { createPager } from "./pages.ts";
import { createRateLimiter } from "./rate/limiter.ts";
import { createAuthenticator } from "./request/authenticate.ts";
import { RECEIVE_MS } from "./request/body.ts";
import { createIdempotency } from "./request/idempotency.ts";
import { createLastUse } from "./request/last-use.ts";
import { deliveryRoutes } from "./routes/deliveries.ts";
import { jobRoutes } from "./routes/jobs.ts";
import { projectRoutes } from "./routes/project.ts";
import { runRoutes } from "./routes/runs.ts";
import { scheduleRoutes } from "./routes/schedules.ts";
import { webhookRoutes } from "./routes/webhooks.ts";

export interface GatewayOptions {
  host: string;
  /** 0 for any that is free. */
  port: number;
  db: Database;
  bus: Bus;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  shardsPerRegion: number;
  targets: TargetRules;
  /** Where clients reach the API; null where they find its description. */
  publicUrl: string | null;
  /** Every gateway of a cell has the same one, so that each opens the secrets of the others and takes their cursors. */
  seal: Seal;
  /** None unless they are wanted. */
  traces?: Traces;
  /** How long a request may wait for Postgres: as the API promises, unless a test is about something else. */
  storeTimeMsMax?: number | undefined;
  /** How long a small body may take to arrive: as the API promises, unless a test is about something else. */
  receiveMs?: number | undefined;
}

/**
 * Bun closes a connection when its idle timeout is over, and a body that comes slowly does not begin it anew. That must not
 * be before a small body has had its time, and the store its own. Before its headers are complete a connection has about
 * 10 s, whatever is set here.
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
  const creation = createJobCreation({ db, bus, clock, metrics });
  const lastUse = createLastUse({ db, clock, log });
  const authenticator = createAuthenticator(db, lastUse);
  const rateLimiter = createRateLimiter(db, log);
  const app = createApp({
    routes: {
      ...jobRoutes({ db, clock, ids, pager, creation, shardsPerRegion, targets }),
      ...scheduleRoutes({ db, bus, clock, pager, creation, shardsPerRegion, targets }),
      ...runRoutes({ db, bus, clock, ids, pager }),
      ...projectRoutes({ db, clock, authenticator }),
      ...webhookRoutes({ db, pager, targets, seal }),
      ...deliveryRoutes({ db, bus, clock, pager, shardsPerRegion }),
    },
    docs: createDocs(publicUrl),
    authenticator,
    rateLimiter,
    idempotency: createIdempotency(db),
    clock,
    ids,
    log,
    metrics,
    traces: options.traces ?? NO_TRACES,
    storeTimeMsMax: options.storeTimeMsMax,
    patience: {
      receiveMs,
      keepOpen: (request, isKept) => server.timeout(request, isKept ? 0 : idleTimeout),
    },
  });
  const server = Bun.serve({
    hostname: options.host,
    port: options.port,
    // Two processes would share the port in silence, and requests with it.
    reusePort: false,
    development: false,
    idleTimeout,
    // Bun's own refusal has no body; the app refuses by the declared length or counts as it reads.
    maxRequestBodySize: Number.MAX_SAFE_INTEGER,
    routes: app.paths,
    error: app.answerBug,
  });
  return {
    port: server.port ?? options.port,
    /** Takes no more, ends what is in progress, and returns when its answers have been sent. */
    async stop() {
      await server.stop();
      await Promise.all([creation.drain(), lastUse.stop(), rateLimiter.stop()]);
    },
  };
}

const makeTagOf = (key: Uint8Array) => (bytes: Uint8Array) =>
  createHmac("sha256", key).update(bytes).digest();
