import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createHash } from "node:crypto";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { keyEnvironment } from "../../shared/domain/key.ts";
import type { Environment } from "../../shared/domain/scope.ts";
import { startEmbeddedPostgres } from "../../shared/platform/embedded-postgres/embedded-postgres.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { makeSecretsKey } from "../../shared/platform/seal/secrets-key.ts";
import { addNode, beatNode } from "../../shared/store/cell/nodes.ts";
import { askTime, type Database } from "../../shared/store/database/database.ts";
import { acquireShards, createShards } from "../../shared/store/queue/shards.ts";
import { findCallers } from "../../shared/store/resources/callers.ts";
import { listKeys } from "../../shared/store/resources/keys.ts";
import { findProject, listProjects } from "../../shared/store/resources/projects.ts";
import { listSigningSecrets } from "../../shared/store/resources/secrets.ts";
import { openTestDatabase } from "../../test/support/database.ts";
import {
  createMigratedDatabase,
  createTestDatabase,
  type TestDatabase,
} from "../../test/support/postgres.ts";
import { runCommandLine } from "./command-line.ts";
import { runProgram } from "./test-support.ts";

setDefaultTimeout(300_000);

const HOUR_MS = 3_600_000;
const KEY = new Uint8Array(32).fill(5);
const OTHER_KEY = new Uint8Array(32).fill(6);
const scratch = mkdtempSync(join(tmpdir(), "jobwheel-admin-"));

let database: TestDatabase;
let db: Database;
let settings: Record<string, string>;
/** The project of the refused commands, which change nothing. */
let shared: Created;

beforeAll(async () => {
  database = await createMigratedDatabase("admin");
  settings = { DATABASE_URL: database.url, SECRETS_KEY: KEY.toBase64(), DATA_DIR: join(scratch, "none") };
  db = openTestDatabase(database.url, 2, "silent");
  shared = await createProject();
});

afterAll(async () => {
  await db.close();
  await database.drop();
  rmSync(scratch, { recursive: true, force: true });
});

const admin = (...words: string[]) => runCommandLine(words, settings);

/** The answer of a command that succeeds, as it is printed with --json. */
async function ask<T>(...words: string[]): Promise<T> {
  const { code, stdout, stderr } = await admin(...words, "--json");
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout) as T;
}

interface Created {
  project: { id: string; created_at: string };
  keys: Record<Environment, string>;
  signing_secrets: Record<Environment, string>;
}

interface Made {
  id: string;
  key: string;
  scope: string;
  expires_at: string | null;
}

const createProject = (plan = "pro") => ask<Created>("project", "create", "--name", "Acme", "--plan", plan);

async function findCallerOf(key: string) {
  const [caller] = await findCallers(db, [createHash("sha256").update(key).digest()]);
  return caller;
}

async function secretsOf(projectId: string, environment: Environment): Promise<string[]> {
  const project = await findProject(db, projectId);
  if (project === null) throw new Error("the project is not there");
  const [sealed] = await listSigningSecrets(db, [{ projectNo: project.no, environment }]);
  return (sealed ?? []).map((bytes) => createSeal(KEY).open(bytes));
}

