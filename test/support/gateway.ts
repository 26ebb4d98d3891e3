import { expect } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import net from "node:net";
import { FormatRegistry, type Static, type TSchema } from "@sinclair/typebox";
import pg from "pg";
import { startGateway } from "../../services/gateway/start.ts";
import type { Bus } from "../../shared/bus/bus.ts";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import type { Command } from "../../shared/bus/messages.ts";
import { ErrorBody, type ErrorView } from "../../shared/contract/error.ts";
import { Job } from "../../shared/contract/job.ts";
import { validatorOf } from "../../shared/contract/validator.ts";
import { type ErrorCode, STATUS_OF_CODE } from "../../shared/domain/errors.ts";
import { createIdSource, KEY_PREFIX, PROJECT_PREFIX, RUN_PREFIX } from "../../shared/domain/ids.ts";
import { type KeyScope, makeKey } from "../../shared/domain/key.ts";
import type { Plan } from "../../shared/domain/plan.ts";
import type { RunStatus } from "../../shared/domain/run.ts";
import { ENVIRONMENTS, type Environment, REGIONS, type Region } from "../../shared/domain/scope.ts";
import { makeSecret } from "../../shared/domain/signing.ts";
import type { TargetRules } from "../../shared/domain/target.ts";
import { NEWEST_API_VERSION } from "../../shared/domain/version.ts";
import { createLog, type LogLevel } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import { type Database, openDatabase } from "../../shared/store/database/database.ts";
import { addKey } from "../../shared/store/resources/keys.ts";
import { changeProject, createProject } from "../../shared/store/resources/projects.ts";
import { claimShortFirst, settleShortFirst } from "../../shared/store/test-support.ts";
import { testCause } from "./cause.ts";
import { openPatientDatabase, PATIENT } from "./database.ts";
import { createMigratedDatabase } from "./postgres.ts";

/** A gateway on a real socket over a migrated database of its own, and what tests need to drive it. */
export interface TestGateway {
  port: number;
  db: Database;
  bus: Bus;
  /** The commands that workers have been sent so far. */
  commands: Command[];
  /** Adds a project with a request rate that no test reaches, unless another rate is asked for. */
  addProject(plan?: Plan, options?: { requestRate?: "of its plan" | number }): Promise<TestProject>;
  /** Starts another gateway over the same database. */
  startMate(options?: {
    publicUrl?: string;
    receiveMs?: number;
    targets?: TargetRules;
  }): Promise<{ port: number; stop(): Promise<void> }>;
  addKey(project: TestProject, key: Partial<KeyTerms>): Promise<{ id: string; key: string }>;
  call(method: string, path: string, request?: CallOptions): Promise<Answer>;
  /** Sends exactly these bytes, and reads until the answer is complete or the connection ends. */
  send(bytes: string | Uint8Array, port?: number): Promise<string>;
  createJob(project: TestProject, fields?: object): Promise<JobView>;
  /** Claims the job's next attempt, as worker and delivery would, and leaves it on the wire. */
  claim(project: TestProject, job: JobView, attempt: number): Promise<{ runId: string }>;
  /** Claims the attempt and settles it. */
  attempt(
    project: TestProject,
    job: JobView,
    attempt: number,
    outcome: { status: Exclude<RunStatus, "running">; leaves: "queued" | "succeeded" | "failed" },
  ): Promise<{ runId: string }>;
  /** Runs a statement beside the service, as its operator could. */
  query<Row extends pg.QueryResultRow>(text: string, values?: unknown[]): Promise<Row[]>;
  /** The number of rows in every table, except those that also count refused requests. */
  countRows(): Promise<Record<string, number>>;
  stop(): Promise<void>;
}

export interface TestProject {
  no: number;
  id: string;
  /** The keys as clients send them. */
  development: string;
  production: string;
}

export interface KeyTerms {
  environment: Environment;
  scope: KeyScope;
  expiresAt: Date | null;
}

export interface CallOptions {
  key?: string;
  /** An object is sent as JSON; a text as it is. */
  body?: object | string;
  headers?: Record<string, string>;
  /** The port of another gateway. */
  port?: number;
}

export interface Answer {
  status: number;
  headers: Headers;
  text: string;
}

export type JobView = Static<typeof Job>;

export const TARGET_URL = "https://example.com/hook";
const SHARDS_PER_REGION = 64;
const CONNECTIONS = 4;
/** A slow machine is no outage of Postgres, except in the tests that have one. */
const PATIENCE_MS = 30_000;
const HIGH_REQUEST_RATE = 1_000_000;
const REQUEST_ID_PATTERN = /^req_[0-9a-z]{26}$/;
const TIMESTAMP_PATTERN = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

