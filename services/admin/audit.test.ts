import { afterAll, beforeAll, expect, test } from "bun:test";
import { hostname } from "node:os";
import { REQUEST_PREFIX, uuidToId } from "../../shared/domain/ids.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { recordChange } from "../../shared/store/resources/audit.ts";
import { openTestDatabase } from "../../test/support/database.ts";
import { createMigratedDatabase, type TestDatabase } from "../../test/support/postgres.ts";
import { runCommandLine } from "./command-line.ts";

interface Entry {
  id: string;
  at: string;
  request_id: string;
  by: object;
  action: string;
  subject: string;
  project_id: string | null;
  environment: string | null;
  detail: object | null;
}

const SECRETS_KEY = new Uint8Array(32).fill(5).toBase64();
const OPERATOR = { kind: "operator", name: `dana@${hostname()}` };

let database: TestDatabase;
let db: Database;
beforeAll(async () => {
  database = await createMigratedDatabase("audit");
  db = openTestDatabase(database.url, 1, "silent");
});
afterAll(async () => {
  await db.close();
  await database.drop();
});

async function ask<T = object>(...words: string[]): Promise<T> {
  const settings = { DATABASE_URL: database.url, SECRETS_KEY, SUDO_USER: "dana" };
  const { code, stdout, stderr } = await runCommandLine([...words, "--json"], settings);
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout) as T;
}

const list = (...words: string[]) => ask<{ data: Entry[]; next: string | null }>("audit", "list", ...words);

test("every command that changes something is recorded with the operator, what was changed, and nothing secret", async () => {
  const { project, keys } = await ask<{ project: { id: string }; keys: Record<string, string> }>(
    ...["project", "create", "--name", "Acme", "--plan", "pro"],
  );
  const place = ["--project", project.id, "--environment", "production"];
  await ask("project", "set", project.id, "--plan", "scale", "--concurrency", "7");
  const made = await ask<{ id: string; key: string }>("key", "create", ...place, "--name", "CI");
  const next = await ask<{ id: string; key: string }>("key", "rotate", made.id, "--overlap-hours", "2");
  await ask("key", "revoke", made.id);
  const { secret } = await ask<{ secret: string }>("secret", "rotate", ...place);
  for (const kind of ["worker", "delivery"] as const) {
    await addNode(db, { kind, name: "both", regions: ["us-east"], process: "p" });
  }
  await ask("node", "dead", "both");
  // These commands change nothing.
  await ask("key", "revoke", made.id);
  await ask("project", "show", project.id);
  await ask("key", "list", "--project", project.id);

  const { data, next: more } = await list();
  expect(more).toBeNull();
  expect(data.map(({ action, subject, detail }) => ({ action, subject, detail }))).toEqual([
    { action: "node.declare_dead", subject: "both", detail: { id: 2, kind: "delivery" } },
    { action: "node.declare_dead", subject: "both", detail: { id: 1, kind: "worker" } },
    { action: "secret.rotate", subject: expect.stringMatching(/^sec_/), detail: { overlap_hours: 24 } },
    { action: "key.revoke", subject: made.id, detail: null },
    { action: "key.rotate", subject: made.id, detail: { successor: next.id, overlap_hours: 2 } },
    { action: "key.create", subject: made.id, detail: { scope: "full", name: "CI", expires_at: null } },
    { action: "project.change", subject: project.id, detail: { plan: "scale", concurrency: 7 } },
    {
      action: "project.create",
      subject: project.id,
      detail: {
        name: "Acme",
        plan: "pro",
        default_region: "us-east",
        keys: [expect.stringMatching(/^key_/), expect.stringMatching(/^key_/)],
      },
    },
  ] as unknown as typeof data);
  for (const entry of data) {
    expect(entry.by).toEqual(OPERATOR);
    expect(entry.request_id).toMatch(/^req_[0-9a-z]{26}$/);
    expect(Math.abs(Date.parse(entry.at) - Date.now())).toBeLessThan(60_000);
    expect(entry.project_id).toBe(entry.subject === "both" ? null : project.id);
  }
  const text = JSON.stringify(data);
  for (const hidden of [made.key, next.key, secret, ...Object.values(keys)])
    expect(text).not.toContain(hidden);

  // The entries of one project are the same in pages.
  const first = await list("--project", project.id, "--limit", "4");
  const second = await list("--project", project.id, "--limit", "4", "--before", first.next ?? "");
  expect([...first.data, ...second.data]).toEqual(data.filter(({ project_id }) => project_id === project.id));
});

