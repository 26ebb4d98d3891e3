import { afterAll, beforeAll, expect, test } from "bun:test";
import { createHash, randomBytes } from "node:crypto";
import { createIdSource, KEY_PREFIX } from "../../../shared/domain/ids.ts";
import { createLog } from "../../../shared/platform/log.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { addKey } from "../../../shared/store/resources/keys.ts";
import { startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { createLastUse } from "./last-use.ts";

let store: TestStore;
let projectNo: number;
const ids = createIdSource(randomBytes);
const log = createLog({ name: "test", level: "silent" });

beforeAll(async () => {
  store = await startStore();
  projectNo = await store.addProject();
});
afterAll(() => store.stop());

async function addKeys(count: number): Promise<number[]> {
  const before = await store.query<{ no: number }>("SELECT no FROM api_keys");
  for (let n = 0; n < count; n++) {
    await addKey(store.db.drizzle, {
      id: ids.next(KEY_PREFIX, Date.now()),
      projectNo,
      environment: "production",
      scope: "full",
      name: null,
      hash: createHash("sha256").update(randomBytes(8)).digest(),
      expiresAt: null,
    });
  }
  const after = await store.query<{ no: number }>("SELECT no FROM api_keys ORDER BY no");
  return after.map(({ no }) => no).filter((no) => !before.some((row) => row.no === no));
}

/** The last-use writer of one gateway, whose clock the test sets. */
function watched() {
  const clock = { at: Date.now(), now: () => clock.at, stop: () => undefined };
  const written: number[] = [];
  const db: Database = {
    ...store.db,
    run(name, text, values) {
      written.push(String(values[0]).split(",").length);
      return store.db.run(name, text, values);
    },
  };
  return { clock, written, lastUse: createLastUse({ db, clock, log }) };
}

const usedAt = async (keyNo: number | undefined) => {
  const [row] = await store.query<{ last_used_at: Date | null }>(
    "SELECT last_used_at FROM api_keys WHERE no = $1",
    [keyNo],
  );
  return row?.last_used_at?.getTime() ?? null;
};

test("the last uses of several keys share a statement, and each key is written at most once a minute", async () => {
  const keys = await addKeys(3);
  const { clock, written, lastUse } = watched();
  for (let use = 0; use < 100; use++) for (const key of keys.slice(0, 2)) lastUse.note(key);
  await lastUse.tick();
  expect(written).toEqual([2]);
  expect(await Promise.all(keys.map(usedAt))).toEqual([clock.at, clock.at, null]);
  const first = clock.at;
  clock.at += 1_000;
  for (const key of keys) lastUse.note(key);
  await lastUse.tick();
  expect(written).toEqual([2, 1]);
  expect(await Promise.all(keys.map(usedAt))).toEqual([first, first, clock.at]);
  await lastUse.stop();
  expect(written).toEqual([2, 1, 2]);
  expect(await Promise.all(keys.map(usedAt))).toEqual(keys.map(() => clock.at));
});

test("unused keys are not written", async () => {
  const [key] = await addKeys(1);
  const { written, lastUse } = watched();
  for (let turn = 0; turn < 3; turn++) await lastUse.tick();
  await lastUse.stop();
  expect(written).toEqual([]);
  expect(await usedAt(key)).toBeNull();
});

test("the latest use remains, whichever gateway writes last, and gateways that write many keys do not deadlock", async () => {
  const keys = await addKeys(200);
  const gateways = [watched(), watched()];
  for (const [n, { clock, lastUse }] of gateways.entries()) {
    clock.at += n * 10_000;
    for (const key of n === 0 ? keys : keys.toReversed()) lastUse.note(key);
  }
  await Promise.all(gateways.map(({ lastUse }) => lastUse.tick()));
  const latest = gateways[1]?.clock.at ?? 0;
  expect(new Set(await Promise.all(keys.map(usedAt)))).toEqual(new Set([latest]));
  // The gateway whose clock is behind writes last.
  for (const key of keys) gateways[0]?.lastUse.note(key);
  await gateways[0]?.lastUse.stop();
  expect(new Set(await Promise.all(keys.map(usedAt)))).toEqual(new Set([latest]));
  await gateways[1]?.lastUse.stop();
});

test("a use that could not be written is written later", async () => {
  const [key] = await addKeys(1);
  if (key === undefined) throw new Error("there is no key");
  let isDown = true;
  const clock = { now: () => 1_700_000_000_000, stop: () => undefined };
  const db: Database = {
    ...store.db,
    run: (name, text, values) =>
      isDown ? Promise.reject(new Error("down")) : store.db.run(name, text, values),
  };
  const lastUse = createLastUse({ db, clock, log });
  lastUse.note(key);
  expect(await lastUse.tick()).toBe(false);
  isDown = false;
  expect(await lastUse.tick()).toBe(true);
  expect(await usedAt(key)).toBe(1_700_000_000_000);
  await lastUse.stop();
});
