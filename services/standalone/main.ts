import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { openBus } from "../../shared/bus/jetstream.ts";
import { isLoopback } from "../../shared/platform/config.ts";
import {
  isComplaint,
  startEmbeddedPostgres,
} from "../../shared/platform/embedded-postgres/embedded-postgres.ts";
import { checkStartable, DataDirInUse, ForeignData } from "../../shared/platform/embedded-postgres/home.ts";
import { escapeControls } from "../../shared/platform/human-lines.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { startOps } from "../../shared/platform/ops.ts";
import { describeThisProcess, isProvedDead } from "../../shared/platform/process-identity.ts";
import { makeSecretsKey } from "../../shared/platform/seal/secrets-key.ts";
import { handleSignals } from "../../shared/platform/shutdown.ts";
import { startTraces } from "../../shared/platform/traces/start.ts";
import { openCellSealOrExit } from "../../shared/process/cell-seal.ts";
import { checkPortOrExit, listenOrExit } from "../../shared/process/listen-or-exit.ts";
import {
  addCommonStops,
  checkRestored,
  exitAsDead,
  readConfigOrExit,
  showStores,
  targetRulesOf,
  waitForDatabase,
  warnOfInsecureTargets,
} from "../../shared/process/service.ts";
import { untilAnswered } from "../../shared/process/until-answered.ts";
import { joinCell } from "../../shared/store/cell/membership.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { askTime, openDatabase } from "../../shared/store/database/database.ts";
import { findCallers } from "../../shared/store/resources/callers.ts";
import { listProjects } from "../../shared/store/resources/projects.ts";
import { createProjectWithKeys, hashKey } from "../admin/create-project.ts";
import { rehearseDelivery } from "../delivery/rehearsal.ts";
import { startDelivery } from "../delivery/start.ts";
import { rehearseGateway } from "../gateway/rehearsal.ts";
import { startGateway } from "../gateway/start.ts";
import { rehearseWorker } from "../worker/rehearsal.ts";
import { startWorker } from "../worker/start.ts";
import { bannerOf, firstSteps } from "./banner.ts";
import { startOverOrExit } from "./start-over.ts";
import { startTestClock } from "./test-clock/clock.ts";
import { checkAloneOrExit, ownCell, prepareTestClockOrExit } from "./test-clock/own.ts";
import { clockRoutes } from "./test-clock/routes.ts";
import { createWalker, type Walker } from "./test-clock/walk.ts";
import { readWordsOrExit } from "./words.ts";

/**
 * Gateway, worker and delivery in one process, over a bus inside the process and an embedded Postgres in the data
 * directory. NATS_URL takes the place of that bus, and DATABASE_URL of that Postgres.
 */

const CONNECTIONS = 40;
/** Only one standalone runs on a data directory, so its nodes can have a fixed name. */
const NODE_NAME = "standalone";
/** How much of an echoed payload the terminal shows. */
const ECHO_CHARACTERS_MAX = 200;

const say = (line: string) => process.stdout.write(`${line}\n`);
const shown = (text: string) => escapeControls(text.slice(0, ECHO_CHARACTERS_MAX));
/** Only complaints of Postgres are shown: its other lines would bury the keys, which are shown once. */
const tellOfPostgres = (line: string) => {
  if (isComplaint(line)) log.warn({ line }, "postgres");
};

const words = readWordsOrExit(process.argv.slice(2));
const config = readConfigOrExit("standalone");
const { host } = config;
if (words.testClock) checkAloneOrExit(config);
const [apiAt, opsAt] = [
  { setting: "PORT", host, port: config.port },
  { setting: "OPS_PORT", host, port: config.opsPort },
] as const;
// The checks come before anything is made or removed. A second start hears of the folder, which says more than ports.
if (config.databaseUrl === null) await Promise.try(checkStartable, config.dataDir).catch(refuseFolder);
await checkPortOrExit(apiAt);
await checkPortOrExit(opsAt);
if (words.fresh) await startOverOrExit(config, words);
const log = createLog({ level: config.logLevel, name: "standalone", format: config.logFormat });
const shutdown = handleSignals({ log, drainTimeoutMs: config.drainTimeoutMs });
const metrics = createMetrics();

const embedded =
  config.databaseUrl === null
    ? await startEmbeddedPostgres({ dataDir: config.dataDir, log: tellOfPostgres }).catch(refuseFolder)
    : null;
const databaseUrl = embedded?.url ?? config.databaseUrl ?? "";
const place = { ...words, dataDir: embedded === null ? null : config.dataDir };
await untilAnswered(log, () => prepareTestClockOrExit(place, databaseUrl, async () => embedded?.stop()));
await untilAnswered(log, () => migrate(databaseUrl));
const db = openDatabase(databaseUrl, { connections: CONNECTIONS, log });
const stopDatabase = async () => {
  await db.close();
  await embedded?.stop();
};
const databaseClock = await waitForDatabase(db, log);
if (words.testClock) databaseClock.stop();
const testClock = words.testClock ? await untilAnswered(log, () => startTestClock(db)) : null;
const clock = testClock ?? databaseClock;
const bus = config.natsUrl === null ? createInProcessBus(log) : await openBus(config.natsUrl, log);
showStores(metrics, { db, bus });
const seal = await openCellSealOrExit(
  { db, log },
  { ...config, secretsKey: config.secretsKey ?? makeSecretsKey(config.dataDir) },
);
if (config.allowInsecureTargets) warnOfInsecureTargets(log);