/**
 * `via` puts something between the gateway and its database; the gateway then waits only as long as the API promises,
 * unless `isPatient`. `logLevel` lets a test that provokes bugs leave them out of the log. `now` is the gateway's clock,
 * which a test may move. `run` is called around each statement of the gateway, and is told the statement's name and
 * first value.
 */
export async function startTestGateway(
  options: {
    via?: (databaseUrl: string) => Promise<string>;
    isPatient?: boolean;
    logLevel?: LogLevel;
    now?: () => number;
    run?: <Row>(act: () => Promise<Row[]>, name: string, first: unknown) => Promise<Row[]>;
  } = {},
): Promise<TestGateway> {
  const database = await createMigratedDatabase("gateway");
  const log = createLog({ level: options.logLevel ?? "error", name: "test" });
  const { via, isPatient = via === undefined } = options;
  const url = via === undefined ? database.url : await via(database.url);
  const db = isPatient
    ? openPatientDatabase(url, CONNECTIONS)
    : openDatabase(url, { connections: CONNECTIONS, log });
  const direct = openPatientDatabase(database.url, CONNECTIONS);
  const beside = new pg.Pool({ connectionString: database.url, max: 1, options: PATIENT });
  // The end of a connection may arrive after its database was dropped.
  beside.on("error", () => undefined);
  const bus = createInProcessBus(log);
  const commands: Command[] = [];
  bus.consumeCommands([...REGIONS], (command) => commands.push(command));
  const seal = createSeal(randomBytes(32));
  const gatewayOptions = {
    host: "127.0.0.1",
    port: 0,
    bus,
    clock: { now: options.now ?? (() => Date.now()), stop() {} },
    log,
    metrics: createMetrics(),
    shardsPerRegion: SHARDS_PER_REGION,
    targets: { allowInsecure: false, own: [] },
    publicUrl: null,
    seal,
    storeTimeMsMax: isPatient ? PATIENCE_MS : undefined,
  };
  const { run } = options;
  const seen: Database =
    run === undefined
      ? db
      : { ...db, run: (name, text, values) => run(() => db.run(name, text, values), name, values[0]) };
  const gateway = await startGateway({ ...gatewayOptions, db: seen });
  const { port } = gateway;
  const ids = createIdSource(randomBytes);
  const nodeId = await addNode(direct, {
    kind: "delivery",
    name: "test",
    regions: REGIONS,
    process: "test",
  });

  const test: TestGateway = {
    port,
    db: direct,
    bus,
    commands,

    startMate: (mate = {}) => startGateway({ ...gatewayOptions, ...mate, db: direct }),

    async addProject(plan = "pro", { requestRate = HIGH_REQUEST_RATE } = {}) {
      const keys = ENVIRONMENTS.map((environment) => makeTestKey({ environment }));
      const row = await createProject(
        direct,
        {
          id: ids.next(PROJECT_PREFIX, Date.now()),
          name: "Test",
          plan,
          defaultRegion: "us-east",
          apiVersion: NEWEST_API_VERSION,
          keys: keys.map(({ row }) => row),
          secrets: ENVIRONMENTS.map((environment) => ({
            id: ids.next(KEY_PREFIX, Date.now()),
            environment,
            sealed: seal.seal(makeSecret(randomBytes)),
          })),
        },
        testCause(),
      );
      if (requestRate !== "of its plan") {
        await changeProject(direct, row.id, { requestsPerMinuteOverride: requestRate }, testCause());
      }
      const [development, production] = keys.map(({ key }) => key);
      if (development === undefined || production === undefined) throw new Error("a key is missing");
      return { no: row.no, id: row.id, development, production };
    },

    async addKey(project, terms) {
      const { key, row } = makeTestKey(terms);
      await addKey(direct.drizzle, { ...row, projectNo: project.no });
      return { id: row.id, key };
    },

    async call(method, path, { key, body, headers = {}, port: asked = port } = {}) {
      const response = await fetch(`http://127.0.0.1:${asked}${path}`, {
        method,
        headers: {
          ...(key === undefined ? {} : { Authorization: `Bearer ${key}` }),
          ...(body === undefined ? {} : { "Content-Type": "application/json" }),
          ...headers,
        },
        ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) }),
      });
      expect(response.headers.get("request-id")).toMatch(REQUEST_ID_PATTERN);
      return { status: response.status, headers: response.headers, text: await response.text() };
    },

    send: (bytes, asked = port) => send(asked, bytes),

    async createJob(project, fields = {}) {
      const answer = await test.call("POST", "/v2/jobs", {
        key: project.production,
        body: { target_url: TARGET_URL, ...fields },
      });
      return readAs(Job, answer, 201);
    },

    async claim(project, job, attempt) {
      const runId = ids.next(RUN_PREFIX, Date.now());
      const [claimed] = await claimShortFirst(direct, nodeId ?? 0, [
        { ...placeOf(project, job), jobId: job.id, attempt, runId },
      ]);
      expect(claimed).toMatchObject({ kind: "granted" });
      // An attempt of a manual retry has its run already.
      return { runId: claimed?.kind === "granted" ? claimed.attempt.runId : runId };
    },

    async attempt(project, job, attempt, { status, leaves }) {
      const { runId } = await test.claim(project, job, attempt);
      await settleShortFirst(direct, [
        {
          ...placeOf(project, job),
          shard: null,
          jobId: job.id,
          runId,
          status,
          responseStatus: status === "timed_out" ? null : status === "succeeded" ? 200 : 500,
          error: status === "succeeded" ? null : "it broke",
          durationMs: 12,
          next: leaves === "queued" ? { status: leaves, waitMs: 0 } : { status: leaves },
        },
      ]);
      return { runId };
    },

    async query<Row extends pg.QueryResultRow>(text: string, values: unknown[] = []) {
      return (await beside.query<Row>(text, values)).rows;
    },

    async countRows() {
      const tables = await test.query<{ name: string }>(
        "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'rate_ticks' ORDER BY 1",
      );
      const counts: Record<string, number> = {};
      for (const { name } of tables) {
        const [row] = await test.query<{ count: string }>(`SELECT count(*) FROM ${name}`);
        counts[name] = Number(row?.count);
      }
      return counts;
    },

    async stop() {
      await gateway.stop();
      await bus.close();
      await Promise.all([db.close(), direct.close(), beside.end()]);
      await database.drop();
    },
  };
  return test;

  function makeTestKey({ environment = "production", scope = "full", expiresAt = null }: Partial<KeyTerms>) {
    const key = makeKey(environment, randomBytes);
    const hash = createHash("sha256").update(key).digest();
    const row = { id: ids.next(KEY_PREFIX, Date.now()), environment, scope, name: null, hash, expiresAt };
    return { key, row };
  }
}

