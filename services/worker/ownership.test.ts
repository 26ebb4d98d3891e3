import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import fc from "fast-check";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { rendezvousOwner } from "../../shared/domain/shard.ts";
import { type Clock, startClock } from "../../shared/platform/clock.ts";
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

setDefaultTimeout(600_000);

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

/** The number of shards of each node whose lease lasts. */
async function ownersNow(): Promise<Map<number, number>> {
  const counts = new Map<number, number>();
  for (const row of await listShards(store.db, ["us-east"])) {
    if (row.owner !== null && row.leaseLeftMs > 0) counts.set(row.owner, (counts.get(row.owner) ?? 0) + 1);
  }
  return counts;
}

/** A worker of this process that can be cut off from Postgres, as by a kill or a broken network. */
async function startWorkerOn(leaseMs = LEASE_MS, ofWorker: Clock = clock) {
  const nodeId = await joinWorker();
  let isCut = false;
  const db: Database = {
    ...store.db,
    run: (name, text, values) =>
      isCut ? Promise.reject(new StoreUnavailable("cut off")) : store.db.run(name, text, values),
  };
  const bus = createInProcessBus(log);
  const cell = { db, bus, clock: ofWorker, log, metrics: createMetrics(), traces: NO_TRACES };
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

test("a worker that owns no shard notes that the clock has leapt", async () => {
  const owner = await joinWorker();
  await createShards(store.db, ["us-east"], SHARDS);
  await store.query("UPDATE shards SET owner = $1, lease_until = now() + interval '1 h'", [owner]);
  let leaptMs = 0;
  const worker = await startWorkerOn(LEASE_MS, { now: () => clock.now() + leaptMs, stop: () => undefined });
  leaptMs = 3_600_000;
  await until(
    async () => (await store.query("SELECT FROM clock_watch WHERE isfinite(steady_since)")).length === 1,
  );
  expect((await ownersNow()).get(owner)).toBe(SHARDS);
  await worker.stop();
  await store.query("UPDATE shards SET lease_until = now()");
});

/** Repeats a trial until it took less than `timeMs`: the stopwatch does not see when the machine holds up Postgres. */
const untilWithin = (timeMs: number, trial: () => Promise<number>) =>
  until(async () => (await trial()) < timeMs);

describe("two workers", () => {
  test("share the shards, and one soon owns what the other gives back", async () => {
    await untilWithin(3_000, async () => {
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
      // The stopped worker resigned its shards, so the other had to wait for its own next look and for no lease.
      const elapsedMs = stopwatch.stop();
      await one.stop();
      expect(await ownersNow()).toEqual(new Map());
      return elapsedMs;
    });
  });

  test("one owns the shards of the other, which is cut off, within its lease and 3 s", async () => {
    await untilWithin(LEASE_MS + 3_000, async () => {
      const [one, two] = [await startWorkerOn(), await startWorkerOn()];
      await until(async () => {
        const owners = await ownersNow();
        return owners.has(one.nodeId) && owners.has(two.nodeId);
      });
      one.cut();
      const stopwatch = startStopwatch();
      await until(async () => (await ownersNow()).get(two.nodeId) === SHARDS);
      const elapsedMs = stopwatch.stop();
      await one.stop();
      await two.stop();
      expect(await ownersNow()).toEqual(new Map());
      return elapsedMs;
    });
  });
});

describe("ownership", () => {
  /** Makes all shards new, and all nodes so far silent, so that they do not count as living. */
  async function reset(): Promise<void> {
    await store.query("UPDATE nodes SET seen_at = now() - interval '1 day'");
    await store.query("TRUNCATE shards");
  }
  beforeEach(reset);

  async function own({ leaseMs = 60_000, shardCount = SHARDS } = {}) {
    await createShards(store.db, ["us-east"], shardCount);
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
  const beatFor = (nodeId: number, time: string) =>
    store.query("UPDATE nodes SET seen_at = now() + $2::interval WHERE id = $1", [nodeId, time]);
  async function leave(worker: { ownership: Ownership; nodeId: number } | undefined): Promise<void> {
    await worker?.ownership.resign();
    if (worker !== undefined) await silence(worker.nodeId);
  }
  const endLeases = () => store.query("UPDATE shards SET lease_until = now() - interval '1 ms'");

  test("takes free shards, and trusts its lease for less than the lease's time", async () => {
    const leaseMs = 20_000;
    const { ownership, held, acquiring } = await own({ leaseMs });
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
    // No worker took the shards meanwhile, so a renewal is enough and no shard has to begin anew.
    const epochs = new Map(held);
    await ownership.tick();
    expect(ownership.isTrusted).toBe(true);
    expect(held).toEqual(epochs);
    await ownership.resign();
    expect(held.size).toBe(0);
  });

  test("drops at the next renewal exactly the shards that another worker has taken", async () => {
    const { ownership, held, losses, nodeId } = await own({ leaseMs: 40 });
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

  test("offers its shards to better owners, whatever workers join and leave: all have moved within 20 ticks, no shard pauses, and nobody gives away its own", async () => {
    const steps = fc.array(fc.record({ joins: fc.boolean(), rounds: fc.nat(6) }), { maxLength: 3 });
    const order = fc.infiniteStream(fc.nat(999));
    const property = fc.asyncProperty(
      fc.constantFrom(3, 64, 200),
      steps,
      order,
      (shardCount, taken, places) => moveAmongWorkers(shardCount, taken, () => places.next().value),
    );
    await fc.assert(property.afterEach(reset), { numRuns: 6 });
  });

  test("moves half of 2,048 shards within 20 ticks", async () => {
    await moveAmongWorkers(2_048, [], () => 0);
  });

  /** Nobody beats for these workers, and a worker counts as gone after the lease's time. */
  const MOVING_LEASE_MS = 600_000;

  /** Workers join and leave, one more joins at the end, and all look in an order that changes from round to round. */
  async function moveAmongWorkers(
    shardCount: number,
    steps: { joins: boolean; rounds: number }[],
    nextPlace: () => number,
  ): Promise<void> {
    const workers = [await own({ shardCount, leaseMs: MOVING_LEASE_MS })];
    const idsOf = () => workers.map(({ nodeId }) => nodeId);
    const shouldOwn = (shard: number) => rendezvousOwner("us-east", shard, idsOf());
    async function turn(): Promise<void> {
      for (const worker of inOrder(workers, nextPlace)) {
        await worker.ownership.tick();
        const actedFor = new Set(workers.flatMap(({ held }) => [...held.keys()]));
        expect(actedFor.size).toBe(shardCount);
        const rows = await listShards(store.db, ["us-east"]);
        // Right after its own tick a worker knows which workers live, and offers no shard that it should own.
        const offered = rows.filter((row) => row.owner === worker.nodeId && row.leaseLeftMs === 0);
        expect(offered.filter(({ shard }) => shouldOwn(shard) === worker.nodeId)).toEqual([]);
      }
    }
    await turn();
    for (const { joins, rounds } of [...steps, { joins: true, rounds: 20 }]) {
      if (joins) workers.push(await own({ shardCount, leaseMs: MOVING_LEASE_MS }));
      else if (workers.length > 1) await leave(workers.splice(1, 1)[0]);
      // The workers that stay take the resigned shards at their first look.
      for (const worker of joins ? [] : workers) await worker.ownership.tick();
      for (let round = 0; round < rounds; round++) await turn();
    }
    // One tick to see that workers have joined, and one to let go.
    for (let round = 0; round < 2; round++) await turn();
    for (const worker of workers) {
      const wanted = Array.from({ length: shardCount }, (_, shard) => shard).filter(
        (shard) => shouldOwn(shard) === worker.nodeId,
      );
      expect([...worker.held.keys()].sort()).toEqual(wanted.map((shard) => `us-east/${shard}`).sort());
      expect(worker.losses.filter((why) => why === "lost")).toEqual([]);
    }
    for (const worker of workers) await leave(worker);
  }

  const inOrder = <T>(all: readonly T[], nextPlace: () => number): T[] =>
    all
      .map((one) => ({ one, place: nextPlace() }))
      .sort((first, second) => first.place - second.place)
      .map(({ one }) => one);

  test("offers a frozen worker one part again and again, goes on with it, and has its lease back once the other is gone", async () => {
    const shardCount = 64;
    const leaseMs = 8_000;
    const one = await own({ shardCount, leaseMs });
    await one.ownership.tick();
    const epochs = new Map(one.held);
    const frozen = await joinWorker();
    await beatFor(frozen, "1 h");
    const wantedCount = Array.from({ length: shardCount }).filter(
      (_, shard) => rendezvousOwner("us-east", shard, [one.nodeId, frozen]) === frozen,
    ).length;
    const offeredCount = async () =>
      (await listShards(store.db, ["us-east"])).filter(({ leaseLeftMs }) => leaseLeftMs === 0).length;
    const begunAt = performance.now();
    // Long enough for a renewal.
    while (performance.now() - begunAt < 0.3 * leaseMs) {
      await one.ownership.tick();
      expect(await offeredCount()).toBe(Math.ceil(wantedCount / 10));
      await Bun.sleep(LEASE_MS / 10);
    }
    await silence(frozen);
    await one.ownership.tick();
    expect(await offeredCount()).toBe(0);
    expect(one.held).toEqual(epochs);
    expect(one.losses).toEqual([]);
    await one.ownership.resign();
  });

  test("that has offered all it holds is trusted as long as Postgres answers it", async () => {
    const one = await own({ shardCount: 1, leaseMs: LEASE_MS });
    await one.ownership.tick();
    let better = await joinWorker();
    while (rendezvousOwner("us-east", 0, [one.nodeId, better]) !== better) {
      await silence(better);
      better = await joinWorker();
    }
    await beatFor(better, "1 h");
    const begunAt = performance.now();
    while (performance.now() - begunAt < LEASE_MS) {
      await one.ownership.tick();
      await Bun.sleep(LEASE_MS / 10);
    }
    await until(async () => {
      await one.ownership.tick();
      return one.ownership.isTrusted;
    });
    await one.ownership.resign();
  });

  test("lets go of a shard one tick after it has seen that another worker has taken it", async () => {
    const [one, two] = [await own(), await own()];
    await silence(two.nodeId);
    await one.ownership.tick();
    await beatFor(two.nodeId, "0 s");
    await one.ownership.tick();
    await two.ownership.tick();
    const moved = [...two.held.keys()];
    expect(moved.length).toBeGreaterThan(0);
    await one.ownership.tick();
    expect([...one.held.keys()]).toEqual(expect.arrayContaining(moved));
    await one.ownership.tick();
    expect([...one.held.keys()].filter((name) => moved.includes(name))).toEqual([]);
    expect(new Set(one.losses)).toEqual(new Set(["resigned"]));
    await Promise.all([one.ownership.resign(), two.ownership.resign()]);
  });

  test("acts on for what a better owner has taken and at once resigned", async () => {
    const [one, two] = [await own(), await own()];
    await silence(two.nodeId);
    await one.ownership.tick();
    await beatFor(two.nodeId, "0 s");
    await one.ownership.tick();
    await two.ownership.tick();
    expect(two.held.size).toBeGreaterThan(0);
    await leave(two);
    for (let tick = 0; tick < 3; tick++) {
      await one.ownership.tick();
      expect(one.held.size).toBe(SHARDS);
    }
    await one.ownership.resign();
  });

  test("that is resigned twice, or by a worker that has lost its shards, takes nothing from the next owner", async () => {
    const [one, two] = [await own(), await own()];
    await silence(two.nodeId);
    await one.ownership.tick();
    await endLeases();
    await silence(one.nodeId);
    await beatFor(two.nodeId, "0 s");
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
