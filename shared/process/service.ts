import type { Bus } from "../bus/bus.ts";
import { openBus } from "../bus/jetstream.ts";
import { listenAddressOf, ownAddressOf, type TargetRules } from "../domain/target.ts";
import { type Clock, startClock } from "../platform/clock.ts";
import { type Config, ConfigError, readConfig } from "../platform/config.ts";
import { faultText } from "../platform/error-text.ts";
import { createLog, type Log } from "../platform/log.ts";
import { byLabel, createMetrics, type Metrics } from "../platform/metrics/metrics.ts";
import { startOps } from "../platform/ops.ts";
import { describeThisProcess, isProvedDead } from "../platform/process-identity.ts";
import { handleSignals, type Shutdown } from "../platform/shutdown.ts";
import { startTraces } from "../platform/traces/start.ts";
import { listHeldRegions } from "../store/cell/holds.ts";
import { joinCell } from "../store/cell/membership.ts";
import type { NodeKind } from "../store/cell/nodes.ts";
import { holdIfRestored, isNoted } from "../store/cell/restored.ts";
import { hasTestClock } from "../store/cell/test-clock.ts";
import {
  askTime,
  checkPrepared,
  NotPrepared,
  openDatabase,
  type PooledDatabase,
  StoreUnavailable,
} from "../store/database/database.ts";
import type { Cell } from "./cell.ts";
import { RESTORED } from "./heartbeat.ts";
import { listenOrExit } from "./listen-or-exit.ts";
import { untilAnswered } from "./until-answered.ts";

/**
 * Enough for the statements that one process has in flight. A lock on a project's flow may hold up two statements of each
 * of the ten kinds by which a delivery node claims and settles. Its other statements and its heartbeats must not wait for them.
 */
export const CONNECTIONS = 24;
/** By then a gateway has answered 503. It gives up a connection that has gone silent, so that the next one works. */
const GATEWAY_ANSWER_TIMEOUT_MS = 2_500;
const ASK_AGAIN_MS = 500;
/** Often enough for an operator who looks at a process that does not start. */
const SAY_AGAIN_MS = 60_000;

/** Reads the settings of a service. If some are wrong, names every one of them and ends the process. */
export function readConfigOrExit<S extends Parameters<typeof readConfig>[1]>(service: S): Config<S> {
  try {
    return readConfig(process.env, service);
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error;
    process.stderr.write(`${error.message}\n`);
    process.exit(2);
  }
}

/** Runs one service over Postgres and NATS until it is told to stop. */
export async function runService<S extends "gateway" | "worker" | "delivery">(
  service: S,
  start: (config: Config<S>, cell: Cell) => Promise<{ stop(): Promise<void> }>,
): Promise<void> {
  const config = readConfigOrExit(service);
  const log = createLog({ level: config.logLevel, name: service, format: config.logFormat });
  const shutdown = handleSignals({ log, drainTimeoutMs: config.drainTimeoutMs });
  const db = openDatabase(config.databaseUrl as string, {
    connections: CONNECTIONS,
    log,
    ...(service === "gateway" && { answerTimeoutMs: GATEWAY_ANSWER_TIMEOUT_MS }),
  });
  let isStarted = false;
  const metrics = createMetrics();
  const { host, opsPort: port } = config;
  const ready = async () => isStarted && !shutdown.begun && (await askTime(db)) > 0;
  const ops = await listenOrExit({ setting: "OPS_PORT", host, port }, () =>
    startOps({ host, port, metrics, ready }),
  );
  const clock = await waitForDatabase(db, log);
  if (await untilAnswered(log, () => hasTestClock(db))) {
    process.stderr.write(
      "DATABASE_URL names the database of a test clock, which only `npm start -- --test-clock` may use.\n",
    );
    process.exit(1);
  }
  const bus = await openBus(config.natsUrl as string, log);
  showStores(metrics, { db, bus });
  if (config.allowInsecureTargets && service !== "worker") warnOfInsecureTargets(log);
  const traces = await startTraces({ service, nodeName: config.nodeName, settings: config.traces, log });
  const cell = { db, bus, clock, log, metrics, traces };
  const running = await start(config, cell);
  isStarted = true;
  shutdown.add(service, () => running.stop());
  addCommonStops(shutdown, cell);
  shutdown.add("ops", () => ops.stop());
  log.info({ opsPort: ops.port }, "started");
}

