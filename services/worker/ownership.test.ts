import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { rendezvousOwner } from "../../shared/domain/shard.ts";
import { startClock } from "../../shared/platform/clock.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import { askTime, type Database, StoreUnavailable } from "../../shared/store/database/database.ts";
import { createShards, type HeldShard, listShards, renewShards } from "../../shared/store/queue/shards.ts";
import { startStore, type TestStore, until } from "../../shared/store/test-support.ts";
import { startStopwatch } from "../../test/support/stopwatch.ts";
import { Ownership, shardName } from "./ownership.ts";
import { startWorker } from "./start.ts";

setDefaultTimeout(60_000);

const SHARDS = 8;
const LEASE_MS = 1_500;
const LONG_LEASE_MS = 20_000;
const log = createLog({ level: "silent", name: "test" });

let store: TestStore;
let clock: Awaited<ReturnType<typeof startClock>>;
beforeAll(async () => {
  store = await startStore();
  clock = await startClock(() => askTime(store.db));
});
afterAll(async () => {
  clock.stop();
  await store.stop();
});

const joinWorker = async () => {
  const name = `worker-${randomBytes(6).toString("hex")}`;
  const id = await addNode(store.db, { kind: "worker", name, regions: ["us-east"], process: "test" });
  if (id === null) throw new Error("the name is taken");
  return id;
};

/** How many shards each node has whose lease lasts. */
async function ownersNow(): Promise<Map<number, number>> {
  const counts = new Map<number, number>();
  for (const row of await listShards(store.db, ["us-east"])) {
    if (row.owner !== null && row.leaseLeftMs > 0) counts.set(row.owner, (counts.get(row.owner) ?? 0) + 1);
  }
  return counts;
}

/** A worker of this process that can be cut off from Postgres, as by a kill or a broken network. */
async function startWorkerOn(leaseMs = LEASE_MS) {
  const nodeId = await joinWorker();
  let isCut = false;
  const db: Database = {
    ...store.db,
    run: (name, text, values) =>
      isCut ? Promise.reject(new StoreUnavailable("cut off")) : store.db.run(name, text, values),
  };
  const bus = createInProcessBus(log);
  const cell = { db, bus, clock, log, metrics: createMetrics(), traces: NO_TRACES };
  const worker = await startWorker(cell, {
    nodeId,
    regions: ["us-east"],
    shardsPerRegion: SHARDS,
    leaseTtlMs: leaseMs,
    attemptTimeoutMs: 10_000,
    webhookTimeoutMs: 10_000,
    webhookRetryScale: 1,
    isProvedDead: () => false,
    onDeclaredDead: () => undefined,
  });
  return {
    nodeId,
    cut() {
      isCut = true;
    },
    async stop() {
      await worker.stop().catch((error: unknown) => {
        if (!(error instanceof StoreUnavailable)) throw error;
      });
      await bus.close();
    },
  };
}

describe("two workers", () => {
  test("share the shards, and one soon owns what the other gives back", async () => {
    const [one, two] = [await startWorkerOn(LONG_LEASE_MS), await startWorkerOn(LONG_LEASE_MS)];
    const wanted = new Map<number, number>();
    for (let shard = 0; shard < SHARDS; shard++) {
      const owner = rendezvousOwner("us-east", shard, [one.nodeId, two.nodeId]) ?? 0;
      wanted.set(owner, (wanted.get(owner) ?? 0) + 1);
    }
    await until(async () => Bun.deepEquals(await ownersNow(), wanted));

    await two.stop();
    const stopwatch = startStopwatch();
    await until(async () => (await ownersNow()).get(one.nodeId) === SHARDS);
    // It said that it goes, so no lease had to be waited for, only the next look.
    expect(stopwatch.stop()).toBeLessThan(3_000);
    await one.stop();
    expect(await ownersNow()).toEqual(new Map());
  });

  test("one owns the shards of the other, which is cut off, within its lease and 3 s", async () => {
    const [one, two] = [await startWorkerOn(), await startWorkerOn()];
    await until(async () => {
      const owners = await ownersNow();
      return owners.has(one.nodeId) && owners.has(two.nodeId);
    });
    one.cut();
    const stopwatch = startStopwatch();
    await until(async () => (await ownersNow()).get(two.nodeId) === SHARDS);
    expect(stopwatch.stop()).toBeLessThan(LEASE_MS + 3_000);
    await one.stop();
    await two.stop();
    expect(await ownersNow()).toEqual(new Map());
  });
});

