import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createLog } from "../../../shared/platform/log.ts";
import { type Database, openDatabase } from "../../../shared/store/database/database.ts";
import { makeAuthority } from "../../runtime-contract/certificates.ts";
import { claimPort } from "../../support/port.ts";
import { createTestDatabase, hasOwnServer } from "../../support/postgres.ts";
import { PAYLOAD } from "../harness/jobs.ts";
import { type Load, type LoadReport, RUN_AT } from "../harness/load.ts";
import { beginUse, shareOf, type Watched } from "../harness/meter.ts";
import { cpuUsOf, findServer, isOk, runProgram, spawnBound, until } from "../harness/processes.ts";
import { type Counts, type Received, SINK, type SinkSettings } from "../harness/sink.ts";
import { vacuumAndWrite } from "../harness/vacuum.ts";
import type { Prepared, PrepareProduct, Wish } from "./products/product.ts";

const CONNECTIONS = 64;
const BATCH = 100;
const LOOK_EVERY_MS = 100;
/** More requests than any product has in flight. Bun's `fetch` lets only 256 through by default. */
const HTTP_REQUESTS_MAX = "4096";
/** Names the benchmark's own connection to Postgres. The CPU of its backend is charged to no product. */
const OWN_NAME = "jobwheel-bench";
const log = createLog({ name: "peers", level: "error" });

/** One measurement. */
export interface Measured {
  /** The name of the measured thing, in a part that measures several things. */
  what?: string;
  /** The measurement's place on a picture's axis. */
  x?: number;
  /** The figures by names that tell their units. */
  figures: Record<string, number>;
  /** Microseconds a job, by process; "all" is the sum of the product's processes. */
  cpuUs: Record<string, number>;
  /** The same of the load generator, the sink and the benchmark itself. */
  apartUs: Record<string, number>;
  othersCores: number;
}

/** A product that was started for one measurement, with a sink for its deliveries and a load generator. */
export interface Stage {
  /** The start of the product's own processes until all were ready, including work that makes them fast afterwards. */
  starting: Measured;
  /** Creates jobs one by one over HTTP, as fast as they are answered unless `wish` sets a rate. Due at `when`, else now. */
  load(wish: Partial<Load>, when?: string): Promise<LoadReport>;
  /** Creates jobs in batches over HTTP, each due at `when`, as fast as they are answered. Answers their number. */
  loadBatches(limit: { count: number } | { seconds: number }, when: number): Promise<number>;
  /**
   * Has Postgres analyze its tables, as autovacuum does a minute after they were filled. Until then Postgres plans for
   * tables of ten pages, and a library whose plans depend on that pays several times as much for each job.
   */
  analyze(): Promise<unknown>;
  /** Has Postgres do what storing has left to it, so that later measurements do not pay for that. */
  vacuumAndWrite(): Promise<void>;
  beginReceiving(kept?: string): Promise<unknown>;
  counts(): Promise<Counts>;
  /** Resolves once so many jobs were received. Throws if there are more, or a body or a signature was wrong. */
  untilReceived(count: number): Promise<Received>;
  /** Resolves once nothing is due or under way. */
  untilSettled(): Promise<void>;
  /** Throws unless `left` jobs are stored in the end. They are counted after the CPU has been read. */
  measure(
    act: () => Promise<{ jobs: number; left: number; figures: Record<string, number> }>,
    about?: Pick<Measured, "what" | "x">,
  ): Promise<Measured>;
  stop(): Promise<void>;
}

export interface StageSettings {
  prepare: PrepareProduct;
  wish: Wish;
  profiled: string | undefined;
}

