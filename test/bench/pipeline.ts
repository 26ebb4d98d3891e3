import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { migrate } from "../../shared/store/cell/migrate.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import { changeProject, type ProjectRow } from "../../shared/store/resources/projects.ts";
import { testCause } from "../support/cause.ts";
import { startNatsServer } from "../support/nats-server.ts";
import { createTestDatabase } from "../support/postgres.ts";
import { formatCount, printTable, summarize } from "./measure.ts";

/**
 * From creation to delivery: throughput, latency and CPU of the whole product as real processes. A sink takes the
 * deliveries and a load generator makes the requests, each a process of its own; Postgres is the server of the tests.
 *
 * `--seconds N` of creation (15), `--rounds N` (3), `--only NAMES` of: create, spread, immediate, stored, and
 * `--products NAMES` of: cell, standalone. `--profile SERVICE` leaves that service's CPU profile in the folder for
 * temporary files.
 */

const CONNECTIONS = 64;
const WARMUP_SECONDS = 2;
const SPREAD_PER_S = 250;
const SPREAD_SECONDS = 20;
/** Until the first of the spread jobs is due, all of them have to be stored. */
const SPREAD_LEAD_MS = 5_000;
const IMMEDIATE_PER_S = 50;
const IMMEDIATE_SECONDS = 8;
const STORED_JOBS = 20_000;
const STORED_LEAD_MS = 3_000;
const STORED_PER_STATEMENT = 500;
const SHARDS_PER_REGION = 64;
const WAIT_MS_MAX = 120_000;
const STOP_TIMEOUT_MS = 5_000;
const LOOK_EVERY_MS = 25;
const PAYLOAD = JSON.stringify({ text: "x".repeat(189) });
const CLOCK_TICK_US = 10_000;
const ROOT = join(import.meta.dir, "..", "..");

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

/** Measures one part; answers names and figures, and tells what CPU a job took in each process. */
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
    await stage.sink("lateness");
    const count = SPREAD_PER_S * SPREAD_SECONDS;
    await runLoad(stage, ["spread", String(Date.now() + SPREAD_LEAD_MS), String(count)]);
    const { samples } = await stage.untilReceived(count);
    const sorted = samples.map(([, figure]) => figure).toSorted((a, b) => a - b);
    return [
      [`lateness at ${SPREAD_PER_S}/s, p50 ms`, quantile(sorted, 0.5)],
      [`lateness at ${SPREAD_PER_S}/s, p99 ms`, quantile(sorted, 0.99)],
      [`lateness at ${SPREAD_PER_S}/s, least ms`, quantile(sorted, 0)],
      [`lateness at ${SPREAD_PER_S}/s, most ms`, quantile(sorted, 1)],
    ];
  },

  async immediate(stage) {
    await stage.sink("receipts");
    const answeredAt = new Map<string, number>(
      await runLoad(stage, ["immediate", String(IMMEDIATE_PER_S * IMMEDIATE_SECONDS)]),
    );
    const { samples } = await stage.untilReceived(answeredAt.size);
    const sorted = samples
      .map(([id, at]) => at - (answeredAt.get(id) ?? Number.NaN))
      .toSorted((a, b) => a - b);
    return [
      [`201 to receipt at ${IMMEDIATE_PER_S}/s, p50 ms`, quantile(sorted, 0.5)],
      [`201 to receipt at ${IMMEDIATE_PER_S}/s, p99 ms`, quantile(sorted, 0.99)],
    ];
  },

  async stored(stage, _seconds, tellCpu) {
    const figures: [string, number][] = [];
    for (const concurrency of [500, 2_000]) {
      await stage.setConcurrency(concurrency);
      await stage.sink("count");
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
  await stage.sink("count");
  const { createdCount } = await runLoad<{ createdCount: number }>(stage, ["flood", String(seconds)]);
  const endedAt = performance.now();
  const { count } = await stage.received();
  await stage.untilReceived(createdCount);
  await stage.untilSettled();
  return { createdCount, deliveredCount: count, drainMs: performance.now() - endedAt };
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

const quantile = (sorted: number[], part: number) =>
  sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))] ?? Number.NaN;

