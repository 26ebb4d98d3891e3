import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import pg from "pg";
import { createProjectWithKeys } from "../../services/admin/create-project.ts";
import { runProgram } from "../../services/admin/test-support.ts";
import { verifySignature } from "../../shared/client/signature.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { until } from "../flow/support.ts";
import { openPatientDatabase, PATIENT } from "../support/database.ts";
import {
  countArrivals,
  createLoad,
  expectNothingDoubled,
  expectNothingRefused,
  type Load,
  type RunningLoad,
  untilTerminal,
} from "../support/load.ts";
import { type NatsServer, startNatsServer } from "../support/nats-server.ts";
import { createMigratedDatabase, type TestDatabase } from "../support/postgres.ts";
import { recordPauses } from "../support/recorded-pauses.ts";
import { fetchServed } from "../support/served.ts";
import { type ServiceProcess, startService } from "../support/service-process.ts";
import { type Arrival, startTarget } from "../support/target.ts";

setDefaultTimeout(900_000);

const POST_EVERY_MS = 120;
/** On an idle machine all jobs have ended after some seconds. A lost job never ends. */
const ENDED_MS = 120_000;
/** More time than a busy machine takes to deliver a job and all of its events behind those of the load. */
const DELIVERED_MS = 120_000;
/** Endpoints of a project without jobs: several pages of them, in the middle of which the command is killed. */
const QUIET_ENDPOINTS = 2_000;
const MIDDLE = 1_200;
const LOCK = 7;
/** How often the command is started that is to be killed in the middle. */
const STARTS_MAX = 5;

const [OLD, NEW] = [randomBytes(32), randomBytes(32)];
const [oldPrint, newPrint] = [OLD, NEW].map((key) => createSeal(key).fingerprints[0]);
const keysOf = (key: Buffer, ...fallbacks: Buffer[]) => ({
  SECRETS_KEY: key.toString("base64"),
  SECRETS_KEY_FALLBACKS: fallbacks.map((one) => one.toString("hex")).join(","),
});

const target = startTarget();
let database: TestDatabase;
let nats: NatsServer;
let direct: pg.Client;
let settings: Record<string, string>;
let project: Awaited<ReturnType<typeof createProjectWithKeys>>;
/** The secrets with which jobs may be signed, and each endpoint's events. */
const signingSecrets: string[] = [];
const endpoints: { id: string; path: string; secrets: string[] }[] = [];
const started: ServiceProcess[] = [];
let load: Load;
let posting: RunningLoad | undefined;
let gateways: ServiceProcess[] = [];
let deliveries: ServiceProcess[] = [];

beforeAll(async () => {
  [database, nats] = await Promise.all([createMigratedDatabase("secrets_key"), startNatsServer()]);
  direct = new pg.Client({ connectionString: database.url, options: PATIENT });
  await direct.connect();
  const db = openPatientDatabase(database.url, 2);
  const wish = { name: "rotated", plan: "scale", defaultRegion: "us-east" } as const;
  project = await createProjectWithKeys(db, createSeal(OLD), wish);
  signingSecrets.push(project.signingSecrets.production);
  const quiet = await createProjectWithKeys(db, createSeal(OLD), { ...wish, name: "quiet" });
  await direct.query(
    `INSERT INTO webhooks (project_no, environment, id, events, url, sealed_secret)
     SELECT $1, 1, lpad(n::text, 32, '0')::uuid, 3, 'https://example.com/', s
       FROM unnest($2::bytea[]) WITH ORDINALITY AS given (s, n)`,
    [
      quiet.project.no,
      Array.from({ length: QUIET_ENDPOINTS }, (_, n) => createSeal(OLD).seal(`secret ${n}`)),
    ],
  );
  await direct.query("UPDATE projects SET requests_per_minute = 1000000");
  await db.close();
  settings = {
    DATABASE_URL: database.url,
    NATS_URL: nats.url,
    DRAIN_TIMEOUT_MS: "5000",
    SHARDS_PER_REGION: "4",
  };
});
afterAll(async () => {
  for (const service of started) await service.end("SIGKILL");
  await direct.end();
  await nats.stop();
  await target.stop();
  await database.drop();
});

async function start(name: "gateway" | "worker" | "delivery", keys: object): Promise<ServiceProcess> {
  const service = await startService(name, { ...settings, ...keys });
  started.push(service);
  return service;
}

