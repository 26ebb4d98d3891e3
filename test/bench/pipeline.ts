import { randomBytes } from "node:crypto";
import { tmpdir } from "node:os";
import { parseArgs } from "node:util";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { changeProject } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { claimPort } from "../support/port.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { PAYLOAD, SHARDS_PER_REGION, storeJobs } from "./harness/jobs.ts";
import { type Load, type LoadReport, RUN_AT } from "./harness/load.ts";
import { formatCount, printTable, summarize } from "./harness/measure.ts";
import {
  childrenCpuUs,
  cpuUsOf,
  isOk,
  parentOf,
  runProgram,
  spawnBound,
  until,
} from "./harness/processes.ts";
import { QUANTILES, quantilesOf } from "./harness/quantiles.ts";
import { type Received, SINK, type SinkSettings } from "./harness/sink.ts";

/**
 * What are throughput, latency and CPU of the whole product, from creation to delivery, as real processes? A sink
 * receives the deliveries and a load generator makes the requests, each a process of its own; Postgres is the server of
 * the tests.
 *
 * `--seconds N` of creation (15), `--rounds N` (3), `--only NAMES` of: create, spread, immediate, stored, and
 * `--products NAMES` of: cell, standalone. `--profile SERVICE` leaves that service's CPU profile in the folder for
 * temporary files.
 */

const CONNECTIONS = 64;
const WARMUP_SECONDS = 2;
const SPREAD_PER_S = 250;
const SPREAD_SECONDS = 20;
/** The time in which all spread jobs have to be stored, before the first is due. */
const SPREAD_LEAD_MS = 5_000;
const IMMEDIATE_PER_S = 50;
const IMMEDIATE_SECONDS = 8;
const STORED_JOBS = 20_000;
const STORED_LEAD_MS = 3_000;
const log = createLog({ name: "pipeline", level: "warn" });

type Product = "cell" | "standalone";
type Part = "create" | "spread" | "immediate" | "stored";

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      seconds: { type: "string", default: "15" },
      rounds: { type: "string", default: "3" },
      only: { type: "string", default: "create,spread,immediate,stored" },
      products: { type: "string", default: "cell,standalone" },
      profile: { type: "string" },
    },
  });
  const parts = values.only.split(",") as Part[];
  const figures: string[][] = [];
  const cpu: string[][] = [];
  for (const product of values.products.split(",") as Product[]) {
    const stage = await startStage(product, values.profile);
    try {
      await flood(stage, WARMUP_SECONDS);
      const samples = new Map<string, number[]>();
      const cpuSamples = new Map<string, number[]>();
      const add = (into: Map<string, number[]>, name: string, figure: number) =>
        into.set(name, [...(into.get(name) ?? []), figure]);
      for (let round = 0; round < Number(values.rounds); round++) {
        for (const part of parts) {
          process.stderr.write(`${product}: ${part}, round ${round + 1}\n`);
          if (product === "standalone" && (part === "spread" || part === "stored")) continue;
          for (const [name, figure] of await MEASURES[part](stage, Number(values.seconds), (process, us) =>
            add(cpuSamples, `${part}: ${process}`, us),
          ))
            add(samples, name, figure);
        }
      }
      for (const [name, each] of samples) figures.push([product, name, summarize(each)]);
      for (const [name, each] of cpuSamples) cpu.push([product, name, summarize(each)]);
    } finally {
      await stage.stop();
    }
  }
  printTable(["product", "measure", "figure"], figures);
  console.log("\nCPU, µs a job:");
  printTable(["product", "process", "µs"], cpu);
}

/** Measures one part. Answers names and figures, and records the CPU of a job in each process. */
type Measure = (
  stage: Stage,
  seconds: number,
  tellCpu: (process: string, us: number) => void,
) => Promise<[string, number][]>;