interface Receipts {
  count: number;
  /** Job ids with what the sink was told to record: milliseconds of lateness, or instants of receipt. */
  samples: [string, number][];
}

interface Stage {
  gatewayPort: number;
  key: string;
  sinkUrl: string;
  /** Begins anew, recording this. */
  sink(mode: SinkMode): Promise<void>;
  received(): Promise<Receipts>;
  untilReceived(count: number): Promise<Receipts>;
  /** Until nothing due is owed or on the wire. */
  untilSettled(): Promise<void>;
  setConcurrency(concurrency: number): Promise<void>;
  /** Commits jobs as the gateway does, but tells nobody. */
  store(count: number, dueAt: number): Promise<void>;
  /** So far, by process. */
  cpuUs(): Promise<Map<string, number>>;
  stop(): Promise<void>;
}

async function startStage(product: Product, profiled: string | undefined): Promise<Stage> {
  const stops: (() => Promise<unknown>)[] = [];
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
  stops: (() => Promise<unknown>)[],
): Promise<Omit<Stage, "stop">> {
  const database = await createTestDatabase("pipeline");
  stops.push(database.drop);
  await migrate(database.url);
  const db = openDatabase(database.url, { connections: 4, log });
  stops.push(db.close);
  const secretsKey = randomBytes(32);
  const { project, keys } = await createProjectWithKeys(db, createSeal(secretsKey), {
    name: "pipeline",
    plan: "enterprise",
    defaultRegion: "us-east",
  });
  // The load is one project's, whose plan would allow less.
  await changeProject(db, project.id, { requestsPerMinuteOverride: 1_000_000 }, testCause());

  const pids = new Map<string, number>([["load", 0]]);
  const spawn = (name: string, command: string[], environment: Record<string, string>) => {
    // Whatever ends the benchmark ends its processes.
    const bound = process.platform === "linux" ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
    const child = Bun.spawn(bound, {
      cwd: ROOT,
      env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "", ...environment },
      stdio: ["ignore", "ignore", "inherit"],
    });
    pids.set(name, child.pid);
    stops.push(async () => {
      // Asked to stop, so that a profile is written; a service that does not heed it is ended.
      child.kill("SIGTERM");
      const overdue = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
      await child.exited;
      clearTimeout(overdue);
    });
  };

  const sinkPort = await findFreePort();
  spawn("sink", [process.execPath, import.meta.path, "sink", String(sinkPort)], {});
  const gatewayPort = await findFreePort();
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
  const services = product === "cell" ? ["worker", "delivery", "gateway"] : ["standalone"];
  for (const service of services) {
    const opsPort = String(await findFreePort());
    const flags = service === profiled ? ["--cpu-prof", `--cpu-prof-dir=${tmpdir()}`] : [];
    spawn(service, [process.execPath, ...flags, `services/${service}/main.ts`], {
      ...environment,
      OPS_PORT: opsPort,
    });
    await until(`${service} is ready`, () => isOk(`http://127.0.0.1:${opsPort}/readyz`));
  }
  const sinkOrigin = `http://127.0.0.1:${sinkPort}`;
  await until("the sink is ready", () => isOk(`${sinkOrigin}/received`));

  const received = async () => (await (await fetch(`${sinkOrigin}/received`)).json()) as Receipts;
  return {
    gatewayPort,
    key: keys.production,
    sinkUrl: `${sinkOrigin}/hook`,
    async sink(mode) {
      await fetch(`${sinkOrigin}/${mode}`);
    },
    received,
    async untilReceived(count) {
      let receipts = await received();
      await until(`${count} jobs were received`, async () => {
        receipts = await received();
        return receipts.count >= count;
      });
      return receipts;
    },
    untilSettled: () =>
      until("everything was settled", async () => {
        const rows = await db.run("any_open", "SELECT 1 FROM open_jobs LIMIT 1", []);
        return rows.length === 0;
      }),
    async setConcurrency(concurrency) {
      await changeProject(db, project.id, { concurrencyOverride: concurrency }, testCause());
    },
    store: (count, dueAt) => storeJobs(db, project, `${sinkOrigin}/hook`, count, dueAt),
    async cpuUs() {
      const used = new Map([...pids].map(([name, pid]) => [name, pid === 0 ? loadCpuUs : cpuUsOf(pid)]));
      used.set("postgres", await postgresCpuUs(db));
      return used;
    },
  };
}

