import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { declareNodeDead } from "../cell/nodes.ts";
import { startStore, type TestStore, until } from "../test-support.ts";
import {
  acquireShards,
  createShards,
  type HeldShard,
  listFreeShards,
  listShards,
  renewShards,
  resignShards,
  type ShardName,
} from "./shards.ts";

const LEASE_MS = 60_000;
const ALL: ShardName[] = [0, 1, 2, 3].map((shard) => ({ region: "us-east", shard }));

let store: TestStore;
let one: number;
let other: number;
beforeAll(async () => {
  store = await startStore();
  one = await store.addNode();
  other = await store.addNode();
});
afterAll(() => store.stop());
beforeEach(async () => {
  await store.query("TRUNCATE shards");
  await createShards(store.db, ["us-east"], ALL.length);
});

const acquire = (nodeId: number, wanted = ALL, leaseMs = LEASE_MS) =>
  acquireShards(store.db, nodeId, wanted, leaseMs).then((held) => held.sort(byShard));
const endLeases = () => store.query("UPDATE shards SET lease_until = now() - interval '1 ms'");
const byShard = (first: ShardName, second: ShardName) => first.shard - second.shard;
const numbersOf = (shards: readonly ShardName[]) => shards.map(({ shard }) => shard).sort();

describe("shards", () => {
  test("are created once, and a larger setting adds the missing ones", async () => {
    await acquire(one);
    await Promise.all([
      createShards(store.db, ["us-east", "us-west"], 6),
      createShards(store.db, ["us-east"], 6),
    ]);
    const rows = await listShards(store.db, ["us-east"]);
    expect(rows.map(({ shard, epoch }) => [shard, epoch])).toEqual([
      [0, 1],
      [1, 1],
      [2, 1],
      [3, 1],
      [4, 0],
      [5, 0],
    ]);
    expect(await listShards(store.db, ["us-east", "us-west"])).toHaveLength(12);
  });

  test("have one owner while the lease lasts, and a new epoch with each owner", async () => {
    expect(await acquire(one)).toEqual(ALL.map((name) => ({ ...name, epoch: 1 })));
    expect(await acquire(other)).toEqual([]);
    expect(await acquire(one)).toEqual([]);
    const [row] = await listShards(store.db, ["us-east"]);
    expect(row).toMatchObject({ owner: one, epoch: 1 });
    expect(row?.leaseLeftMs).toBeGreaterThan(LEASE_MS - 5_000);
    await endLeases();
    expect((await listShards(store.db, ["us-east"]))[0]?.leaseLeftMs).toBe(0);
    expect((await listFreeShards(store.db, ["us-east"])).map(({ shard }) => shard)).toContain(0);
    expect(await acquire(other)).toEqual(ALL.map((name) => ({ ...name, epoch: 2 })));
  });

  test("of an owner that is proved dead are free at once", async () => {
    const dying = await store.addNode();
    await acquire(dying);
    await declareNodeDead(store.db, dying);
    expect((await listShards(store.db, ["us-east"])).map((row) => row.leaseLeftMs)).toEqual([0, 0, 0, 0]);
    expect(await listFreeShards(store.db, ["us-east"])).toHaveLength(ALL.length);
    expect(await acquire(other)).toEqual(ALL.map((name) => ({ ...name, epoch: 2 })));
  });

  test("are renewed by their owner alone, and after a lapsed lease only if nobody has taken them", async () => {
    const held = await acquire(one);
    expect(await renewShards(store.db, other, held, LEASE_MS)).toEqual([]);
    await endLeases();
    expect((await renewShards(store.db, one, held, LEASE_MS)).sort(byShard)).toEqual(held);
    expect(await acquire(other)).toEqual([]);
    await endLeases();
    await acquire(other, [{ region: "us-east", shard: 2 }]);
    expect(numbersOf(await renewShards(store.db, one, held, LEASE_MS))).toEqual([0, 1, 3]);
  });

  test("are free at once when their owner resigns them, and stay when another node resigns them", async () => {
    const held = await acquire(one);
    await resignShards(store.db, other, held);
    await resignShards(store.db, one, [{ region: "us-east", shard: 1, epoch: 7 }]);
    expect(await acquire(other)).toEqual([]);
    await resignShards(store.db, one, held.slice(0, 2));
    expect(await acquire(other)).toEqual(ALL.slice(0, 2).map((name) => ({ ...name, epoch: 2 })));
    await resignShards(store.db, one, held.slice(0, 2));
    expect(await acquire(one)).toEqual([]);
    expect(await renewShards(store.db, one, held.slice(0, 2), LEASE_MS)).toEqual([]);
  });

  test("never have two owners, however nodes take, renew, resign and lapse at the same time", async () => {
    const nodes = [one, other, await store.addNode(), await store.addNode()];
    const epochs = new Map<string, number>();
    await Promise.all(
      nodes.map(async (nodeId) => {
        let held: HeldShard[] = [];
        for (let round = 0; round < 60; round++) {
          const acquired = await acquire(nodeId);
          for (const { shard, epoch } of acquired) {
            // An epoch is given out once, so the holder of a lower epoch holds nothing.
            expect(epochs.has(`${shard}/${epoch}`)).toBe(false);
            epochs.set(`${shard}/${epoch}`, nodeId);
          }
          held = [...held, ...acquired];
          const standing = await renewShards(store.db, nodeId, held, LEASE_MS);
          const rows = new Map((await listShards(store.db, ["us-east"])).map((row) => [row.shard, row]));
          for (const { shard, epoch } of standing) {
            const row = rows.get(shard);
            // The lease may have ended and been taken since; the epoch is then a later one.
            if (row?.epoch === epoch) expect(row.owner).toBe(nodeId);
            else expect(row?.epoch).toBeGreaterThan(epoch);
          }
          held = standing;
          if (round % 3 === 0) {
            await store.query("UPDATE shards SET lease_until = now() - interval '1 ms' WHERE shard = $1", [
              round % 4,
            ]);
          }
          if (round % 3 === 1) await resignShards(store.db, nodeId, held.splice(0, 1));
        }
      }),
    );
    const rows = await listShards(store.db, ["us-east"]);
    const givenOut = [...epochs.keys()].length;
    expect(rows.reduce((sum, row) => sum + row.epoch, 0)).toBe(givenOut);
    expect(givenOut).toBeGreaterThan(20);
  });
});