const MEASURES: Record<Part, Measure> = {
  async create(stage, seconds, tellCpu) {
    const before = await stage.cpuUs();
    const { createdCount, deliveredCount, drainMs } = await flood(stage, seconds);
    tellCpuOf(before, await stage.cpuUs(), createdCount, tellCpu);
    return [
      ["created one by one, jobs/s", createdCount / seconds],
      ["delivered meanwhile, jobs/s", deliveredCount / seconds],
      ["backlog at the end, jobs", createdCount - deliveredCount],
      ["until it was gone, ms", drainMs],
    ];
  },

  async spread(stage) {
    await stage.beginReceiving("lateness");
    const [count, firstAt] = [SPREAD_PER_S * SPREAD_SECONDS, Date.now() + SPREAD_LEAD_MS];
    await stage.load({ count, spread: { firstAt, perS: SPREAD_PER_S } });
    if (Date.now() > firstAt) throw new Error("the first was due before the last was stored");
    const { latenessMs } = await stage.untilReceived(count);
    return [
      [`lateness at ${SPREAD_PER_S}/s, p50 ms`, quantile(latenessMs, 0.5)],
      [`lateness at ${SPREAD_PER_S}/s, p99 ms`, quantile(latenessMs, 0.99)],
      [`lateness at ${SPREAD_PER_S}/s, least ms`, quantile(latenessMs, 0)],
      [`lateness at ${SPREAD_PER_S}/s, most ms`, quantile(latenessMs, 1)],
    ];
  },

  async immediate(stage) {
    await stage.beginReceiving("receipts");
    const pace = { ratePerS: IMMEDIATE_PER_S, seconds: IMMEDIATE_SECONDS };
    const { answers, answeredCount } = await stage.load({ ...pace, tellsAnswers: true });
    const { receipts } = await stage.untilReceived(answeredCount);
    const answeredAt = new Map(answers);
    const waits = quantilesOf(receipts.map(([id, at]) => at - (answeredAt.get(id) ?? Number.NaN)));
    return [
      [`201 to receipt at ${IMMEDIATE_PER_S}/s, p50 ms`, quantile(waits, 0.5)],
      [`201 to receipt at ${IMMEDIATE_PER_S}/s, p99 ms`, quantile(waits, 0.99)],
    ];
  },

  async stored(stage, _seconds, tellCpu) {
    const figures: [string, number][] = [];
    for (const concurrency of [500, 2_000]) {
      await stage.setConcurrency(concurrency);
      await stage.beginReceiving();
      const dueAt = Date.now() + STORED_LEAD_MS;
      await stage.store(STORED_JOBS, dueAt);
      await Bun.sleep(Math.max(0, dueAt - Date.now()));
      const before = await stage.cpuUs();
      await stage.untilReceived(STORED_JOBS);
      await stage.untilSettled();
      const tookMs = Date.now() - dueAt;
      tellCpuOf(before, await stage.cpuUs(), STORED_JOBS, (process, us) =>
        tellCpu(`limit ${concurrency}, ${process}`, us),
      );
      figures.push([
        `stored jobs processed, limit ${formatCount(concurrency)}, jobs/s`,
        (STORED_JOBS / tookMs) * 1_000,
      ]);
    }
    return figures;
  },
};

async function flood(
  stage: Stage,
  seconds: number,
): Promise<{ createdCount: number; deliveredCount: number; drainMs: number }> {
  await stage.beginReceiving();
  const { answeredCount } = await stage.load({ seconds });
  const endedAt = performance.now();
  const { count } = await stage.received();
  await stage.untilReceived(answeredCount);
  await stage.untilSettled();
  return { createdCount: answeredCount, deliveredCount: count, drainMs: performance.now() - endedAt };
}

function tellCpuOf(
  before: Map<string, number>,
  after: Map<string, number>,
  jobCount: number,
  tell: (process: string, us: number) => void,
): void {
  let all = 0;
  for (const [name, us] of after) {
    const used = (us - (before.get(name) ?? 0)) / jobCount;
    all += used;
    tell(name, used);
  }
  tell("all", all);
}

const quantile = (figures: readonly number[], part: number) => figures[QUANTILES.indexOf(part)] ?? Number.NaN;

interface Stage {
  /** Makes jobs over HTTP as fast as they are answered, unless told otherwise. */
  load(wish: Partial<Load>): Promise<LoadReport>;
  beginReceiving(kept?: string): Promise<unknown>;
  received(): Promise<Received>;
  untilReceived(count: number): Promise<Received>;
  /** Resolves once nothing due is owed or on the wire. */
  untilSettled(): Promise<void>;
  setConcurrency(concurrency: number): Promise<unknown>;
  /** Commits jobs as the gateway does, without announcing them. */
  store(count: number, dueAt: number): Promise<void>;
  /** The CPU so far, by process. */
  cpuUs(): Promise<Map<string, number>>;
  stop(): Promise<void>;
}