let isStarted = false;
/** Null without a test clock. */
let walker: Walker | null | undefined = testClock === null ? null : undefined;
const opsOptions = {
  host: config.host,
  port: config.opsPort,
  metrics,
  ready: async () => isStarted && !shutdown.begun && (await askTime(db)) > 0,
  // The echo receiver takes requests without a key and writes to the terminal, so only this machine may reach it.
  routes: {
    ...(isLoopback(config.host) && { "POST /echo": echo }),
    ...clockRoutes(log, clock, () => walker),
  },
};
const ops = await listenOrExit(opsAt, () => startOps(opsOptions), stopDatabase);

const { nodeName, traces: settings } = config;
const traces = await startTraces({ service: "standalone", nodeName, settings, log });
const cell = { db, bus, clock, log, metrics, traces };
const onDeclaredDead = exitAsDead(log);
const join = (kind: "worker" | "delivery") => {
  const node = {
    kind,
    name: config.nodeNameIsFixed || embedded === null ? config.nodeName : NODE_NAME,
    regions: config.regions,
    process: describeThisProcess(),
  };
  // No other process can hold the data directory, so an earlier one that had this name is dead.
  const proof = { leaseMs: config.leaseTtlMs, isProvedDead: embedded === null ? isProvedDead : () => true };
  return untilAnswered(log, () => joinCell(db, node, proof));
};
const targets = targetRulesOf(config, config.port);
await untilAnswered(log, () => checkRestored(cell, config));
const own = testClock === null ? null : ownCell({ ...cell, clock: testClock });
const gatewayOptions = {
  ...cell,
  gate: own?.gate,
  targets,
  host: config.host,
  port: config.port,
  shardsPerRegion: config.shardsPerRegion,
  publicUrl: config.publicUrl,
  seal,
};
await rehearseWorker(cell);
await rehearseDelivery(cell, { regions: config.regions, seal });
await rehearseGateway(cell, gatewayOptions);
// The gateway starts before anything is sent: a process without its port ends here, and leaves no attempt behind.
const gateway = await listenOrExit(apiAt, () => startGateway(gatewayOptions), stopDatabase);
const delivery = await startDelivery(own?.cell ?? cell, {
  ...config,
  seal,
  targets,
  nodeId: await join("delivery"),
  onDeclaredDead,
});
const worker = await startWorker(own?.cell ?? cell, {
  ...config,
  nodeId: await join("worker"),
  mayDelete: () => !walker?.look().advancing,
  isProvedDead,
  onDeclaredDead,
});

if (testClock !== null && own !== null) {
  const isStopping = () => shutdown.begun;
  walker = createWalker({ ...own, db, clock: testClock, worker, delivery, isStopping });
}

// All three stop at once, so that a client that sends its body slowly does not use up the time of attempts on the wire.
shutdown.add("services", async () => {
  await Promise.all([gateway.stop(), worker.stop(), delivery.stop()]);
});
addCommonStops(shutdown, cell);
shutdown.add("ops", () => ops.stop());
if (embedded !== null) shutdown.add("postgres", () => embedded.stop());

const reachable = (port: number) => `http://${isLoopback(config.host) ? config.host : "127.0.0.1"}:${port}`;
const reached = { api: reachable(gateway.port), ops: reachable(ops.port) };
const [oldest] = await untilAnswered(log, () => listProjects(db));
if (oldest === undefined) {
  const project = { name: "First project", plan: "scale", defaultRegion: "us-east" } as const;
  const makeProject = () => createProjectWithKeys(db, seal, { ...project, givenKeys: config.firstKeys });
  // If its answer is lost, another one is made, since nobody knows the keys of the first.
  const made = await untilAnswered(log, makeProject);
  say(firstSteps(made, reached, config));
  say(bannerOf(reached, config, made.project.id, walker?.look() ?? null, []));
} else {
  say(bannerOf(reached, config, oldest.id, walker?.look() ?? null, await untilAnswered(log, findUnusedKeys)));
}
isStarted = true;

/** The settings that give the first project its keys, as far as these keys are not keys of the data. */
async function findUnusedKeys(): Promise<string[]> {
  const { development, production } = config.firstKeys;
  const given = Object.entries({ DEVELOPMENT_KEY: development, PRODUCTION_KEY: production }).flatMap(
    ([setting, key]) => (key === null ? [] : [{ setting, hash: hashKey(key) }]),
  );
  const callers = await findCallers(
    db,
    given.map(({ hash }) => hash),
  );
  return given.flatMap(({ setting }, n) => (callers[n] === null ? [setting] : []));
}

async function echo(request: Request): Promise<Response> {
  const body = await request.text();
  const jobId = request.headers.get("service-job-id") ?? "a request";
  say(`echo: ${shown(jobId)} arrived with ${shown(body)}`);
  return new Response(body, { headers: { "content-type": "application/json" } });
}

function refuseFolder(error: unknown): never {
  if (!(error instanceof DataDirInUse || error instanceof ForeignData)) throw error;
  const advice = error instanceof DataDirInUse ? "Stop that one, or set" : "Set";
  process.stderr.write(`${error.message} ${advice} DATA_DIR to another folder.\n`);
  process.exit(1);
}