/**
 * Replaces the gateways and the delivery nodes as a rollout does: the new processes are ready before the old ones end,
 * and `between` runs while both exist.
 */
async function roll(keys: object, between: () => Promise<void>): Promise<void> {
  const [gateway, delivery] = await Promise.all([start("gateway", keys), start("delivery", keys)]);
  const before = [...gateways, ...deliveries];
  gateways.push(gateway);
  deliveries.push(delivery);
  await between();
  gateways = [gateway];
  deliveries = [delivery];
  // Jobs that were sent to the old gateway are answered before it ends.
  await posting?.untilAnswered();
  for (const service of before) expect(await service.end("SIGTERM")).toBe(0);
}

let turn = 0;
const base = () => `http://127.0.0.1:${gateways[turn++ % gateways.length]?.port}`;

async function call(
  method: string,
  path: string,
  options: { body?: object; key?: string; base?: string } = {},
) {
  const response = await fetchServed(`${options.base ?? base()}${path}`, {
    method,
    headers: {
      authorization: `Bearer ${project.keys.production}`,
      "content-type": "application/json",
      ...(options.key === undefined ? {} : { "idempotency-key": options.key }),
    },
    ...(options.body === undefined ? {} : { body: JSON.stringify(options.body) }),
  });
  return { status: response.status, text: await response.text() };
}

const urlOf = (path: string) => target.url.replace("/hook", path);

/** Adds an endpoint through each present gateway, which also rotates the secret of an endpoint of the step before. */
async function changeEndpoints(): Promise<void> {
  for (const { port } of [...gateways]) {
    const base = `http://127.0.0.1:${port}`;
    const path = `/endpoint-${endpoints.length}`;
    const created = await call("POST", "/v2/webhooks", { base, body: newEndpoint(path) });
    expect(created.status).toBe(201);
    const earlier = endpoints.at(-gateways.length);
    const { id, secret } = JSON.parse(created.text);
    endpoints.push({ id, path, secrets: [secret] });
    if (earlier !== undefined) {
      const rotated = await call("POST", `/v2/webhooks/${earlier.id}/rotate`, { base });
      expect(rotated.status).toBe(200);
      earlier.secrets.push(JSON.parse(rotated.text).secret);
    }
    const listed = await call("GET", "/v2/webhooks", { base });
    expect(listed.status).toBe(200);
    expect(listed.text).toContain(`****${secret.slice(-4)}`);
  }
}

const newEndpoint = (path: string) => ({ url: urlOf(path), events: ["job.succeeded"] });

const admin = (keys: object, ...words: string[]) =>
  runProgram("main.ts", [...words, "--json"], { DATABASE_URL: database.url, ...keys });

async function rotateSigningSecret(keys: object): Promise<void> {
  const place = ["--project", project.project.id, "--environment", "production"];
  const { stdout, stderr } = await admin(keys, "secret", "rotate", ...place);
  expect(stderr).toBe("");
  signingSecrets.push(JSON.parse(stdout).secret);
}

/** Expects every arrived job and event to be signed with a secret of its project or endpoint. Answers their number. */
async function expectSigned(arrivals: readonly Arrival[]): Promise<number> {
  for (const { path, body, headers } of arrivals) {
    const secrets = path === "/hook" ? signingSecrets : endpoints.find((one) => one.path === path)?.secrets;
    expect(await verifySignature({ body, headers }, { secrets: secrets ?? [] })).toBe(body);
  }
  return arrivals.length;
}

/** Expects that a job created now is delivered, and that each of these endpoints gets its event. */
async function expectDelivered(paths: readonly string[]): Promise<void> {
  const created = await call("POST", "/v2/jobs", { body: { target_url: target.url } });
  expect(created.status).toBe(201);
  const { id } = JSON.parse(created.text);
  const isOfIt = (arrival: Arrival) => arrival.jobId === id || arrival.body.includes(id);
  const reached = (arrivals: Arrival[]) => new Set(arrivals.filter(isOfIt).map(({ path }) => path));
  await target.until(
    (arrivals) => reached(arrivals).isSupersetOf(new Set(["/hook", ...paths])),
    DELIVERED_MS,
  );
}