describe("the fence", () => {
  const FENCE = "SELECT FROM shards WHERE region = 0 AND shard = $1 AND epoch = $2 FOR KEY SHARE";

  test("lets a renewal pass while a fenced write is under way", async () => {
    const held = await acquire(one);
    const writer = await store.session();
    await writer.query("BEGIN");
    expect((await writer.query(FENCE, [1, 1])).rowCount).toBe(1);
    expect((await renewShards(store.db, one, held, LEASE_MS)).sort(byShard)).toEqual(held);
    await writer.query("COMMIT");
  });

  test("keeps a takeover waiting until the fenced write is over", async () => {
    await acquire(one);
    const writer = await store.session();
    await writer.query("BEGIN");
    await writer.query(FENCE, [1, 1]);
    await endLeases();
    expect(numbersOf(await acquire(other))).toEqual([0, 2, 3]);
    expect((await listShards(store.db, ["us-east"]))[1]).toMatchObject({ owner: one, epoch: 1 });
    await writer.query("COMMIT");
    expect(await acquire(other)).toEqual([{ region: "us-east", shard: 1, epoch: 2 }]);
  });

  test("refuses every write under an old epoch once the next one is granted, also one that waited for the takeover", async () => {
    await acquire(one);
    await endLeases();
    const taker = await store.session();
    await taker.query("BEGIN");
    await taker.query("UPDATE shards SET epoch = epoch + 1, owner = $1 WHERE region = 0 AND shard = 1", [
      other,
    ]);
    const writer = await store.session();
    const writing = writer.query(FENCE, [1, 1]);
    await store.untilBlocked();
    await taker.query("COMMIT");
    expect((await writing).rowCount).toBe(0);
    expect((await writer.query(FENCE, [1, 1])).rowCount).toBe(0);
    expect((await writer.query(FENCE, [1, 2])).rowCount).toBe(1);
  });

  test("keeps a lease from being taken while its owner renews it in the last moment", async () => {
    const held = await acquire(one, ALL, 200);
    await until(async () => {
      const [renewed, taken] = await Promise.all([
        renewShards(store.db, one, held, 1),
        acquire(other, ALL, LEASE_MS),
      ]);
      const both = new Set(numbersOf(renewed).filter((shard) => numbersOf(taken).includes(shard)));
      // The first renewal was for a millisecond only; the epoch tells which node owns the shard now.
      for (const shard of both) {
        expect((await listShards(store.db, ["us-east"]))[shard]).toMatchObject({ owner: other, epoch: 2 });
      }
      return taken.length > 0;
    });
  });
});