async function storeJobs(
  db: Database,
  project: ProjectRow,
  targetUrl: string,
  count: number,
  dueAt: number,
): Promise<void> {
  const ids = createIdSource(randomBytes);
  const lanes = new Set<string>();
  for (let stored = 0; stored < count; stored += STORED_PER_STATEMENT) {
    const jobs = Array.from({ length: Math.min(STORED_PER_STATEMENT, count - stored) }, () => ({
      id: ids.next(JOB_PREFIX, Date.now()),
      projectNo: project.no,
      environment: "production" as const,
      region: "us-east" as const,
      shard: shardOf(project.no, SHARDS_PER_REGION),
      targetUrl,
      payload: PAYLOAD,
      runAt: dueAt,
      maxAttempts: 5,
      baseSeconds: 10,
      capSeconds: 3_600,
      cause: null,
    }));
    await createJobs(db, jobs, lanes);
  }
}

/** What the load generators have used, each of which is gone by the time that it is asked for. */
let loadCpuUs = 0;

async function runLoad<Report>(stage: Stage, args: string[]): Promise<Report> {
  const child = Bun.spawn(
    [
      process.execPath,
      import.meta.path,
      "load",
      String(stage.gatewayPort),
      stage.key,
      stage.sinkUrl,
      ...args,
    ],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  const text = await new Response(child.stdout).text();
  if ((await child.exited) !== 0) throw new Error("the load generator failed");
  loadCpuUs += Number(child.resourceUsage()?.cpuTime.total ?? 0);
  return JSON.parse(text) as Report;
}

/** User and system time of a process, as the kernel counts it (proc(5), fields 14 and 15). */
function cpuUsOf(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ") ?? [];
  return (Number(fields[11]) + Number(fields[12])) * CLOCK_TICK_US;
}

/** The server's own processes and the backends of this database: others may be at work in the same server. */
async function postgresCpuUs(db: Database): Promise<number> {
  const rows = await db.run<{ own: number; others: number[] }>(
    "backends",
    `SELECT pg_backend_pid() AS own, coalesce(array_agg(pid) FILTER (WHERE datname <> current_database()), '{}') AS others
       FROM pg_stat_activity`,
    [],
  );
  const [{ own, others } = { own: 0, others: [] }] = rows;
  const postmaster = parentOf(own);
  let used = 0;
  for (const name of readdirSync("/proc")) {
    const pid = Number(name);
    if (!Number.isInteger(pid) || others.includes(pid)) continue;
    try {
      if (parentOf(pid) === postmaster) used += cpuUsOf(pid);
    } catch {
      // It has ended since the folder was read.
    }
  }
  return used;
}

const parentOf = (pid: number) =>
  Number(readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ")[1]);

async function isOk(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}

async function until(what: string, condition: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + WAIT_MS_MAX;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within ${WAIT_MS_MAX} ms: ${what}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

function findFreePort(): Promise<number> {
  const { promise, resolve, reject } = Promise.withResolvers<number>();
  const server = createServer();
  server.on("error", reject);
  server.listen(0, "127.0.0.1", () => {
    const address = server.address();
    server.close(() => resolve(typeof address === "object" && address !== null ? address.port : 0));
  });
  return promise;
}

/** The wall clock with fractions of a millisecond. */
const preciseNow = () => performance.timeOrigin + performance.now();

type SinkMode = "count" | "lateness" | "receipts";

function serveAsSink(port: number): void {
  let mode: SinkMode = "count";
  let count = 0;
  let samples: Receipts["samples"] = [];
  Bun.serve({
    hostname: "127.0.0.1",
    port,
    fetch(request) {
      if (request.method === "POST") {
        count++;
        if (mode !== "count") {
          const at = preciseNow();
          const dueAt = Date.parse(request.headers.get("service-scheduled-at") ?? "");
          samples.push([request.headers.get("service-job-id") ?? "", mode === "receipts" ? at : at - dueAt]);
        }
        return new Response("ok");
      }
      const word = new URL(request.url).pathname.slice(1);
      if (word === "received") return Response.json({ count, samples } satisfies Receipts);
      mode = word as SinkMode;
      count = 0;
      samples = [];
      return new Response();
    },
  });
}

async function generateLoad([
  port = "",
  key = "",
  targetUrl = "",
  mode = "",
  ...args
]: string[]): Promise<void> {
  const requestOf = (runAt: string | null) => {
    const when = runAt === null ? "" : `,"run_at":"${runAt}"`;
    const body = `{"target_url":"${targetUrl}","payload":${PAYLOAD}${when}}`;
    return `POST /v2/jobs HTTP/1.1\r\nHost: 127.0.0.1:${port}\r\nAuthorization: Bearer ${key}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`;
  };
  let report: unknown;
  if (mode === "flood") {
    const endAt = performance.now() + Number(args[0]) * 1_000;
    const request = requestOf(null);
    let createdCount = 0;
    await converse(
      Number(port),
      CONNECTIONS,
      () => (performance.now() < endAt ? request : null),
      () => {
        createdCount++;
      },
    );
    report = { createdCount };
  } else if (mode === "spread") {
    const firstAt = Number(args[0]);
    const count = Number(args[1]);
    let no = 0;
    const next = () =>
      no < count ? requestOf(new Date(firstAt + (no++ * 1_000) / SPREAD_PER_S).toISOString()) : null;
    await converse(Number(port), CONNECTIONS, next, () => {});
    if (Date.now() > firstAt) throw new Error("the first was due before the last was stored");
    report = {};
  } else {
    const answered: [string, number][] = [];
    const startedAt = performance.now();
    const request = requestOf(null);
    const asked: Promise<void>[] = [];
    for (let no = 0; no < Number(args[0]); no++) {
      await Bun.sleep(Math.max(0, startedAt + (no * 1_000) / IMMEDIATE_PER_S - performance.now()));
      let isSent = false;
      const once = () => {
        if (isSent) return null;
        isSent = true;
        return request;
      };
      asked.push(
        converse(Number(port), 1, once, (answer) => {
          answered.push([/"id":"(job_[^"]+)"/.exec(answer)?.[1] ?? "", preciseNow()]);
        }),
      );
    }
    await Promise.all(asked);
    report = answered;
  }
  process.stdout.write(JSON.stringify(report));
}

/** Asks over so many connections, on each one request after the other, until there is no next; each must be a 201. */
async function converse(
  port: number,
  connectionCount: number,
  next: () => string | null,
  onCreated: (answer: string) => void,
): Promise<void> {
  const ends = Array.from({ length: connectionCount }, async () => {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    let text = "";
    await Bun.connect({
      hostname: "127.0.0.1",
      port,
      socket: {
        open: ask,
        data(socket, chunk) {
          text += chunk.toString("latin1");
          const end = text.indexOf("\r\n\r\n");
          if (end === -1) return;
          const length = Number(/content-length: (\d+)/i.exec(text)?.[1]);
          if (text.length < end + 4 + length) return;
          if (!text.startsWith("HTTP/1.1 201")) return reject(new Error(text));
          onCreated(text);
          text = "";
          ask(socket);
        },
        close: () => resolve(),
        error: (_socket, error) => reject(error),
      },
    });
    function ask(socket: Bun.Socket): void {
      const request = next();
      if (request === null) socket.end();
      else socket.write(request);
    }
    return promise;
  });
  await Promise.all(ends);
}

const [role, ...args] = process.argv.slice(2);
if (role === "sink") serveAsSink(Number(args[0]));
else if (role === "load") await generateLoad(args);
else await main();