describe("project create", () => {
  test("prints the project, two working keys and two secrets, and nothing else", async () => {
    const created = await ask<Created>(
      ...["project", "create", "--name", "Größe 🎡", "--plan", "scale", "--default-region", "eu-central"],
    );
    const prj = expect.stringMatching(/^prj_[0-9a-z]{26}$/);
    expect(created).toEqual({
      project: {
        id: prj,
        name: "Größe 🎡",
        plan: "scale",
        default_region: "eu-central",
        limits: { requests_per_minute: 3_000, concurrency: 500, schedules: 5_000 },
        usage: { runs_this_period: 0, runs_included: 5_000_000 },
        api_version: "2026-11-01",
        created_at: expect.stringMatching(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/),
      },
      keys: {
        development: expect.stringMatching(/^svc_dev_/),
        production: expect.stringMatching(/^svc_live_/),
      },
      signing_secrets: {
        development: expect.stringMatching(/^whsec_/),
        production: expect.stringMatching(/^whsec_/),
      },
    } as unknown as Created);
    for (const environment of ["development", "production"] as const) {
      expect(keyEnvironment(created.keys[environment])).toBe(environment);
      const caller = await findCallerOf(created.keys[environment]);
      expect(caller).toMatchObject({ environment, scope: "full", project: { id: created.project.id } });
      expect(await secretsOf(created.project.id, environment)).toEqual([
        created.signing_secrets[environment],
      ]);
    }
    expect(Math.abs(Date.parse(created.project.created_at) - (await askTime(db)))).toBeLessThan(60_000);
  });

  test("shows people the same, and the keys in full", async () => {
    const { code, stdout } = await admin("project", "create", "--name", "Plain", "--plan", "hobby");
    expect(code).toBe(0);
    expect(stdout).toMatch(/^name +Plain$/m);
    expect(stdout).toMatch(/^production key +svc_live_[0-9A-Za-z]{38}$/m);
  });

  test.each([
    [["--plan", "pro"], "--name is required"],
    [["--name", "A"], "--plan is required"],
    [["--name", " ", "--plan", "pro"], "--name must not be blank"],
    [["--name", "x".repeat(81), "--plan", "pro"], "at most 80 characters"],
    [["--name", "a\u0007b", "--plan", "pro"], "control characters"],
    [["--name", "A", "--plan", "Pro"], "--plan must be one of hobby, pro, scale, enterprise"],
    [["--name", "A", "--plan", "pro", "--default-region", "mars"], "--default-region must be one of us-east"],
    [["--name", "A", "--plan", "hobby", "--default-region", "us-west"], "limited to the region us-east"],
    [["--name", "A", "--plan", "pro", "--colour", "red"], "Unknown option '--colour'"],
    [["--name", "A", "--name", "B", "--plan", "pro"], "--name is given more than once"],
    [["--name", "A", "--plan", "pro", "surplus"], "unexpected: surplus"],
    [["--name", "--plan", "pro"], "'--name"],
  ])("refuses %p, and creates nothing", async (words, message) => {
    const before = (await listProjects(db)).length;
    const { code, stdout, stderr } = await admin("project", "create", ...words, "--json");
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toContain(message);
    expect(stderr.trim().split("\n").length).toBe(1);
    expect((await listProjects(db)).length).toBe(before);
  });
});

describe("project", () => {
  test("list and show tell what create told", async () => {
    const { project } = await createProject();
    const shown = await ask<{ project: unknown }>("project", "show", project.id);
    expect(shown).toEqual({ project });
    const { data } = await ask<{ data: unknown[] }>("project", "list");
    expect(data).toContainEqual(project);
    expect((await admin("project", "list")).stdout).toContain(project.id);
  });

  test("set changes what it is given, and leaves the rest", async () => {
    const { project } = await createProject();
    const set = (...words: string[]) =>
      ask<{ project: { plan: string; limits: object } }>("project", "set", project.id, ...words);
    expect((await set("--concurrency", "1000000", "--requests-per-minute", "1")).project.limits).toEqual({
      requests_per_minute: 1,
      concurrency: 1_000_000,
      schedules: 1_000,
    });
    expect(
      (await set("--plan", "scale", "--schedules", "7", "--api-version", "2026-11-01")).project,
    ).toMatchObject({
      plan: "scale",
      limits: { requests_per_minute: 1, concurrency: 1_000_000, schedules: 7 },
    });
  });

  test.each([
    [["set"], "ID is missing"],
    [["set", "prj_1", "--plan", "pro"], "ID must be an id that begins with prj_"],
    [["set", "prj_01kak0000000000000000000zz", "--plan", "pro"], "there is no project prj_01kak"],
    [["show", "prj_01kak0000000000000000000zz"], "there is no project"],
    [["set", "ID"], "nothing was given"],
    [["set", "ID", "--plan", "gold"], "--plan must be one of"],
    [["set", "ID", "--concurrency", "0"], "--concurrency must be a whole number from 1 to 1000000"],
    [["set", "ID", "--concurrency", "1000001"], "--concurrency must be"],
    [["set", "ID", "--schedules", "1e3"], "--schedules must be"],
    [["set", "ID", "--requests-per-minute", "-5"], "--requests-per-minute"],
    [["set", "ID", "--api-version", "2025-01-01"], "--api-version must be one of 2026-11-01"],
    [["delete", "ID"], "there is no command project delete"],
  ])("refuses %p", async (words, message) => {
    const before = await findProject(db, shared.project.id);
    const { code, stdout, stderr } = await admin(
      "project",
      ...words.map((word) => (word === "ID" ? shared.project.id : word)),
    );
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toContain(message);
    expect(await findProject(db, shared.project.id)).toEqual(before);
  });
});