function placeOf(
  project: TestProject,
  job: JobView,
): { projectNo: number; environment: Environment; region: Region } {
  return { projectNo: project.no, environment: "production", region: job.region };
}

FormatRegistry.Set("date-time", (text) => TIMESTAMP_PATTERN.test(text));

/** The answer's body. Expects it to be exactly what the schema documents. */
export function readAs<Schema extends TSchema>(schema: Schema, answer: Answer, status = 200): Static<Schema> {
  if (answer.status !== status)
    throw new Error(`expected ${status}, not ${answer.status}: ${answer.text.slice(0, 500)}`);
  expect(answer.headers.get("content-type")).toBe("application/json");
  return validatorOf(schema)(JSON.parse(answer.text));
}

/** The error of a refusal. Expects the documented envelope with the code's own status. */
export function readRefusal(answer: Answer, code: ErrorCode, param?: string): ErrorView["error"] {
  const { error } = readAs(ErrorBody, answer, STATUS_OF_CODE[code]);
  expect(error.code).toBe(code);
  expect(error.param).toBe(param);
  expect(error.request_id).toBe(answer.headers.get("request-id") ?? "");
  return error;
}

/** The answer that came over a bare socket. */
export function parseRaw(text: string): Answer {
  const end = text.indexOf("\r\n\r\n");
  const [statusLine = "", ...lines] = text.slice(0, end).split("\r\n");
  const headers = new Headers(lines.map((line): [string, string] => splitHeader(line)));
  return { status: Number(statusLine.split(" ")[1]), headers, text: text.slice(end + 4) };
}

function splitHeader(line: string): [string, string] {
  const colon = line.indexOf(":");
  return [line.slice(0, colon), line.slice(colon + 1).trim()];
}

const RAW_ANSWER_TIMEOUT_MS = 60_000;

function send(port: number, bytes: string | Uint8Array): Promise<string> {
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let text = "";
  const socket = net.connect(port, "127.0.0.1", () => socket.write(bytes));
  socket.setTimeout(RAW_ANSWER_TIMEOUT_MS, () => socket.destroy(new Error("no answer came")));
  socket.on("data", (chunk: Buffer) => {
    text += chunk.toString();
    const length = /\r\ncontent-length: (\d+)/i.exec(text)?.[1];
    const start = text.indexOf("\r\n\r\n") + 4;
    if (length !== undefined && start >= 4 && text.length >= start + Number(length)) socket.end();
  });
  socket.on("error", reject);
  socket.on("close", () => resolve(text));
  return promise;
}