/** Shows operators the state of the connections to Postgres and NATS. */
export function showStores(
  metrics: Metrics,
  { db, bus }: { db: PooledDatabase; bus: Pick<Bus, "counts"> },
): void {
  metrics.postgresConnections.follow(() => byLabel("state", db.connections()));
  metrics.statementErrors.follow(() => byLabel("kind", db.errors));
  metrics.busFaults.follow(() => byLabel("kind", { ...bus.counts }));
}

/**
 * Returns once Postgres can be asked and `migrate` of this release has run. So everything may be started at once, in
 * any order. The log tells of the wait when it begins, now and then, and when it ends.
 */
export async function waitForDatabase(
  db: PooledDatabase,
  log: Log,
  { askAgainMs, sayAgainMs } = { askAgainMs: ASK_AGAIN_MS, sayAgainMs: SAY_AGAIN_MS },
): Promise<Clock> {
  const begunAt = performance.now();
  let toldAt: number | null = null;
  for (;;) {
    try {
      await checkPrepared(db);
      const clock = await startClock(() => askTime(db));
      if (toldAt !== null)
        log.info({ waitedMs: Math.round(performance.now() - begunAt) }, "Postgres is ready");
      return clock;
    } catch (error) {
      if (!(error instanceof StoreUnavailable || error instanceof NotPrepared)) throw error;
      if (toldAt === null || performance.now() - toldAt >= sayAgainMs) {
        toldAt = performance.now();
        log.warn({ why: faultText(error), waitedMs: Math.round(toldAt - begunAt) }, "waiting for Postgres");
      }
      // If this fails too, the next round tells of it.
      if (error instanceof NotPrepared) await db.renewConnection().catch(() => undefined);
      await Bun.sleep(askAgainMs);
    }
  }
}

export function addCommonStops(
  shutdown: Shutdown,
  { db, bus, clock, traces }: Pick<Cell, "db" | "bus" | "clock" | "traces">,
): void {
  shutdown.add("traces", () => traces.stop());
  shutdown.add("bus", () => bus.close());
  shutdown.add("clock", async () => clock.stop());
  shutdown.add("database", () => db.close());
}

/**
 * Holds the cell, and says so, if its database was restored from a backup. It is called before anything is sent. After
 * a failover the nodes that were at work note the new Postgres as soon as they reach it; they have a lease's time to do
 * so.
 */
export async function checkRestored(
  { db, log }: Pick<Cell, "db" | "log">,
  { leaseTtlMs }: Pick<Config, "leaseTtlMs">,
): Promise<void> {
  const giveUpAt = performance.now() + leaseTtlMs;
  while (!(await isNoted(db)) && performance.now() < giveUpAt) await Bun.sleep(ASK_AGAIN_MS);
  if (await holdIfRestored(db)) log.error({}, RESTORED);
  const regions = (await listHeldRegions(db)).map(({ region }) => region);
  if (regions.length > 0) log.warn({ regions }, "regions.held");
}

/** Joins the cell as a worker or a delivery node. */
export async function joinAs(
  kind: NodeKind,
  { db, log }: Pick<Cell, "db" | "log">,
  config: Config,
): Promise<number> {
  await untilAnswered(log, () => checkRestored({ db, log }, config));
  const node = { kind, name: config.nodeName, regions: config.regions, process: describeThisProcess() };
  return untilAnswered(log, () => joinCell(db, node, { leaseMs: config.leaseTtlMs, isProvedDead }));
}

/**
 * Ends the process of a node that others have declared dead. It has lost what it had on the wire. Its supervisor starts
 * it again as a new incarnation.
 */
export function exitAsDead(log: Log): () => void {
  return () => {
    log.error({}, "declared dead");
    process.exit(1);
  };
}

export function targetRulesOf(config: Config, gatewayPort: number): TargetRules {
  const own = config.publicUrl === null ? [] : [ownAddressOf(config.publicUrl)];
  const hosts = ["127.0.0.1", "localhost", "[::1]"].map((hostname) => ({ hostname, port: gatewayPort }));
  return {
    allowInsecure: config.allowInsecureTargets,
    opened: { networks: config.allowedTargetNetworks, hosts: config.allowedTargetHosts },
    own: [...own, ...hosts, listenAddressOf(config.host, gatewayPort)],
  };
}

export function warnOfInsecureTargets(log: Log): void {
  log.warn(
    {},
    "ALLOW_INSECURE_TARGETS is on: http and private addresses may be targets. Never so in production.",
  );
}