describe("ownership", () => {
  // Nobody of the tests before counts as living.
  beforeEach(() => store.query("UPDATE nodes SET seen_at = now() - interval '1 day'").then(endLeases));

  async function own(leaseMs = 60_000) {
    await createShards(store.db, ["us-east"], SHARDS);
    const nodeId = await joinWorker();
    const held = new Map<string, number>();
    const losses: string[] = [];
    const acquiring = { sentAt: Number.NaN };
    const db: Database = {
      ...store.db,
      run(name, text, values) {
        if (name === "acquire_shards") acquiring.sentAt = performance.now();
        return store.db.run(name, text, values);
      },
    };
    const ownership = new Ownership({
      db,
      nodeId,
      regions: ["us-east"],
      leaseMs,
      log,
      onAcquired: (shards: HeldShard[]) => {
        for (const shard of shards) held.set(shardName(shard), shard.epoch);
      },
      onLost: (shards, why) => {
        losses.push(why);
        for (const shard of shards) held.delete(shardName(shard));
      },
    });
    return { ownership, held, losses, nodeId, acquiring };
  }
  const silence = (nodeId: number) =>
    store.query("UPDATE nodes SET seen_at = now() - interval '1 day' WHERE id = $1", [nodeId]);
  const endLeases = () => store.query("UPDATE shards SET lease_until = now() - interval '1 ms'");

  test("takes free shards, and trusts its lease for less than the lease's time", async () => {
    const leaseMs = 4_000;
    const { ownership, held, acquiring } = await own(leaseMs);
    expect(ownership.isTrusted).toBe(false);
    await ownership.tick();
    expect(held.size).toBe(SHARDS);
    expect(ownership.isTrusted).toBe(true);
    let trustedAt = 0;
    await until(() => {
      const lookedAt = performance.now();
      if (ownership.isTrusted) trustedAt = lookedAt;
      return trustedAt < lookedAt;
    });
    expect(trustedAt - acquiring.sentAt).toBeLessThan(0.9 * leaseMs);
    // Nobody took them meanwhile, so a renewal is enough and no shard has to begin anew.
    const epochs = new Map(held);
    await ownership.tick();
    expect(ownership.isTrusted).toBe(true);
    expect(held).toEqual(epochs);
    await ownership.resign();
    expect(held.size).toBe(0);
  });

  test("drops at the next renewal exactly the shards that another worker has taken", async () => {
    const { ownership, held, losses, nodeId } = await own(40);
    await ownership.tick();
    const thief = await joinWorker();
    await store.query(
      "UPDATE shards SET epoch = epoch + 1, owner = $1, lease_until = now() + interval '1 min' WHERE shard = 5",
      [thief],
    );
    await silence(thief);
    await until(async () => {
      await ownership.tick();
      return !held.has("us-east/5");
    });
    expect(held.size).toBe(SHARDS - 1);
    await endLeases();
    await until(async () => {
      await ownership.tick();
      return held.has("us-east/5");
    });
    expect((await listShards(store.db, ["us-east"])).every((row) => row.owner === nodeId)).toBe(true);
    expect(new Set(losses)).toEqual(new Set(["lost"]));
    losses.length = 0;
    await ownership.resign();
    expect(losses).toEqual(["resigned"]);
  });

  test("gives up the shards that another worker should own, one at a time, and never do both act for one", async () => {
    const [one, two] = [await own(), await own()];
    await silence(two.nodeId);
    await one.ownership.tick();
    expect(one.held.size).toBe(SHARDS);
    await store.query("UPDATE nodes SET seen_at = now() WHERE id = $1", [two.nodeId]);
    for (let round = 0; round < 2 * SHARDS; round++) {
      const before = one.held.size;
      await one.ownership.tick();
      expect(before - one.held.size).toBeLessThanOrEqual(1);
      await two.ownership.tick();
      expect([...one.held.keys()].filter((name) => two.held.has(name))).toEqual([]);
    }
    expect(one.held.size + two.held.size).toBe(SHARDS);
    for (const [name] of two.held) {
      expect(rendezvousOwner("us-east", Number(name.split("/")[1]), [one.nodeId, two.nodeId])).toBe(
        two.nodeId,
      );
    }
    expect(two.held.size).toBeGreaterThan(0);
    expect(new Set(one.losses)).toEqual(new Set(["resigned"]));
    await Promise.all([one.ownership.resign(), two.ownership.resign()]);
  });

  test("that is resigned twice, or by a worker that has lost its shards, takes nothing from the next owner", async () => {
    const [one, two] = [await own(), await own()];
    await silence(two.nodeId);
    await one.ownership.tick();
    await endLeases();
    await silence(one.nodeId);
    await store.query("UPDATE nodes SET seen_at = now() WHERE id = $1", [two.nodeId]);
    await two.ownership.tick();
    expect(two.held.size).toBe(SHARDS);
    await one.ownership.resign();
    await one.ownership.resign();
    const held = [...two.held].map(([name, epoch]) => ({
      region: "us-east" as const,
      shard: Number(name.split("/")[1]),
      epoch,
    }));
    expect(await renewShards(store.db, two.nodeId, held, 1_000)).toHaveLength(SHARDS);
    await two.ownership.resign();
  });
});