describe("key", () => {
  test("create makes a key that works, with the scope and the end that were asked for", async () => {
    const { project } = await createProject();
    const plain = await ask<Made>("key", "create", "--project", project.id, "--environment", "production");
    expect(Object.keys(plain)).toEqual(["id", "key", "scope", "expires_at"]);
    expect(plain).toMatchObject({ scope: "full", expires_at: null });
    const made = await ask<Made>(
      ...["key", "create", "--project", project.id, "--environment", "development"],
      ...["--scope", "read", "--name", "CI", "--expires-in-hours", "2"],
    );
    expect(made.scope).toBe("read");
    expect(Math.abs(Date.parse(made.expires_at ?? "") - (await askTime(db)) - 2 * HOUR_MS)).toBeLessThan(
      60_000,
    );
    expect(await findCallerOf(made.key)).toMatchObject({
      keyId: made.id,
      environment: "development",
      scope: "read",
      project: { id: project.id },
    });
    const { data } = await ask<{ data: { id: string }[] }>("key", "list", "--project", project.id);
    expect(data.length).toBe(4);
    expect(data.find(({ id }) => id === made.id)).toMatchObject({
      environment: "development",
      scope: "read",
      name: "CI",
      status: "active",
      expires_at: made.expires_at,
      revoked_at: null,
      last_used_at: null,
    });
    expect(JSON.stringify(data)).not.toContain("svc_");
  });

  test("revoke ends a key, and may be asked for twice", async () => {
    const { project, keys } = await createProject();
    const { data } = await ask<{ data: { id: string; environment: string }[] }>(
      ...["key", "list", "--project", project.id],
    );
    const id = data.find(({ environment }) => environment === "production")?.id ?? "";
    expect(await findCallerOf(keys.production)).not.toBeNull();
    for (let time = 0; time < 2; time++) {
      expect(await ask<object>("key", "revoke", id)).toEqual({ id, revoked: true });
    }
    expect(await findCallerOf(keys.production)).toBeNull();
    expect(await findCallerOf(keys.development)).not.toBeNull();
    const { stderr } = await admin("key", "rotate", id);
    expect(stderr).toContain("is revoked");
  });

  test("rotate makes a successor like the old key, which ends after the overlap and never later than it would have", async () => {
    const { project } = await createProject();
    const old = await ask<Made>(
      ...["key", "create", "--project", project.id, "--environment", "production"],
      ...["--scope", "jobs", "--name", "API", "--expires-in-hours", "5"],
    );
    const next = await ask<Made>("key", "rotate", old.id, "--overlap-hours", "3");
    expect(Object.keys(next)).toEqual(["id", "key", "scope", "expires_at"]);
    expect(next).toMatchObject({ scope: "jobs", expires_at: old.expires_at });
    const endOf = async (id: string) => {
      const { data } = await ask<{ data: { id: string; expires_at: string; name: string }[] }>(
        ...["key", "list", "--project", project.id],
      );
      return data.find((key) => key.id === id);
    };
    const overlapMs = Date.parse((await endOf(old.id))?.expires_at ?? "") - (await askTime(db));
    expect(Math.abs(overlapMs - 3 * HOUR_MS)).toBeLessThan(60_000);
    expect((await endOf(next.id))?.name).toBe("API");
    for (const { key } of [old, next]) expect(await findCallerOf(key)).not.toBeNull();

    const last = await ask<Made>("key", "rotate", next.id, "--overlap-hours", "0");
    expect(await findCallerOf(next.key)).toBeNull();
    expect(await findCallerOf(last.key)).not.toBeNull();

    await ask<Made>("key", "rotate", last.id, "--overlap-hours", "72");
    expect((await endOf(last.id))?.expires_at).toBe(old.expires_at ?? "");
  });

  test.each([
    [["create", "--project", "ID"], "--environment is required"],
    [
      ["create", "--project", "ID", "--environment", "staging"],
      "--environment must be one of development, production",
    ],
    [
      ["create", "--project", "ID", "--environment", "production", "--scope", "all"],
      "--scope must be one of full, read, jobs",
    ],
    [
      ["create", "--project", "ID", "--environment", "production", "--expires-in-hours", "0"],
      "--expires-in-hours must be",
    ],
    [
      ["create", "--project", "ID", "--environment", "production", "--expires-in-hours", "soon"],
      "--expires-in-hours must be",
    ],
    [["create", "--project", "ID", "--environment", "production", "--name", ""], "--name must not be blank"],
    [
      ["create", "--project", "prj_01kak0000000000000000000zz", "--environment", "production"],
      "there is no project",
    ],
    [["list"], "--project is required"],
    [["revoke", "key_1"], "KEY_ID must be an id that begins with key_"],
    [["revoke", "key_01kak0000000000000000000zz"], "there is no key"],
    [["rotate", "key_01kak0000000000000000000zz"], "there is no key"],
    [
      ["rotate", "key_01kak0000000000000000000zz", "--overlap-hours", "73"],
      "--overlap-hours must be a whole number from 0 to 72",
    ],
    [["rotate", "key_01kak0000000000000000000zz", "--overlap-hours", "-1"], "--overlap-hours"],
  ])("refuses %p", async (words, message) => {
    const { code, stdout, stderr } = await admin(
      "key",
      ...words.map((word) => (word === "ID" ? shared.project.id : word)),
    );
    expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
    expect(stderr).toContain(message);
    expect(stderr.trim().split("\n").length).toBe(1);
    const project = await findProject(db, shared.project.id);
    expect((await listKeys(db, project?.no ?? 0)).length).toBe(2);
  });
});

