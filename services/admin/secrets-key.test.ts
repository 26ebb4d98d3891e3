import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { createLog } from "../../shared/platform/log.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { openCellSeal } from "../../shared/process/cell-seal.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { listAudit } from "../../shared/store/resources/audit.ts";
import { openTestDatabase } from "../../test/support/database.ts";
import { createMigratedDatabase, type TestDatabase } from "../../test/support/postgres.ts";
import { runCommandLine } from "./command-line.ts";
import { createProjectWithKeys } from "./create-project.ts";

const [OLD, NEW, THIRD] = [5, 6, 7].map((byte) => new Uint8Array(32).fill(byte)) as [
  Uint8Array,
  Uint8Array,
  Uint8Array,
];
const [oldPrint, newPrint] = [OLD, NEW].map((key) => createSeal(key).fingerprints[0]) as [string, string];
const log = createLog({ level: "silent", name: "test" });
const PROJECT = { name: "A", plan: "pro", defaultRegion: "us-east" } as const;

let database: TestDatabase;
let db: Database;
beforeAll(async () => {
  database = await createMigratedDatabase("admin_key");
  db = openTestDatabase(database.url, 2, "silent");
});
afterAll(async () => {
  await db.close();
  await database.drop();
});
/** A cell whose secrets are under the old key. */
beforeEach(async () => {
  await db.run("empty_secrets", "DELETE FROM signing_secrets", []);
  await db.run("empty_keys", "DELETE FROM secrets_keys", []);
  await createProjectWithKeys(db, await serve(OLD), PROJECT);
});

/** Opens the cell's seal as a service does at its start. */
const serve = (secretsKey: Uint8Array, ...secretsKeyFallbacks: Uint8Array[]) =>
  openCellSeal({ db, log }, { secretsKey, secretsKeyFallbacks });

function ask(words: string[], key?: Uint8Array, ...fallbacks: Uint8Array[]) {
  return runCommandLine(words, {
    DATABASE_URL: database.url,
    DATA_DIR: "/nonexistent",
    ...(key === undefined ? {} : { SECRETS_KEY: key.toHex() }),
    SECRETS_KEY_FALLBACKS: fallbacks.map((one) => one.toBase64()).join(","),
  });
}

const json = ({ stdout }: { stdout: string }) => JSON.parse(stdout);
const changes = async () => {
  const entries = await listAudit(db, { projectNo: null, beforeId: null, limit: 3 });
  return entries
    .filter(({ action }) => action.startsWith("secrets_key"))
    .map(({ action, subject }) => [action, subject]);
};

test("a list shows which key seals, since when, how much is under it, and what is given here", async () => {
  const now = expect.stringMatching(/^\d{4}-.*Z$/);
  const key = { fingerprint: oldPrint, state: "seals", first_used_at: now, retired_at: null };
  expect(json(await ask(["secrets-key", "list", "--json"], OLD, NEW))).toEqual({
    data: [
      { ...key, given_as: "SECRETS_KEY", sealed_count: 2 },
      {
        fingerprint: newPrint,
        state: "unused",
        first_used_at: null,
        retired_at: null,
        given_as: "SECRETS_KEY_FALLBACKS",
        sealed_count: 0,
      },
    ],
    unreadable_count: 0,
  });
  const without = await ask(["secrets-key", "list", "--json"]);
  expect(json(without)).toEqual({
    data: [{ ...key, given_as: null, sealed_count: null }],
    unreadable_count: null,
  });
  const foreign = await ask(["secrets-key", "list"], THIRD);
  expect(foreign.stdout).toContain("no key given here opens 2");
  expect(foreign.stdout).not.toContain(THIRD.toHex());
});

test("what is sealed is resealed with the cell's key alone, is recorded, and ends with a refusal while something is left", async () => {
  const early = await ask(["secrets-key", "reseal"], NEW, OLD);
  expect(early).toMatchObject({ code: 1, stdout: "" });
  expect(early.stderr).toContain("is not the key that this cell seals with");

  await createProjectWithKeys(db, await serve(NEW, OLD), PROJECT);
  const blind = await ask(["secrets-key", "reseal", "--json"], NEW);
  expect([blind.code, json(blind)]).toEqual([1, { sealing: newPrint, resealed: 0, left: 2, retired: [] }]);
  const done = await ask(["secrets-key", "reseal", "--json"], NEW, OLD);
  expect([done.code, json(done)]).toEqual([
    0,
    { sealing: newPrint, resealed: 2, left: 0, retired: [oldPrint] },
  ]);
  expect(await changes()).toEqual([
    ["secrets_key.retire", oldPrint],
    ["secrets_key.reseal", newPrint],
  ]);
  await serve(NEW);
});

test("other commands seal with no key but the one that the services seal with", async () => {
  const words = ["project", "create", "--name", "B", "--plan", "pro"];
  const { code, stderr } = await ask(words, NEW, OLD);
  expect({ code, stderr }).toEqual({
    code: 1,
    stderr: `SECRETS_KEY is not the key that this cell seals with: it is ${newPrint}, and not ${oldPrint}\n`,
  });
  expect((await ask(words, OLD, NEW)).code).toBe(0);
});

test("a key that is lost is given up by its name alone, and only its secrets become new ones", async () => {
  await expect(serve(THIRD)).rejects.toThrow("is not the key of this cell");
  await createProjectWithKeys(db, await serve(NEW, OLD), PROJECT);
  for (const [words, keys, message] of [
    [["deadbeef"], [NEW], "this cell knows no key deadbeef"],
    [[oldPrint], [NEW, OLD], "is given here, so it is not lost"],
    [[oldPrint], [THIRD], `give ${newPrint} too`],
  ] as const) {
    const { code, stderr } = await ask(["secrets-key", "lost", ...words], keys[0], ...keys.slice(1));
    expect([code, stderr]).toEqual([1, expect.stringContaining(message)]);
  }
  const done = await ask(["secrets-key", "lost", oldPrint, "--json"], NEW);
  expect(json(done)).toEqual({ lost: [oldPrint], sealing: newPrint, replaced: 2 });
  expect(await changes()).toEqual([["secrets_key.lose", oldPrint]]);
  await serve(NEW);
  // The key that seals may be the lost one, too.
  expect(json(await ask(["secrets-key", "lost", newPrint, "--json"], THIRD)).replaced).toBe(4);
  await serve(THIRD);
});

test("two keys lost during a change of the key are given up together, and neither without the other", async () => {
  await createProjectWithKeys(db, await serve(NEW, OLD), PROJECT);
  for (const [lost, other] of [
    [oldPrint, newPrint],
    [newPrint, oldPrint],
  ] as const) {
    const { code, stderr } = await ask(["secrets-key", "lost", lost], THIRD);
    expect([code, stderr]).toEqual([1, expect.stringContaining(`give ${other} too`)]);
  }
  const done = await ask(["secrets-key", "lost", `${oldPrint},${newPrint}`, "--json"], THIRD);
  expect(json(done)).toMatchObject({ lost: [oldPrint, newPrint], replaced: 4 });
  await serve(THIRD);
});
