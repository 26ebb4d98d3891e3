import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { testCause } from "../../../test/support/cause.ts";
import { askTime } from "../database/database.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { lookAtCell } from "./cell.ts";
import { type CellKeys, lookAtKeys, loseKey, noteKeys, retireKeys } from "./secrets-keys.ts";

const YEAR_MS = 365 * 86_400_000;

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());
beforeEach(() => store.query("TRUNCATE secrets_keys"));

const now = (fingerprint: string) => ({ fingerprint, firstUsedAt: null });
/** The known keys as text: `A` seals, `a` opens, `(a)` is retired. */
async function shown(): Promise<string> {
  const { known } = await lookAtKeys(store.db);
  return known
    .map(({ fingerprint, seals, isRetired }) =>
      isRetired ? `(${fingerprint})` : seals ? fingerprint.toUpperCase() : fingerprint,
    )
    .join(" ");
}

describe("the cell's keys", () => {
  test("are none at first, and come with a sealed secret to try a key on if there is any", async () => {
    expect(await lookAtKeys(store.db)).toMatchObject({ known: [] });
    await store.addProject();
    const { sample } = await lookAtKeys(store.db);
    expect(sample?.sealed.length).toBe(40);
    expect(Math.abs((sample?.oldestAt ?? 0) - Date.now())).toBeLessThan(60_000);
  });

  test("have exactly one that seals after every change, and each keeps the age of its first use", async () => {
    const firstUsedAt = Date.now() - 2 * YEAR_MS;
    expect((await lookAtCell(store.db)).secretsKeyAgeSeconds).toBeNull();
    await noteKeys(store.db, () => [{ fingerprint: "a", firstUsedAt }]);
    const { secretsKeyAgeSeconds } = await lookAtCell(store.db);
    expect(secretsKeyAgeSeconds).toBeWithin((2 * YEAR_MS) / 1_000 - 60, (2 * YEAR_MS) / 1_000 + 60);
    await noteKeys(store.db, () => [now("b")]);
    expect(await shown()).toBe("a B");
    await noteKeys(store.db, () => [now("a")]);
    expect(await shown()).toBe("A b");
    const { known } = await lookAtKeys(store.db);
    expect(known[0]?.firstUsedAt).toBe(firstUsedAt);
    expect(known[0]?.ageSeconds).toBeWithin((2 * YEAR_MS) / 1_000 - 60, (2 * YEAR_MS) / 1_000 + 60);
    expect(known[1]?.ageSeconds).toBeLessThan(60);
  });

  test("are decided on by one process at a time: of many processes with different keys one is first", async () => {
    const decideFirst = (fingerprint: string) => (keys: CellKeys) => {
      if (keys.known.length > 0) throw new Error("another was first");
      return [now(fingerprint)];
    };
    // A connection that is made behind the lock would let the others wait for longer.
    await Promise.all(Array.from({ length: 6 }, () => askTime(store.db)));
    const gate = await store.session();
    await gate.query("BEGIN; LOCK TABLE secrets_keys IN ACCESS EXCLUSIVE MODE");
    const notes = Array.from({ length: 6 }, (_, n) => noteKeys(store.db, decideFirst(`key ${n}`)));
    const outcomes = Promise.allSettled(notes);
    await store.untilBlocked(notes.length);
    await gate.query("COMMIT");
    const refusals = (await outcomes).flatMap((one) =>
      one.status === "rejected" ? [one.reason.message] : [],
    );
    expect(refusals).toEqual(Array.from({ length: 5 }, () => "another was first"));
    expect((await lookAtKeys(store.db)).known).toHaveLength(1);
  });

  test("stay as they are when the decision throws", async () => {
    await noteKeys(store.db, () => [now("a")]);
    const fail = () => {
      throw new Error("refused");
    };
    await expect(noteKeys(store.db, fail)).rejects.toThrow("refused");
    expect(await shown()).toBe("A");
  });

  test("are retired except for the sealing one, unless another key has begun to seal", async () => {
    await noteKeys(store.db, () => [now("a"), now("b"), now("c")]);
    expect(await retireKeys(store.db, "b", testCause())).toEqual([]);
    expect(await shown()).toBe("a b C");
    expect((await retireKeys(store.db, "c", testCause())).sort()).toEqual(["a", "b"]);
    expect(await retireKeys(store.db, "c", testCause())).toEqual([]);
    expect(await shown()).toBe("(a) (b) C");
    await noteKeys(store.db, () => [now("a")]);
    expect(await shown()).toBe("A (b) c");
  });

  test("lose one, and the named successor seals if the lost one was sealing", async () => {
    await noteKeys(store.db, () => [now("a"), now("b")]);
    await loseKey(store.db, "a", "c", testCause());
    expect(await shown()).toBe("(a) B");
    await loseKey(store.db, "b", "c", testCause());
    await loseKey(store.db, "b", "d", testCause());
    expect(await shown()).toBe("(a) (b) C");
  });
});
