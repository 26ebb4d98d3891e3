import { afterAll, beforeAll, expect, test } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import { ApiError } from "../../../shared/domain/errors.ts";
import { createIdSource, KEY_PREFIX } from "../../../shared/domain/ids.ts";
import { makeKey } from "../../../shared/domain/key.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { addKey } from "../../../shared/store/resources/keys.ts";
import { startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { createAuthenticator } from "./authenticate.ts";

let store: TestStore;
let projectNo: number;
const ids = createIdSource(randomBytes);

beforeAll(async () => {
  store = await startStore();
  projectNo = await store.addProject();
});
afterAll(() => store.stop());

/** An authenticator, and the number of keys in each of its look-ups. `onRead` runs before the answer of a look-up arrives. */
function watched(onRead: () => Promise<void> = async () => {}) {
  const asked: number[] = [];
  const db: Database = {
    ...store.db,
    async run<Row>(name: string, text: string, values: unknown[]) {
      asked.push((values[0] as unknown[]).length);
      const rows = await store.db.run<Row>(name, text, values);
      await onRead();
      return rows;
    },
  };
  const notes: number[] = [];
  const authenticator = createAuthenticator(db, { note: (keyNo) => notes.push(keyNo) });
  const codeOf = async (header: string | null) => {
    try {
      await authenticator.authenticate(header);
      return "accepted";
    } catch (error) {
      if (error instanceof ApiError) return error.code;
      throw error;
    }
  };
  return { asked, notes, codeOf, forget: authenticator.forget };
}

const guess = () => makeKey("production", randomBytes);

async function addRealKey(key: string): Promise<void> {
  await addKey(store.db.drizzle, {
    id: ids.next(KEY_PREFIX, Date.now()),
    projectNo,
    environment: "production",
    scope: "full",
    name: null,
    hash: createHash("sha256").update(key).digest(),
    expiresAt: null,
  });
}

test("a malformed key is refused without a look-up", async () => {
  const { asked, codeOf } = watched();
  const key = guess();
  const mistyped = key.slice(0, -1) + (key.endsWith("a") ? "b" : "a");
  const headers = [
    null,
    "",
    "Bearer",
    "Bearer ",
    key,
    `Basic ${key}`,
    `Bearer ${key} ${key}`,
    `Bearer ${key}, Bearer ${key}`,
    ...[mistyped, key.toUpperCase(), `${key}a`, key.slice(0, -1), "x".repeat(10_000)].map(
      (it) => `Bearer ${it}`,
    ),
    ...["svc_dev_", "svc_live_", "' OR 1=1 --", "\u0000"].map((it) => `Bearer ${it}`),
  ];
  for (const header of headers) expect(await codeOf(header)).toBe("unauthorized");
  expect(asked).toEqual([]);
});

test("a thousand guessed keys at once share a few look-ups, and a real key among them is found", async () => {
  const { asked, notes, codeOf } = watched();
  const real = guess();
  await addRealKey(real);
  const guesses = Array.from({ length: 1_000 }, () => codeOf(`Bearer ${guess()}`));
  expect(await codeOf(`Bearer ${real}`)).toBe("accepted");
  expect(new Set(await Promise.all(guesses))).toEqual(new Set(["unauthorized"]));
  expect(asked).toEqual([500, 500, 1]);
  expect(notes).toHaveLength(1);
});

test("an unknown key that comes many times at once is looked up once", async () => {
  const { asked, codeOf } = watched();
  const key = guess();
  await Promise.all(Array.from({ length: 1_000 }, () => codeOf(`Bearer ${key}`)));
  expect(asked).toEqual([1]);
});

test("a known key is not looked up again, and each of its uses is noted", async () => {
  const { asked, notes, codeOf } = watched();
  const real = guess();
  await addRealKey(real);
  for (let use = 0; use < 5; use++) expect(await codeOf(`Bearer ${real}`)).toBe("accepted");
  expect(asked).toEqual([1]);
  expect(notes).toHaveLength(5);
});

test("a new key works at once, although it was looked up just before it was made", async () => {
  const { codeOf } = watched();
  const key = guess();
  for (let look = 0; look < 3; look++) expect(await codeOf(`Bearer ${key}`)).toBe("unauthorized");
  await addRealKey(key);
  expect(await codeOf(`Bearer ${key}`)).toBe("accepted");
});

test("a key that was revoked while it was looked up is refused once its project is forgotten", async () => {
  const read = Promise.withResolvers<void>();
  const arrival = Promise.withResolvers<void>();
  const { codeOf, forget } = watched(() => {
    read.resolve();
    return arrival.promise;
  });
  const key = guess();
  await addRealKey(key);
  const before = codeOf(`Bearer ${key}`);
  await read.promise;
  await store.query("UPDATE api_keys SET revoked_at = now() WHERE hash = $1", [
    createHash("sha256").update(key).digest(),
  ]);
  forget(projectNo);
  const during = codeOf(`Bearer ${key}`);
  arrival.resolve();
  expect(await before).toBe("accepted");
  expect(await during).toBe("unauthorized");
  expect(await codeOf(`Bearer ${key}`)).toBe("unauthorized");
});