describe("secret show", () => {
  test("tells the secret that signs, and until when the one before does", async () => {
    const { project, signing_secrets: old } = await createProject();
    const show = ["secret", "show", "--project", project.id, "--environment", "production"];
    const told = { project_id: project.id, environment: "production" };
    expect(await ask<object>(...show)).toEqual({
      ...told,
      secret: old.production,
      previous_expires_at: null,
    });
    const rotated = await ask<{ secret: string }>(
      ...["secret", "rotate", "--project", project.id, "--environment", "production"],
    );
    const shown = await ask<{ secret: string; previous_expires_at: string }>(...show);
    expect(shown).toMatchObject({ ...told, secret: rotated.secret });
    expect(Date.parse(shown.previous_expires_at)).toBeGreaterThan(Date.now());
    expect((await admin(...show)).stdout).toMatch(
      new RegExp(
        `signing secret +${RegExp.escape(rotated.secret)}\\n.*also signs until +${shown.previous_expires_at}`,
      ),
    );
  });
});

describe("secret rotate", () => {
  test("makes the secret that signs from now on, beside the old one, in one environment", async () => {
    const { project, signing_secrets: old } = await createProject();
    const rotated = await ask<{ secret: string }>(
      ...["secret", "rotate", "--project", project.id, "--environment", "production"],
    );
    expect(await secretsOf(project.id, "production")).toEqual([rotated.secret, old.production]);
    expect(await secretsOf(project.id, "development")).toEqual([old.development]);
    // A second rotation within the day ends the oldest secret.
    const again = await ask<{ secret: string }>(
      ...["secret", "rotate", "--project", project.id, "--environment", "production"],
    );
    expect(await secretsOf(project.id, "production")).toEqual([again.secret, rotated.secret]);
  });
});

describe("node and shard", () => {
  test("list shows who lives and who owns what; dead ends a node by name, of both kinds", async () => {
    const join = (kind: "worker" | "delivery", name: string) =>
      addNode(db, { kind, name, regions: ["us-east"], process: "p" });
    const worker = (await join("worker", "both")) ?? 0;
    const delivery = (await join("delivery", "both")) ?? 0;
    const other = (await join("worker", "other")) ?? 0;
    await createShards(db, ["us-east"], 2);
    await acquireShards(db, worker, [{ region: "us-east", shard: 1 }], 60_000);

    const shards = await ask<{ data: object[] }>("shard", "list");
    expect(shards.data).toMatchObject([
      { region: "us-east", shard: 0, epoch: 0, owner: null, lease_left_ms: 0 },
      { region: "us-east", shard: 1, epoch: 1, owner: { id: worker, name: "both" } },
    ]);
    expect((await admin("shard", "list")).stdout).toMatch(/us-east +1 +1 +\d+ ms +both/);

    expect(await ask<object>("node", "dead", "both")).toEqual({
      name: "both",
      declared_dead: [
        { id: worker, kind: "worker" },
        { id: delivery, kind: "delivery" },
      ],
    });
    expect(await beatNode(db, worker, 0)).toEqual({ kind: "dead" });
    expect(await beatNode(db, other, 0)).toEqual({ kind: "alive", beats: 1 });
    const { data } = await ask<{ data: { name: string; dead: boolean }[] }>("node", "list");
    expect(data.map(({ name, dead }) => [name, dead])).toEqual([
      ["both", true],
      ["both", true],
      ["other", false],
    ]);
    expect((await admin("node", "list")).stdout).toMatch(/other +worker +no +[\d.]+ s ago +us-east/);
    expect(await admin("node", "dead", "both")).toEqual({
      code: 1,
      stdout: "",
      stderr: "there is no living node named both\n",
    });
  });
});