export async function startStage(settings: StageSettings): Promise<Stage> {
  const stops: (() => unknown)[] = [];
  const stop = async () => {
    for (const each of stops.splice(0).reverse()) await each();
  };
  try {
    return { ...(await compose(settings, stops)), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function compose(
  { prepare, wish, profiled }: StageSettings,
  stops: (() => unknown)[],
): Promise<Omit<Stage, "stop">> {
  const folder = mkdtempSync(join(tmpdir(), "peers-"));
  stops.push(() => rmSync(folder, { recursive: true, force: true }));
  const database = await createTestDatabase("peers");
  stops.push(database.drop);
  const db = openDatabase(`${database.url}?application_name=${OWN_NAME}`, { connections: 1, log });
  stops.push(db.close);
  const authority = makeAuthority();
  stops.push(authority.remove);
  const product = await prepare({
    ...{ wish, databaseUrl: database.url, db, folder, profiled, stops },
    environment: { NODE_EXTRA_CA_CERTS: authority.certPath, BUN_CONFIG_MAX_HTTP_REQUESTS: HTTP_REQUESTS_MAX },
  });

  const [httpPort, httpsPort] = [await claimPort(), await claimPort()];
  const { cert, key } = authority.issue("DNS:*.jobs.localhost");
  const tls = { port: httpsPort, cert: join(folder, "sink.pem"), key: join(folder, "sink.key") };
  writeFileSync(tls.cert, cert);
  writeFileSync(tls.key, key);
  const sinkSettings: SinkSettings = { port: httpPort, tls, body: PAYLOAD, secrets: product.secrets };
  const sinkPid = spawnBound([process.execPath, SINK, JSON.stringify(sinkSettings)], {}, stops);
  const sink = `http://127.0.0.1:${httpPort}`;
  await until("the sink is ready", () => isOk(sink));

  const senders = makeSenders(product, wish, { httpPort, httpsPort });
  const toRun = { port: product.port, key: "", body: "", seconds: 0, connections: CONNECTIONS };
  let loadCpuUs = 0;
  const run = async (load: Omit<Load, keyof typeof toRun> & Partial<Load>) => {
    const { report, cpuUs } = await runProgram<LoadReport>("load.ts", { ...toRun, ...load } satisfies Load);
    loadCpuUs += cpuUs;
    return report;
  };
  const watched: Watched = {
    pids: product.pids,
    apart: { sink: () => cpuUsOf(sinkPid), load: () => loadCpuUs },
    postgres: {
      pid: await findServer(db),
      isOwn: hasOwnServer(),
      isCounted: product.usesPostgres,
      findOthers: () => findOthers(db),
    },
  };
  const starting = await measureStart(product, watched);
  const counts = async () => (await (await fetch(`${sink}/counts`)).json()) as Counts;

  return {
    starting,
    load: (load, when) =>
      run({
        ...{ path: "/v2/jobs", ratePerS: null },
        turns: senders.map((sender) => ({ key: sender.key, body: jobBody(sender.target, when) })),
        ...load,
      }),
    async loadBatches(limit, when) {
      const size = "count" in limit ? Math.min(BATCH, Math.ceil(limit.count / product.keys.length)) : BATCH;
      const turns = makeBatches(senders, size, new Date(when).toISOString());
      const bounds = "count" in limit ? { count: Math.ceil(limit.count / size) } : limit;
      const { answeredCount } = await run({ path: "/v2/jobs/batch", ratePerS: null, turns, ...bounds });
      return answeredCount * size;
    },
    analyze: () => db.run("analyze", "ANALYZE", []),
    vacuumAndWrite: () => vacuumAndWrite(database.url),
    beginReceiving: (kept = "") => fetch(`${sink}/begin?jobs&${kept}`),
    counts,
    async untilReceived(count) {
      await until(`${count} jobs were received`, async () => (await counts()).jobCount >= count);
      const received = (await (await fetch(sink)).json()) as Received;
      if (received.jobCount !== count) throw new Error(`${received.jobCount} jobs came instead of ${count}`);
      if (received.wrongCount > 0) throw new Error(`${received.wrongCount} requests were wrong`);
      return received;
    },
    untilSettled: () =>
      until("everything was settled", async () => !(await product.isOwing()), LOOK_EVERY_MS),
    async measure(act, about = {}) {
      const endUse = await beginUse(watched);
      const { jobs, left, figures } = await act();
      const { cpuUs, apartUs, othersCores } = await endUse();
      const stored = await product.countStored();
      if (stored !== left) throw new Error(`${stored} jobs are stored instead of ${left}`);
      cpuUs.set("all", sumOf(cpuUs));
      return { ...about, figures, cpuUs: shareOf(cpuUs, jobs), apartUs: shareOf(apartUs, jobs), othersCores };
    },
  };
}

async function measureStart(product: Prepared, watched: Watched): Promise<Measured> {
  const endUse = await beginUse(watched);
  const begunAt = performance.now();
  await product.start();
  const tookMs = performance.now() - begunAt;
  const { cpuUs, othersCores } = await endUse();
  const each = [["all", sumOf(cpuUs)] as const, ...cpuUs].map(([name, us]) => [
    `CPU, ms: ${name}`,
    us / 1_000,
  ]);
  const figures = { "until ready, ms": tookMs, ...Object.fromEntries(each) };
  return { what: "the start", figures, cpuUs: {}, apartUs: {}, othersCores };
}

const sumOf = (cpuUs: ReadonlyMap<string, number>) => [...cpuUs.values()].reduce((sum, us) => sum + us, 0);

interface Sender {
  key: string;
  target: string;
}

/** Each project has its own path at the sink, by which the sink knows the signature. */
function makeSenders(
  { keys }: Prepared,
  { names, isSecure = false }: Wish,
  { httpPort, httpsPort }: { httpPort: number; httpsPort: number },
): Sender[] {
  const [scheme, port] = isSecure ? ["https", httpsPort] : ["http", httpPort];
  if (names === undefined && !isSecure)
    return keys.map((key, index) => ({ key, target: `http://127.0.0.1:${port}/hook/${index}` }));
  // Names under localhost are this machine (RFC 6761).
  return Array.from({ length: names ?? 1 }, (_, index) => ({
    key: keys[0] ?? "",
    target: `${scheme}://n${index}.jobs.localhost:${port}/hook/0`,
  }));
}

/** Batches of jobs of one key each, in which the key's targets take turns. */
function makeBatches(senders: Sender[], size: number, when: string): { key: string; body: string }[] {
  const batches: { key: string; body: string }[] = [];
  for (const [key, own] of Map.groupBy(senders, (sender) => sender.key)) {
    for (let begun = 0; begun < own.length; begun += size) {
      const jobs = Array.from({ length: size }, (_, index) =>
        jobBody(own[(begun + index) % own.length]?.target ?? "", when),
      );
      batches.push({ key, body: `{"jobs":[${jobs.join(",")}]}` });
    }
  }
  return batches;
}

function jobBody(target: string, when?: string): string {
  const runAt = when === undefined ? "" : `,"run_at":"${when}"`;
  return `{"target_url":"${target}","payload":${PAYLOAD}${runAt}}`;
}

/** The due time of a job that must stay in the future during all measurements. */
export const tomorrow = () => Date.now() + 86_400_000;
export { RUN_AT };

/** Finds this benchmark's own backend, and the backends of other databases, since others may use the server. */
async function findOthers(db: Database): Promise<number[]> {
  const rows = await db.run<{ pids: number[] }>(
    "other_backends",
    `SELECT coalesce(array_agg(pid), '{}') AS pids FROM pg_stat_activity
      WHERE datname <> current_database() OR application_name = $1`,
    [OWN_NAME],
  );
  return rows[0]?.pids ?? [];
}
