import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createIdSource, idToUuid } from "../domain/ids.ts";
import { createSeal } from "../platform/seal/seal.ts";
import { lookAtKeys } from "../store/cell/secrets-keys.ts";
import { startStore, type TestStore } from "../store/test-support.ts";
import { openCellSeal, WrongSecretsKey } from "./cell-seal.ts";

const [A, B, C] = [randomBytes(32), randomBytes(32), randomBytes(32)];
const printOf = (key: Uint8Array) => createSeal(key).fingerprints[0];
const DAY_MS = 86_400_000;

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());
beforeEach(async () => {
  await store.query("TRUNCATE secrets_keys");
  await store.query("DELETE FROM signing_secrets");
});

let lines: { level: "info" | "warn"; fields: object; message: string }[] = [];
const log = {
  debug: () => undefined,
  info: (fields: object, message: string) => lines.push({ level: "info", fields, message }),
  warn: (fields: object, message: string) => lines.push({ level: "warn", fields, message }),
  error: () => undefined,
};
beforeEach(() => {
  lines = [];
});

const open = (secretsKey: Uint8Array, ...secretsKeyFallbacks: Uint8Array[]) =>
  openCellSeal({ db: store.db, log }, { secretsKey, secretsKeyFallbacks });

/** A secret of a cell from before keys were noted. */
async function addSealed(key: Uint8Array, at = Date.now()): Promise<void> {
  const projectNo = await store.addProject();
  await store.query("DELETE FROM signing_secrets WHERE project_no = $1", [projectNo]);
  const id = idToUuid(createIdSource(randomBytes).next("sec_", at));
  await store.query(
    "INSERT INTO signing_secrets (id, project_no, environment, sealed) VALUES ($1, $2, 0, $3)",
    [id, projectNo, createSeal(key).seal("secret")],
  );
}

const known = async () => (await lookAtKeys(store.db)).known;
const rows = () => store.query("SELECT * FROM secrets_keys ORDER BY fingerprint");

describe("a new cell", () => {
  test("takes the key of its first process, and refuses every other", async () => {
    await open(A);
    await expect(open(B)).rejects.toThrow(WrongSecretsKey);
    await open(A);
    expect((await known()).map(({ fingerprint }) => fingerprint)).toEqual([printOf(A)]);
  });

  test("that many processes start at once with different keys has one of these keys, and refuses the others", async () => {
    const outcomes = await Promise.allSettled(Array.from({ length: 8 }, () => open(randomBytes(32))));
    expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
    for (const outcome of outcomes)
      if (outcome.status === "rejected") expect(outcome.reason).toBeInstanceOf(WrongSecretsKey);
    expect(await known()).toHaveLength(1);
  });
});

describe("a cell from before keys were noted", () => {
  test("has the key that opens what is there, as old as its oldest secret", async () => {
    const at = Date.now() - 400 * DAY_MS;
    await addSealed(A, at);
    await addSealed(A);
    await open(A);
    expect(await known()).toMatchObject([{ fingerprint: printOf(A), seals: true, firstUsedAt: at }]);
  });

  test("is not taken over by a key that opens nothing", async () => {
    await addSealed(A);
    await expect(open(B, C)).rejects.toThrow("SECRETS_KEY is not the key of this cell");
    expect(await known()).toEqual([]);
  });

  test("knows both keys where its first process brings it a new one", async () => {
    await addSealed(A);
    await open(B, A);
    expect((await known()).map(({ fingerprint, seals }) => [fingerprint, seals])).toEqual([
      [printOf(A), false],
      [printOf(B), true],
    ]);
  });
});

describe("a change of the key", () => {
  test("needs the key before as a fallback; the refusal names the missing key's fingerprint and tells no key", async () => {
    await open(A);
    const before = await rows();
    const refused = await open(B, C).catch((error: Error) => error.message);
    expect(refused).toContain(`sealed under ${printOf(A)}`);
    for (const key of [A, B, C])
      for (const encoding of ["hex", "base64"] as const)
        expect(refused).not.toContain(key.toString(encoding));
    expect(await rows()).toEqual(before);
    expect((await open(B, A)).fingerprints).toEqual([printOf(B), printOf(A)]);
    expect(lines.at(-1)).toEqual({
      level: "info",
      fields: { fingerprint: printOf(B) },
      message: "secrets_key.noted",
    });
  });

  test("goes on while processes of the step before it restart", async () => {
    await open(A, B);
    await open(B, A);
    await open(A, B);
    await open(B, A);
    const [first, second] = await known();
    expect([first?.fingerprint, first?.seals]).toEqual([printOf(A), false]);
    expect([second?.fingerprint, second?.seals]).toEqual([printOf(B), true]);
  });

  test("is not undone by a process that was left behind and seals nothing", async () => {
    await open(A);
    await open(B, A);
    await store.query("UPDATE secrets_keys SET retired_at = now() WHERE fingerprint = $1", [printOf(A)]);
    const before = await rows();
    const leftBehind = { secretsKey: A, secretsKeyFallbacks: [B] };
    expect((await openCellSeal({ db: store.db, log }, leftBehind, "opens")).fingerprints[1]).toBe(printOf(B));
    expect(await rows()).toEqual(before);
    await open(B);
  });

  test("is not over while something may be sealed under the key before", async () => {
    await open(A);
    await open(B, A);
    await expect(open(B)).rejects.toThrow(`SECRETS_KEY_FALLBACKS must still hold ${printOf(A)}`);
    await store.query("UPDATE secrets_keys SET retired_at = now() WHERE fingerprint = $1", [printOf(A)]);
    await open(B);
  });
});

describe("the age of a key", () => {
  test.each([
    [364, false],
    [366, true],
  ])("of %d days is warned of: %p", async (days, isWarnedOf) => {
    await open(A);
    await store.query("UPDATE secrets_keys SET first_used_at = now() - $1::int * interval '1 day'", [days]);
    lines = [];
    await open(A);
    const warning = { level: "warn", fields: { fingerprint: printOf(A), days }, message: "secrets_key.old" };
    expect(lines).toEqual(isWarnedOf ? ([warning] as typeof lines) : []);
  });
});

test("a start with the cell's key asks the database once, and changes nothing", async () => {
  await open(A);
  const asked: string[] = [];
  const db: typeof store.db = {
    ...store.db,
    run: (name, text, values) => {
      asked.push(name);
      return store.db.run(name, text, values);
    },
    transact: () => Promise.reject(new Error("a change")),
  };
  await openCellSeal({ db, log }, { secretsKey: A, secretsKeyFallbacks: [] });
  expect(asked).toEqual(["look_at_keys"]);
});
