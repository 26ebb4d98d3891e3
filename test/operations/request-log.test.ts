import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp-proxy.ts";

const UNSERVED = 20;
/** A payload's text of letters, since the digits of a time or a duration could match a number by chance. */
const CARD = "a-card-number";

let database: TestDatabase;
let nats: NatsServer;
let proxy: TcpProxy;
let gateway: ServiceProcess;
let key: string;

beforeAll(async () => {
  [database, nats] = await Promise.all([createMigratedDatabase("request_log"), startNatsServer()]);
  const secretsKey = randomBytes(32);
  const db = openPatientDatabase(database.url, 1);
  const terms = { name: "logged", plan: "scale", defaultRegion: "us-east" } as const;
  key = (await createProjectWithKeys(db, createSeal(secretsKey), terms)).keys.production;
  await db.close();
  const url = new URL(database.url);
  proxy = await startTcpProxy({ host: url.hostname, port: Number(url.port) });
  url.host = `127.0.0.1:${proxy.port}`;
  gateway = await startService("gateway", {
    DATABASE_URL: url.href,
    NATS_URL: nats.url,
    SECRETS_KEY: secretsKey.toString("base64"),
    LOG_LEVEL: "debug",
  });
});
afterAll(async () => {
  await gateway.end("SIGKILL");
  await Promise.all([nats.stop(), proxy.stop()]);
  await database.drop();
});

interface Line {
  level: number;
  msg: string;
  requestId?: string;
  status?: number;
  err?: { type: string };
}

const linesOf = (msg: string) =>
  gateway.output
    .split("\n")
    .slice(0, -1)
    .map((line) => JSON.parse(line) as Line)
    .filter((line) => line.msg === msg);

async function ask(method: string, path: string, body?: object, send: typeof fetchServed = fetchServed) {
  const response = await send(`http://127.0.0.1:${gateway.port}${path}`, {
    method,
    headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  await response.text();
  return { status: response.status, requestId: response.headers.get("request-id") ?? "" };
}

test("at LOG_LEVEL=debug each request has a log line with the id in its answer", async () => {
  const job = { target_url: "https://example.com/hook", payload: { card: CARD } };
  const asked = [
    { ...(await ask("POST", "/v2/jobs", job)), operation: "createJob", code: null },
    { ...(await ask("POST", "/v2/jobs", { runAt: "now" })), operation: "createJob", code: "invalid_request" },
    { ...(await ask("GET", "/v2/nothing")), operation: null, code: "resource_not_found" },
  ];
  expect(asked.map(({ status }) => status)).toEqual([201, 400, 404]);
  // A request that a busy gateway answered with 503 was sent again.
  const lines = () => linesOf("request.answered").filter(({ status }) => status !== 503);
  await until(() => lines().length >= asked.length);
  expect(lines()).toMatchObject(asked);
});

test("requests that fail for want of Postgres are logged by their ids with the reason, a flood of them in few lines", async () => {
  proxy.freeze();
  const answers = await Promise.all(
    Array.from({ length: UNSERVED }, () => ask("GET", "/v2/jobs", undefined, fetch)),
  );
  proxy.thaw();
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([503]));
  const lines = await until(() => linesOf("request.not_served").length > 0 && linesOf("request.not_served"));
  expect(lines.length).toBeLessThan(UNSERVED);
  for (const { requestId, err } of lines) {
    expect(answers.map((answer) => answer.requestId)).toContain(requestId ?? "");
    expect(err?.type).toBe("StoreUnavailable");
  }
});

test("no line of the request log holds a key or a payload", () => {
  for (const secret of [key, CARD, "example.com/hook"]) expect(gateway.output).not.toContain(secret);
});