test("what operators did is found among all that keys do", async () => {
  const createRequestId = () => uuidToId(REQUEST_PREFIX, Bun.randomUUIDv7());
  const change = { action: "job.cancel", projectNo: 1, environment: "production", subject: "job" } as const;
  const { data: before } = await list("--by", "operator");
  for (let i = 0; i < 60; i++) {
    await recordChange(db.drizzle, { requestId: createRequestId(), keyNo: 1 }, change);
  }
  await ask("hold", "--region", "us-west");
  const { data: after } = await list("--by", "operator");
  expect(after.map(({ action, subject, by }) => ({ action, subject, by })).slice(0, 1)).toEqual([
    { action: "region.hold", subject: "us-west", by: OPERATOR },
  ]);
  expect(after.slice(1)).toEqual(before);
});

let requests = 0;
/** Makes a change, and answers the `by` of the newest entry. */
async function changeAs(words: string[], environment: Record<string, string>): Promise<object | undefined> {
  const settings = { DATABASE_URL: database.url, SUDO_USER: "dana", ...environment };
  const change = ["host", "limit", "who.example.com", "--requests", String(++requests)];
  const { code, stderr } = await runCommandLine([...change, ...words], settings);
  expect({ code, stderr }).toEqual({ code: 0, stderr: "" });
  return (await list("--limit", "1")).data[0]?.by;
}

test("the operator is who --as names, else OPERATOR, else the account at the terminal, and lists show it", async () => {
  const environment = { OPERATOR: "Kim Øst" };
  expect(await changeAs(["--as", "lee@example.com"], environment)).toEqual({
    kind: "operator",
    name: "lee@example.com",
  });
  expect(await changeAs([], environment)).toEqual({ kind: "operator", name: "Kim Øst" });
  expect(await changeAs([], { OPERATOR: "" })).toEqual(OPERATOR);
  const { stdout } = await runCommandLine(["audit", "list", "--by", "operator", "--as", "whoever"], {
    DATABASE_URL: database.url,
  });
  expect(stdout).toMatch(/lee@example\.com +host\.limit /);
  expect(stdout).toMatch(/Kim Øst +host\.limit /);
});

test("every command that makes an entry names the operator in it", async () => {
  const as = ["--as", "robin"];
  const { project } = await ask<{ project: { id: string } }>(
    ...["project", "create", "--name", "Named", "--plan", "pro", ...as],
  );
  const place = ["--project", project.id, "--environment", "production"];
  await ask("project", "set", project.id, "--concurrency", "7", ...as);
  const made = await ask<{ id: string }>("key", "create", ...place, ...as);
  const next = await ask<{ id: string }>("key", "rotate", made.id, ...as);
  await ask("key", "revoke", next.id, ...as);
  await ask("secret", "rotate", ...place, ...as);
  await ask("hold", "--project", project.id, ...as);
  await ask("resume", "--project", project.id, ...as);
  await ask("resume", "--region", "us-west", ...as);
  await ask("host", "limit", "example.com", "--requests", "1", ...as);
  await ask("host", "clear", "example.com", ...as);
  await addNode(db, { kind: "worker", name: "named", regions: ["us-east"], process: "p" });
  await ask("node", "dead", "named", ...as);
  const newest = (await list("--limit", "12")).data;
  expect(newest.map(({ by }) => by)).toEqual(newest.map(() => ({ kind: "operator", name: "robin" })));
  expect(newest.at(-1)?.action).toBe("project.create");
});

test.each([
  ["--as", [" "], {}, "--as must not be blank"],
  ["--as", ["x".repeat(81)], {}, "--as must have at most 80 characters"],
  ["--as", ["a\u001b[2Jb"], {}, "--as must not contain control characters"],
  ["--as", ["a", "--as", "b"], {}, "--as is given more than once"],
  ["OPERATOR", [], { OPERATOR: "a\nb" }, "OPERATOR must not contain control characters"],
  ["OPERATOR", [], { OPERATOR: "x".repeat(81) }, "OPERATOR must have at most 80 characters"],
])("%s with %p and %p is refused, and changes nothing", async (name, words, environment, message) => {
  const before = await list("--limit", "1");
  const command = ["hold", "--region", "eu-central", ...(name === "--as" ? ["--as", ...words] : [])];
  const { code, stdout, stderr } = await runCommandLine(command, {
    DATABASE_URL: database.url,
    ...environment,
  });
  expect({ code, stdout }).toEqual({ code: 1, stdout: "" });
  expect(stderr).toContain(message);
  expect(await list("--limit", "1")).toEqual(before);
});

test.each([
  [["--by", "key"], "--by must be one of operator"],
  [["--limit", "0"], "--limit must be a whole number from 1 to 1000"],
  [["--before", "job_1"], "--before must be an id that begins with aud_"],
  [["--project", "prj_01kak0000000000000000000zz"], "there is no project"],
])("refuses %p", async (words, message) => {
  const { code, stderr } = await runCommandLine(["audit", "list", ...words], {
    DATABASE_URL: database.url,
  });
  expect(code).toBe(1);
  expect(stderr).toContain(message);
});