/** Starts the command, and kills it in the middle of its work. */
async function killInTheMiddle(keys: object): Promise<void> {
  const middle = `'${String(MIDDLE).padStart(32, "0")}'`;
  await direct.query(`
    CREATE FUNCTION stop_here() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN PERFORM pg_advisory_xact_lock(${LOCK}); RETURN NEW; END';
    CREATE TRIGGER stop_here BEFORE UPDATE ON webhooks FOR EACH ROW WHEN (NEW.id = ${middle}) EXECUTE FUNCTION stop_here();
    SELECT pg_advisory_lock(${LOCK})`);
  const isAtIt = `SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database()
    WHERE l.locktype = 'advisory' AND l.objid = $1 AND NOT l.granted`;
  let isKilled = false;
  // The statement in the middle waits for 5 s. Then the command ends, and a test that was held up is too late to kill it.
  for (let starts = 0; starts < STARTS_MAX && !isKilled; starts++) {
    const command = Bun.spawn([process.execPath, "services/admin/main.ts", "secrets-key", "reseal"], {
      env: { PATH: process.env.PATH ?? "", DATABASE_URL: database.url, ...keys },
      stdout: "ignore",
      stderr: "ignore",
    });
    while (command.exitCode === null && (await direct.query(isAtIt, [LOCK])).rowCount === 0)
      await Bun.sleep(10);
    command.kill("SIGKILL");
    await command.exited;
    isKilled = command.signalCode === "SIGKILL";
  }
  expect(isKilled).toBe(true);
  await direct.query(`SELECT pg_advisory_unlock(${LOCK})`);
  await direct.query("DROP TRIGGER stop_here ON webhooks; DROP FUNCTION stop_here");
}

interface Listed {
  data: { fingerprint: string; state: string; given_as: string | null; sealed_count: number | null }[];
  unreadable_count: number;
}

async function listKeys(keys: object): Promise<Listed> {
  const { code, stdout, stderr } = await admin(keys, "secrets-key", "list");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout);
}

test("the secrets key is changed step by step under load, and at no moment is anything unreadable, unsigned or refused", async () => {
  const [onlyOld, first, second, onlyNew] = [keysOf(OLD), keysOf(OLD, NEW), keysOf(NEW, OLD), keysOf(NEW)];
  gateways = [await start("gateway", onlyOld)];
  deliveries = [await start("delivery", onlyOld)];
  await start("worker", {});
  await changeEndpoints();
  const kept = { key: "kept", body: newEndpoint("/kept") };
  const keptAnswer = await call("POST", "/v2/webhooks", kept);
  expect(keptAnswer.status).toBe(201);
  const { id: keptId, secret: keptSecret } = JSON.parse(keptAnswer.text);
  endpoints.push({ id: keptId, path: "/kept", secrets: [keptSecret] });

  load = createLoad(base, project.keys.production);
  const pauses = await recordPauses(database.url, () => started);
  const told = countArrivals(target, ({ path, headers }) =>
    path === "/kept" ? headers["webhook-id"] : undefined,
  );
  await using running = load.begin(
    () => ({ target_url: target.url, payload: { n: ++turn } }),
    POST_EVERY_MS,
    told,
  );
  posting = running;
  await target.until((arrivals) => arrivals.length > 10, DELIVERED_MS);
  const cursors = [await nextCursor()];

  const atEachStep = async (keys: object) => {
    await changeEndpoints();
    await rotateSigningSecret(keys);
    await expectDelivered(endpoints.map(({ path }) => path));
    expect(await call("POST", "/v2/webhooks", kept)).toEqual(keptAnswer);
    for (const { port } of gateways) {
      const itsBase = `http://127.0.0.1:${port}`;
      for (const cursor of cursors) expect(await listFrom(cursor, itsBase)).toBe(200);
      cursors.push(await nextCursor(itsBase));
    }
    for (const cursor of cursors) expect(await listFrom(cursor)).toBe(200);
  };

  // The new key only opens: nothing may be sealed with it before every process has it.
  await roll(first, () => atEachStep(first));
  await roll(second, () => atEachStep(second));
  await atEachStep(second);

  await killInTheMiddle(second);
  const halfway = await listKeys(second);
  expect(halfway.unreadable_count).toBe(0);
  expect(halfway.data).toMatchObject([
    { fingerprint: oldPrint, state: "opens", given_as: "SECRETS_KEY_FALLBACKS" },
    { fingerprint: newPrint, state: "seals", given_as: "SECRETS_KEY" },
  ]);
  for (const { sealed_count } of halfway.data) expect(sealed_count).toBeGreaterThan(QUIET_ENDPOINTS / 4);
  await expect(start("gateway", onlyNew)).rejects.toThrow(
    `SECRETS_KEY_FALLBACKS must still hold ${oldPrint}`,
  );
  const again = await admin(second, "secrets-key", "reseal");
  expect(JSON.parse(again.stdout)).toMatchObject({ sealing: newPrint, left: 0, retired: [oldPrint] });
  const isUnchanged = await admin(second, "secrets-key", "reseal");
  expect(JSON.parse(isUnchanged.stdout)).toMatchObject({ resealed: 0, left: 0, retired: [] });

  // A cursor sealed with the old key is refused from now on; all others work.
  const [oldCursor = "", ...rest] = cursors;
  await roll(onlyNew, async () => {
    await changeEndpoints();
    await expectDelivered(endpoints.map(({ path }) => path));
  });
  expect(await listFrom(oldCursor)).toBe(400);
  expect(await listFrom(rest.at(-1) ?? "")).toBe(200);
  expect(await call("POST", "/v2/webhooks", kept)).toEqual(keptAnswer);
  await rotateSigningSecret(onlyNew);
  await expectDelivered(endpoints.map(({ path }) => path));

  await running.stop();
  await pauses.stop();
  expectNothingRefused(load, pauses, started);
  const jobs = await untilTerminal(base(), project.keys.production, load, ENDED_MS);
  expect(jobs.filter(({ status, attempts }) => status !== "succeeded" || attempts !== 1)).toEqual([]);
  expectNothingDoubled({ ...target, arrivals: target.arrivals.filter(({ path }) => path === "/hook") });
  expect(await expectSigned(target.arrivals)).toBeGreaterThan(jobs.length * 2);
  for (const { output } of started) expect(output).not.toMatch(/unreadable|"level":50/);
  const states = (await listKeys(onlyNew)).data.map(({ state, sealed_count }) => [state, sealed_count]);
  expect(states).toEqual([
    ["retired", null],
    ["seals", expect.any(Number)],
  ] as typeof states);
});

