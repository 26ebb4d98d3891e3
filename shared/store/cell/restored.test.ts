import { afterEach, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { testCause } from "../../../test/support/cause.ts";
import { REGIONS } from "../../domain/scope.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { listHeldRegions, setRegionsHeld } from "./holds.ts";
import { beatNode, purgeNodes } from "./nodes.ts";
import { holdIfRestored, isNoted, noteHere } from "./restored.ts";

setDefaultTimeout(60_000);

let store: TestStore;
beforeEach(async () => {
  store = await startStore();
});
afterEach(() => store.stop());

const isHeld = async () => (await listHeldRegions(store.db)).length === REGIONS.length;
const OTHERS = {
  "server, as that of a dump that was restored elsewhere": "system_identifier = system_identifier - 1",
  "timeline, as after a recovery": "timeline = timeline - 1",
  "database, as that of a dump that was restored beside it": "database_oid = database_oid - 1",
};

describe("a cell that starts", () => {
  test("for the first time, or again on the same Postgres however late, is not held", async () => {
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
    await store.query("UPDATE nodes SET seen_at = now() - interval '1 y'");
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
    expect(await isHeld()).toBe(false);
  });

  test.each(Object.entries(OTHERS))(
    "on another %s, is held once, and goes on when it is told to",
    async (_, change) => {
      await isNoted(store.db);
      await store.query(`UPDATE cell SET ${change}`);
      expect(await isNoted(store.db)).toBe(false);
      const answers = await Promise.all([1, 2, 3].map(() => holdIfRestored(store.db)));
      expect(answers.filter((isRestored) => isRestored)).toHaveLength(1);
      expect(await isHeld()).toBe(true);
      expect((await listHeldRegions(store.db)).every(({ isRestored }) => isRestored)).toBe(true);
      await setRegionsHeld(store.db, REGIONS, false, testCause());
      expect(await isNoted(store.db)).toBe(true);
      expect(await holdIfRestored(store.db)).toBe(false);
      expect(await isHeld()).toBe(false);
    },
  );

  test("with a note from before databases were noted is not held, and the next beat completes it", async () => {
    await isNoted(store.db);
    await store.query("UPDATE cell SET database_oid = NULL");
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
    await beatNode(store.db, await store.addNode(), 0);
    expect(await store.query("SELECT FROM cell WHERE database_oid IS NOT NULL")).toHaveLength(1);
  });
});

describe("a node that was at work", () => {
  test("and finds all its beats on another timeline notes it: a failover holds nothing", async () => {
    await isNoted(store.db);
    const node = await store.addNode();
    expect(await beatNode(store.db, node, 0)).toEqual({ kind: "alive", beats: 1 });
    await store.query("UPDATE cell SET timeline = timeline - 1");
    expect(await beatNode(store.db, node, 1)).toEqual({ kind: "alive", beats: 2 });
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
  });

  test("and misses a beat that was answered is told so, beats no more and notes nothing", async () => {
    await isNoted(store.db);
    const node = await store.addNode();
    await beatNode(store.db, node, 0);
    await store.query("UPDATE cell SET timeline = timeline - 1");
    expect(await beatNode(store.db, node, 2)).toEqual({ kind: "restored" });
    expect(await isNoted(store.db)).toBe(false);
    expect(await store.query("SELECT beats::int FROM nodes WHERE id = $1", [node])).toEqual([{ beats: 1 }]);
  });

  test("and is not there at all was added after the backup", async () => {
    expect(await beatNode(store.db, 4_711, 0)).toEqual({ kind: "restored" });
    await store.addNode();
    expect(await beatNode(store.db, 4_711, 0)).toEqual({ kind: "restored" });
  });

  test("and thaws after it was purged is dead, which restores nothing", async () => {
    const frozen = await store.addNode();
    await beatNode(store.db, frozen, 0);
    await store.query("UPDATE nodes SET dead = true, seen_at = now() - interval '32 days'");
    await store.addNode();
    expect(await purgeNodes(store.db, 10, Date.now())).toBe(1);
    expect(await beatNode(store.db, frozen, 1)).toEqual({ kind: "dead" });
  });

  test("and beats waits for nobody else's beat, however long its commit takes", async () => {
    const [mine, other] = [await store.addNode(), await store.addNode()];
    await beatNode(store.db, mine, 0);
    const slow = await store.session();
    await slow.query("BEGIN");
    await slow.query("UPDATE nodes SET seen_at = now(), beats = beats + 1 WHERE id = $1", [other]);
    await slow.query(noteHere("SELECT"));
    expect(await beatNode(store.db, mine, 1)).toEqual({ kind: "alive", beats: 2 });
  });

  test("and is declared dead amid its beat is dead, which restores nothing", async () => {
    const node = await store.addNode();
    await beatNode(store.db, node, 0);
    const operator = await store.session();
    await operator.query("BEGIN");
    await operator.query("UPDATE nodes SET dead = true WHERE id = $1", [node]);
    const beating = beatNode(store.db, node, 1);
    await store.untilBlocked();
    await operator.query("COMMIT");
    expect(await beating).toEqual({ kind: "dead" });
    expect(await beatNode(store.db, node, 1)).toEqual({ kind: "dead" });
  });

  test("and proves a restore to a copy of the disk, which looks the same, holds the cell", async () => {
    await isNoted(store.db);
    expect(await holdIfRestored(store.db, { isProved: true })).toBe(true);
    expect(await isHeld()).toBe(true);
  });

  test("and whose beat was committed without an answer goes on", async () => {
    const node = await store.addNode();
    await beatNode(store.db, node, 0);
    expect(await beatNode(store.db, node, 0)).toEqual({ kind: "alive", beats: 2 });
  });
});