describe("the command line", () => {
  test("lists the commands if one is missing or unknown", async () => {
    for (const words of [[], ["project"], ["release", "--project", "x"], ["constructor", "x"]]) {
      const { code, stdout, stderr } = await admin(...words);
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).toContain("project create");
      expect(stderr).toContain("shard list");
    }
    const { code, stdout } = await admin("--help");
    expect(code).toBe(0);
    expect(stdout).toContain("key rotate");
  });

  test("tells in one line that a database cannot be reached, is not there, or is not prepared", async () => {
    const elsewhere = new URL(database.url);
    elsewhere.port = "1";
    elsewhere.password = "sesame";
    const absent = new URL(database.url);
    absent.pathname = "/test_absent";
    const bare = await createTestDatabase("admin_bare");
    for (const [url, message] of [
      [elsewhere.href, "ECONNREFUSED"],
      [absent.href, "does not exist"],
      [bare.url, "npm run migrate"],
    ] as const) {
      const { code, stdout, stderr } = await runCommandLine(["project", "list"], {
        ...settings,
        DATABASE_URL: url,
      });
      expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
      expect(stderr).toContain(message);
      expect(stderr).not.toContain("sesame");
      expect(stderr.trim().split("\n").length).toBe(1);
    }
    await bare.drop();
  });

  test("names every wrong setting", async () => {
    const { code, stderr } = await runCommandLine(["project", "list"], {
      DATABASE_URL: "sesame",
      SECRETS_KEY: "sesame",
    });
    expect(code).toBe(1);
    expect(stderr).toContain("DATABASE_URL must be");
    expect(stderr).toContain("SECRETS_KEY must be");
    expect(stderr).not.toContain("sesame");
  });

  test("seals with no key but the one that this database's secrets are sealed with", async () => {
    await createProject();
    const words = ["project", "create", "--name", "A", "--plan", "pro", "--json"];
    const wrong = await runCommandLine(words, { ...settings, SECRETS_KEY: OTHER_KEY.toBase64() });
    expect(wrong.stderr).toContain("SECRETS_KEY is not the key that this cell seals with");
    const without = await runCommandLine(words, { ...settings, SECRETS_KEY: "" });
    expect(without).toEqual({ code: 1, stdout: "", stderr: "SECRETS_KEY is not set\n" });
    const found = join(scratch, "found");
    makeSecretsKey(found);
    const foreign = await runCommandLine(words, { ...settings, SECRETS_KEY: "", DATA_DIR: found });
    expect(foreign.stderr).toContain(`(the key in ${found})`);
    expect((await runCommandLine(["project", "list"], { ...settings, SECRETS_KEY: "" })).code).toBe(0);
  });

  test("seals with no key that it merely found for the first secret of a database named by DATABASE_URL", async () => {
    const fresh = await createTestDatabase("admin_fresh");
    const found = join(scratch, "found-first");
    makeSecretsKey(found);
    const environment = { DATABASE_URL: fresh.url, DATA_DIR: found };
    await runProgram("migrate.ts", [], environment);
    const words = ["project", "create", "--name", "A", "--plan", "pro"];
    const { code, stderr } = await runCommandLine(words, environment);
    expect({ code, stderr }).toEqual({ code: 1, stderr: "SECRETS_KEY is not set\n" });
    await fresh.drop();
  });
});

describe("beside a standalone", () => {
  test("the commands work on the Postgres and the key of its data directory, and say so when it does not run", async () => {
    const dataDir = join(scratch, "standalone");
    mkdirSync(dataDir);
    const environment = { DATA_DIR: dataDir };
    const refusal = {
      code: 1,
      stdout: "",
      stderr: `DATABASE_URL is not set, and no standalone runs on ${dataDir}\n`,
    };
    expect(await runProgram("main.ts", ["project", "list"], environment)).toEqual(refusal);

    const postgres = await startEmbeddedPostgres({ dataDir });
    try {
      const key = makeSecretsKey(dataDir);
      expect((await runProgram("migrate.ts", [], environment)).stdout).toBe("the schema is up to date\n");
      const words = ["project", "create", "--name", "A", "--plan", "pro", "--json"];
      const { code, stdout, stderr } = await runProgram("main.ts", words, environment);
      expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
      const created = JSON.parse(stdout) as Created;
      const own = openTestDatabase(postgres.url, 1, "silent");
      const project = await findProject(own, created.project.id);
      const [sealed] = await listSigningSecrets(own, [
        { projectNo: project?.no ?? 0, environment: "production" },
      ]);
      await own.close();
      expect(createSeal(key).open(sealed?.[0] ?? Buffer.alloc(0))).toBe(created.signing_secrets.production);
    } finally {
      await postgres.stop();
    }
    expect(await runProgram("main.ts", ["project", "list"], environment)).toEqual(refusal);
  });
});
