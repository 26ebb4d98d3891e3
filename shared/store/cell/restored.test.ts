import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { testCause } from "../../../test/support/cause.ts";
import { REGIONS } from "../../domain/scope.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { listHeldRegions, setRegionsHeld } from "./holds.ts";
import { beatNode, purgeNodes } from "./nodes.ts";
import { holdIfRestored, isNoted, noteHere } from "./restored.ts";

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

describe("a start of the cell", () => {
  test("for the first time, or again on the same Postgres however late, holds nothing", async () => {
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
    await store.query("UPDATE nodes SET seen_at = now() - interval '1 y'");
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
    expect(await isHeld()).toBe(false);
  });

  test.each(Object.entries(OTHERS))(
    "on another %s holds every region once, until an operator resumes them",
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

  test("on a note without a database, as old releases wrote it, holds nothing, and the next beat completes the note", async () => {
    await isNoted(store.db);
    await store.query("UPDATE cell SET database_oid = NULL");
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
    await beatNode(store.db, await store.addNode(), 0);
    expect(await store.query("SELECT FROM cell WHERE database_oid IS NOT NULL")).toHaveLength(1);
  });
});

describe("a node at work", () => {
  test("that finds all its beats on another timeline notes that timeline: a failover holds nothing", async () => {
    await isNoted(store.db);
    const node = await store.addNode();
    expect(await beatNode(store.db, node, 0)).toEqual({ kind: "alive", beats: 1 });
    await store.query("UPDATE cell SET timeline = timeline - 1");
    expect(await beatNode(store.db, node, 1)).toEqual({ kind: "alive", beats: 2 });
    expect(await isNoted(store.db)).toBe(true);
    expect(await holdIfRestored(store.db)).toBe(false);
  });

  test("that misses an answered beat is told that its database was restored, beats no more and notes nothing", async () => {
    await isNoted(store.db);
    const node = await store.addNode();
    await beatNode(store.db, node, 0);
    await store.query("UPDATE cell SET timeline = timeline - 1");
    expect(await beatNode(store.db, node, 2)).toEqual({ kind: "restored" });
    expect(await isNoted(store.db)).toBe(false);
    expect(await store.query("SELECT beats::int FROM nodes WHERE id = $1", [node])).toEqual([{ beats: 1 }]);
  });

  test("whose row is missing because it was added after the backup is told that its database was restored", async () => {
    expect(await beatNode(store.db, 4_711, 0)).toEqual({ kind: "restored" });
    await store.addNode();
    expect(await beatNode(store.db, 4_711, 0)).toEqual({ kind: "restored" });
  });

  test("that thaws after its row was purged is told that it is dead, and not that its database was restored", async () => {
    const frozen = await store.addNode();
    await beatNode(store.db, frozen, 0);
    await store.query("UPDATE nodes SET dead = true, seen_at = now() - interval '32 days'");
    await store.addNode();
    expect(await purgeNodes(store.db, 10, Date.now())).toBe(1);
    expect(await beatNode(store.db, frozen, 1)).toEqual({ kind: "dead" });
  });

  test("beats without waiting for another node's beat, however long that one's commit takes", async () => {
    const [mine, other] = [await store.addNode(), await store.addNode()];
    await beatNode(store.db, mine, 0);
    const slow = await store.session();
    await slow.query("BEGIN");
    await slow.query("UPDATE nodes SET seen_at = now(), beats = beats + 1 WHERE id = $1", [other]);
    await slow.query(noteHere("SELECT"));
    expect(await beatNode(store.db, mine, 1)).toEqual({ kind: "alive", beats: 2 });
  });

  test("that is declared dead during its beat is told that it is dead, and not that its database was restored", async () => {
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

  test("that proves a restore to a copy of the disk, which looks like the same Postgres, holds the cell", async () => {
    await isNoted(store.db);
    expect(await holdIfRestored(store.db, { isProved: true })).toBe(true);
    expect(await isHeld()).toBe(true);
  });

  test("whose beat was committed without an answer goes on", async () => {
    const node = await store.addNode();
    await beatNode(store.db, node, 0);
    expect(await beatNode(store.db, node, 0)).toEqual({ kind: "alive", beats: 2 });
  });
});
