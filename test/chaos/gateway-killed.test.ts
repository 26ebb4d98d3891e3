import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createIdSource, RUN_PREFIX } from "../../shared/domain/ids.ts";
import { REGIONS } from "../../shared/domain/scope.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { claimAttempts } from "../../shared/store/queue/claim.ts";
import { settleAttempts } from "../../shared/store/queue/settle.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp-proxy.ts";

/** The gateway's statement reaches the database, and the database's answer never reaches the gateway, which is then killed. */

const ids = createIdSource(randomBytes);
const secretsKey = randomBytes(32);
let database: TestDatabase;
let db: Database;
let nats: NatsServer;
let settings: Record<string, string>;
let mate: ServiceProcess;
let project: Awaited<ReturnType<typeof createProjectWithKeys>>;
let nodeId: number;

beforeAll(async () => {
  database = await createMigratedDatabase("killed");
  db = openPatientDatabase(database.url, 2);
  nats = await startNatsServer();
  const terms = { name: "chaos", plan: "scale", defaultRegion: "us-east" } as const;
  project = await createProjectWithKeys(db, createSeal(secretsKey), terms);
  const node = { kind: "delivery", name: "test", regions: REGIONS, process: "test" } as const;
  nodeId = (await addNode(db, node)) ?? 0;
  settings = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
  };
  mate = await startService("gateway", settings);
});
afterAll(async () => {
  await mate.end("SIGKILL");
  await nats.stop();
  await db.close();
  await database.drop();
});

const requestOf = (key: string, body: object | null): RequestInit => ({
  method: "POST",
  headers: {
    Authorization: `Bearer ${project.keys.production}`,
    "Idempotency-Key": key,
    "Content-Type": "application/json",
  },
  body: body === null ? null : JSON.stringify(body),
});
const post = (path: string, key: string, body: object | null) =>
  fetchServed(`http://127.0.0.1:${mate.port}${path}`, requestOf(key, body));

const job = { target_url: "https://example.com/hook", retry_policy: { max_attempts: 1 } };
const count = async (table: "jobs" | "idempotency_keys") =>
  Number((await db.run<{ count: string }>(`count_${table}`, `SELECT count(*) FROM ${table}`, []))[0]?.count);
const countRuns = async () => {
  const text =
    "SELECT (SELECT count(*) FROM runs) + (SELECT count(*) FROM open_jobs WHERE run_id IS NOT NULL) AS count";
  return Number((await db.run<{ count: string }>("count_runs", text, []))[0]?.count);
};

/** A run that has failed for good. */
async function failedRun(): Promise<string> {
  const created = (await (await post("/v2/jobs", ids.next("", Date.now()), job)).json()) as { id: string };
  const runId = ids.next(RUN_PREFIX, Date.now());
  const place = { projectNo: project.project.no, environment: "production", region: "us-east" } as const;
  await claimAttempts(db, nodeId, [{ ...place, jobId: created.id, attempt: 1, runId }]);
  const outcome = { status: "failed", responseStatus: 500, error: "no", durationMs: 1 } as const;
  const settlement = { ...place, ...outcome, shard: null, jobId: created.id, runId };
  await settleAttempts(db, [{ ...settlement, next: { status: "failed" } }]);
  return runId;
}

/** Starts a gateway behind a proxy: a statement of that name reaches the database, and its answer is dropped. */
async function startDeafGateway(statement: string): Promise<{ deaf: ServiceProcess; proxy: TcpProxy }> {
  const url = new URL(database.url);
  const proxy = await startTcpProxy({ host: url.hostname, port: Number(url.port) });
  url.hostname = "127.0.0.1";
  url.port = String(proxy.port);
  const deaf = await startService("gateway", { ...settings, DATABASE_URL: url.href });
  proxy.withholdAnswersTo(statement);
  return { deaf, proxy };
}

test.each([
  { statement: "create_jobs_keyed", path: async () => "/v2/jobs", body: job, jobs: 1, runs: 0 },
  {
    statement: "create_jobs_keyed",
    path: async () => "/v2/jobs/batch",
    body: { jobs: [job, job, job] },
    jobs: 3,
    runs: 0,
  },
  {
    statement: "retry_run",
    path: async () => `/v2/runs/${await failedRun()}/retry`,
    body: null,
    jobs: 0,
    runs: 1,
  },
])(
  "a gateway killed between commit and answer ($statement): the retry gets the answer of what was made, and nothing is made twice",
  async ({ statement, path: makePath, body, jobs, runs }) => {
    const path = await makePath();
    const { deaf, proxy } = await startDeafGateway(statement);
    const key = ids.next("", Date.now());
    const before = {
      jobs: await count("jobs"),
      keys: await count("idempotency_keys"),
      runs: await countRuns(),
    };
    const ask = () =>
      fetch(`http://127.0.0.1:${deaf.port}${path}`, requestOf(key, body)).then(
        ({ status }) => status,
        () => "no answer",
      );
    let lost = ask();
    for (;;) {
      const answer = await Promise.race([lost, Bun.sleep(5)]);
      if ((await count("idempotency_keys")) > before.keys) break;
      if (answer === undefined) continue;
      // A busy gateway may give Postgres up before its statement was sent. Nothing is made then.
      expect(answer).toBe(503);
      lost = ask();
    }
    await deaf.end("SIGKILL");
    // The answer is 503 if this took longer than a gateway waits for Postgres: the outcome is just as unknown.
    expect(["no answer", 503]).toContain(await lost);

    const retried = await post(path, key, body);
    const text = await retried.text();
    expect({ status: retried.status, replayed: retried.headers.get("idempotent-replayed") }).toEqual({
      status: 201,
      replayed: "true",
    });
    // The same answer comes from a gateway that has never seen the request.
    await deaf.startAgain();
    expect(await (await post(path, key, body)).text()).toBe(text);
    expect({
      jobs: await count("jobs"),
      keys: await count("idempotency_keys"),
      runs: await countRuns(),
    }).toEqual({
      jobs: before.jobs + jobs,
      keys: before.keys + 1,
      runs: before.runs + runs,
    });
    await deaf.end("SIGKILL");
    await proxy.stop();
  },
);
