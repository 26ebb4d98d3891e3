import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { SQL } from "bun";
import { type CreatedProject, createProjectWithKeys } from "../../services/admin/create-project.ts";
import { runProgram } from "../../services/admin/test-support.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase } from "../support/database.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";

/**
 * No log line holds a customer's values, even if Postgres refuses to write the values and names them: in its error's
 * message, in the detail, and in the parameters that the query builder passes along.
 */

const CANARY = "canary";
/** The errors of a refusing table: 23514 names the whole row as its detail, 22P02 quotes the value, 53100 is an outage. */
const FAULTS = ["23514", "22P02", "53100"] as const;

let database: TestDatabase;
let nats: NatsServer;
let gateway: ServiceProcess;
let sql: SQL;
let project: CreatedProject;
let environment: Record<string, string>;

beforeAll(async () => {
  [database, nats] = await Promise.all([createMigratedDatabase("log_values"), startNatsServer()]);
  sql = new SQL(database.url, { max: 1 });
  const secretsKey = randomBytes(32);
  const db = openPatientDatabase(database.url, 1);
  const terms = { name: "logged", plan: "scale", defaultRegion: "us-east" } as const;
  project = await createProjectWithKeys(db, createSeal(secretsKey), terms);
  await db.close();
  environment = { DATABASE_URL: database.url, SECRETS_KEY: secretsKey.toString("base64") };
  gateway = await startService("gateway", { ...environment, NATS_URL: nats.url, LOG_LEVEL: "debug" });
});
afterAll(async () => {
  await gateway.end("SIGKILL");
  await sql.end();
  await nats.stop();
  await database.drop();
});

async function ask(method: string, path: string, body?: object, send: typeof fetchServed = fetchServed) {
  const response = await send(`http://127.0.0.1:${gateway.port}${path}`, {
    method,
    headers: { authorization: `Bearer ${project.keys.production}`, "content-type": "application/json" },
    ...(body !== undefined && { body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as { id: string; secret: string } };
}

/** Makes the table refuse every write while `act` runs. */
async function withFault<T>(table: string, fault: string, act: () => Promise<T>): Promise<T> {
  await sql.unsafe(`
    CREATE OR REPLACE FUNCTION refuse_row() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF '${fault}' = '22P02' THEN RAISE EXCEPTION 'invalid input: "%"', NEW USING ERRCODE = '22P02'; END IF;
      RAISE EXCEPTION 'refused' USING ERRCODE = '${fault}', DETAIL = 'Failing row contains ' || NEW;
    END $$;
    CREATE TRIGGER broken BEFORE INSERT OR UPDATE ON ${table} FOR EACH ROW EXECUTE FUNCTION refuse_row()`);
  try {
    return await act();
  } finally {
    await sql.unsafe(`DROP TRIGGER broken ON ${table}`);
  }
}

const url = `https://example.com/${CANARY}-url`;
const webhook = { url, events: ["job.failed"], description: `${CANARY}-description` };
const schedule = {
  name: `${CANARY}-name`,
  cron: "0 * * * *",
  target_url: url,
  payload: { of: `${CANARY}-payload` },
};
const job = { target_url: url, payload: { card: `${CANARY}-payload` } };

/** Each write of customers' values: the table that it writes, and the request, made for ids that exist. */
const WRITES: [string, (ids: { webhook: string; schedule: string }) => [string, string, object?]][] = [
  ["webhooks", () => ["POST", "/v2/webhooks", webhook]],
  [
    "webhooks",
    (ids) => ["PATCH", `/v2/webhooks/${ids.webhook}`, { url: `${url}-2`, description: `${CANARY}-2` }],
  ],
  ["webhooks", (ids) => ["POST", `/v2/webhooks/${ids.webhook}/rotate`]],
  ["jobs", () => ["POST", "/v2/jobs", job]],
  ["jobs", () => ["POST", "/v2/jobs/batch", { jobs: [job, job] }]],
  ["schedules", () => ["POST", "/v2/schedules", { ...schedule, name: `${CANARY}-other` }]],
  ["schedules", (ids) => ["PATCH", `/v2/schedules/${ids.schedule}`, { payload: { of: `${CANARY}-3` } }]],
  [
    "schedules",
    (ids) => ["PATCH", `/v2/schedules/${ids.schedule}`, { name: `${CANARY}-3`, target_url: `${url}-3` }],
  ],
  ["schedules", () => ["PUT", `/v2/schedules/by-name/${CANARY}-put`, { ...schedule, name: `${CANARY}-put` }]],
  ["signing_secrets", () => ["POST", "/v2/project/signing-secret/rotate"]],
  ["api_keys", () => ["POST", "/v2/keys", { scope: "read", name: `${CANARY}-key` }]],
  ["projects", () => ["PATCH", "/v2/project", { name: `${CANARY}-project` }]],
];

describe.each(FAULTS)("a table that answers every write with %s", (fault) => {
  test("is logged, without any of the values to be written", async () => {
    const made = await ask("POST", "/v2/webhooks", webhook);
    const scheduled = await ask("POST", "/v2/schedules", { ...schedule, name: `${CANARY}-${fault}` });
    expect([made.status, scheduled.status]).toEqual([201, 201]);
    const sealed: { hex: string }[] = await sql`SELECT encode(sealed_secret, 'hex') AS hex FROM webhooks`;
    for (const [table, requestOf] of WRITES) {
      const [method, path, body] = requestOf({ webhook: made.body.id, schedule: scheduled.body.id });
      const from = gateway.output.length;
      // The gateway logs an outage's refusals only once a second, so the request is repeated until a line comes.
      // A busy machine may look like another outage, which has lines of its own.
      const isOfFault = (line: string) =>
        /request\.(failed|not_served)/.test(line) && line.includes(`"code":"${fault}"`);
      await withFault(table, fault, () =>
        until(async () => {
          const isOutage = fault === "53100";
          const { status } = await ask(method, path, body, isOutage ? fetch : fetchServed);
          expect(status, path).toBe(isOutage ? 503 : 500);
          return gateway.output.slice(from).split("\n").some(isOfFault);
        }),
      );
    }
    for (const word of [CANARY, "Failing row", "params", made.body.secret, ...sealed.map(({ hex }) => hex)]) {
      expect(gateway.output).not.toContain(word);
    }
  });
});

test("an operator's command that Postgres refuses prints no keys and no secrets", async () => {
  const create = ["key", "create", "--project", project.project.id, "--environment", "production"];
  const commands = [
    ["api_keys", [...create, "--name", `${CANARY}-key`, "--json"]],
    ["signing_secrets", ["secret", "rotate", "--project", project.project.id, "--environment", "production"]],
    ["projects", ["project", "create", "--name", `${CANARY}-project`, "--plan", "pro", "--json"]],
  ] as const;
  for (const fault of FAULTS) {
    for (const [table, words] of commands) {
      const run = () => runProgram("main.ts", words, environment);
      const { code, stderr } = await withFault(table, fault, run);
      expect(code, words[0]).toBe(1);
      for (const word of [CANARY, "Failing row", "params", "svc_"]) expect(stderr).not.toContain(word);
    }
  }
});