async function startStage(product: Product, profiled: string | undefined): Promise<Stage> {
  const stops: (() => unknown)[] = [];
  const stop = async () => {
    for (const each of stops.reverse()) await each();
  };
  try {
    return { ...(await composeStage(product, profiled, stops)), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function composeStage(
  product: Product,
  profiled: string | undefined,
  stops: (() => unknown)[],
): Promise<Omit<Stage, "stop">> {
  const database = await createTestDatabase("pipeline");
  stops.push(database.drop);
  await migrate(database.url);
  const db = openDatabase(database.url, { connections: 4, log });
  stops.push(db.close);
  const secretsKey = randomBytes(32);
  const terms = { name: "pipeline", plan: "enterprise", defaultRegion: "us-east" } as const;
  const { project, keys } = await createProjectWithKeys(db, createSeal(secretsKey), terms);
  // The load comes from one project, whose plan would allow less.
  await changeProject(db, project.id, { requestsPerMinuteOverride: 1_000_000 }, testCause());

  const pids = new Map<string, number>();
  const [sinkPort, gatewayPort] = [await claimPort(), await claimPort()];
  const sinkCommand = [process.execPath, SINK, JSON.stringify({ port: sinkPort } satisfies SinkSettings)];
  pids.set("sink", spawnBound(sinkCommand, {}, stops));
  const environment: Record<string, string> = {
    HOST: "127.0.0.1",
    DATABASE_URL: database.url,
    SECRETS_KEY: secretsKey.toString("hex"),
    SHARDS_PER_REGION: String(SHARDS_PER_REGION),
    ALLOW_INSECURE_TARGETS: "true",
    PORT: String(gatewayPort),
  };
  if (product === "cell") {
    const nats = await startNatsServer();
    stops.push(nats.stop);
    pids.set("nats", nats.pid);
    environment.NATS_URL = nats.url;
  }
  for (const service of product === "cell" ? ["worker", "delivery", "gateway"] : ["standalone"]) {
    const OPS_PORT = String(await claimPort());
    const flags = service === profiled ? ["--cpu-prof", `--cpu-prof-dir=${tmpdir()}`] : [];
    const command = [process.execPath, ...flags, `services/${service}/main.ts`];
    pids.set(service, spawnBound(command, { ...environment, OPS_PORT }, stops));
    await until(`${service} is ready`, () => isOk(`http://127.0.0.1:${OPS_PORT}/readyz`));
  }
  const sink = `http://127.0.0.1:${sinkPort}`;
  await until("the sink is ready", () => isOk(sink));

  let loadCpuUs = 0;
  const received = async () => (await (await fetch(sink)).json()) as Received;
  return {
    async load(wish) {
      const when = wish.spread === undefined ? "" : `,"run_at":"${RUN_AT}"`;
      const { report, cpuUs } = await runProgram<LoadReport>("load.ts", {
        port: gatewayPort,
        key: keys.production,
        path: "/v2/jobs",
        body: `{"target_url":"${sink}/hook","payload":${PAYLOAD}${when}}`,
        ratePerS: null,
        seconds: 0,
        connections: CONNECTIONS,
        ...wish,
      } satisfies Load);
      loadCpuUs += cpuUs;
      return report;
    },
    beginReceiving: (kept = "") => fetch(`${sink}/begin?${kept}`),
    received,
    async untilReceived(count) {
      await until(`${count} jobs were received`, async () => (await received()).count >= count);
      return received();
    },
    untilSettled: () =>
      until("everything was settled", async () => {
        const rows = await db.run("any_open", "SELECT 1 FROM open_jobs LIMIT 1", []);
        return rows.length === 0;
      }),
    setConcurrency: (concurrencyOverride) =>
      changeProject(db, project.id, { concurrencyOverride }, testCause()),
    store: (count, runAt) =>
      storeJobs(db, count, () => ({
        ...{ projectNo: project.no, targetUrl: `${sink}/hook`, payload: PAYLOAD, runAt },
      })),
    async cpuUs() {
      const used = new Map([...pids].map(([name, pid]) => [name, cpuUsOf(pid)]));
      return used.set("load", loadCpuUs).set("postgres", await postgresCpuUs(db));
    },
  };
}

/** The CPU of the server's own processes and of this database's backends. Other databases of the server may be in use. */
async function postgresCpuUs(db: Database): Promise<number> {
  const rows = await db.run<{ own: number; others: number[] }>(
    "backends",
    `SELECT pg_backend_pid() AS own, coalesce(array_agg(pid) FILTER (WHERE datname <> current_database()), '{}') AS others
       FROM pg_stat_activity`,
    [],
  );
  const [{ own, others } = { own: 0, others: [] }] = rows;
  return childrenCpuUs(parentOf(own), others);
}

await main();