async function nextCursor(itsBase = base()): Promise<string> {
  const { text } = await call("GET", "/v2/jobs?limit=1", { base: itsBase });
  return JSON.parse(text).next_cursor;
}

async function listFrom(cursor: string, itsBase = base()): Promise<number> {
  return (await call("GET", `/v2/jobs?limit=1&cursor=${cursor}`, { base: itsBase })).status;
}

test.each(["gateway", "delivery"] as const)(
  "a %s with a mistyped key ends with 2, says so without a key, and leaves the database as it was",
  async (name) => {
    for (const service of started) await service.end("SIGKILL");
    // The last statements of ended processes may go on for a moment.
    const others =
      "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'";
    await until(async () => (await direct.query(others)).rowCount === 0);
    const before = await readAll();
    const wrong = randomBytes(32).toString("hex");
    const child = Bun.spawn([process.execPath, `services/${name}/main.ts`], {
      env: { PATH: process.env.PATH ?? "", ...settings, SECRETS_KEY: wrong, PORT: "0", OPS_PORT: "0" },
      stdout: "pipe",
      stderr: "pipe",
    });
    const [code, stderr, stdout] = await Promise.all([
      child.exited,
      child.stderr.text(),
      child.stdout.text(),
    ]);
    expect(code).toBe(2);
    expect(stderr).toContain("SECRETS_KEY is not the key of this cell");
    expect(stderr.trim().split("\n")).toHaveLength(1);
    expect(stderr + stdout).not.toContain(wrong);
    expect(await readAll()).toEqual(before);
  },
);

/** Reads a digest of each table. */
async function readAll(): Promise<Record<string, string | null>> {
  const { rows: tables } = await direct.query<{ name: string }>(
    "SELECT relname AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition",
  );
  const digests: Record<string, string | null> = {};
  for (const { name } of tables) {
    const text = `SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) AS digest FROM ${name} t`;
    digests[name] = (await direct.query<{ digest: string | null }>(text)).rows[0]?.digest ?? null;
  }
  return digests;
}
