import { expect, test } from "bun:test";
import fc from "fast-check";
import { REGIONS } from "./scope.ts";
import { rendezvousOwner, shardOf } from "./shard.ts";

test("a project's shard never changes, because its rows hold the number", () => {
  const golden = [1, 2, 3, 1_000, 2 ** 31, 2 ** 32 + 1, Number.MAX_SAFE_INTEGER].map((no) => shardOf(no, 64));
  expect(golden).toEqual([55, 6, 39, 24, 32, 47, 37]);
});

test("projects with consecutive numbers spread evenly over the shards", () => {
  for (const first of [1, 2 ** 20, 2 ** 40]) {
    const counts = new Array<number>(64).fill(0);
    for (let i = 0; i < 64_000; i++) {
      const shard = shardOf(first + i, 64);
      counts[shard] = (counts[shard] ?? 0) + 1;
    }
    // A fair hash gives 1,000 each, with a deviation of 32. Five deviations practically never happen.
    expect(Math.min(...counts)).toBeGreaterThan(840);
    expect(Math.max(...counts)).toBeLessThan(1_160);
  }
});

test("each bit of the number changes each bit of the shard about half the time", () => {
  for (let bit = 0; bit < 53; bit++) {
    const flips = new Array<number>(16).fill(0);
    for (let no = 0; no < 2_000; no++) {
      const base = no * 7_919;
      const flipped = Math.floor(base / 2 ** bit) % 2 === 0 ? base + 2 ** bit : base - 2 ** bit;
      const difference = shardOf(base, 65_536) ^ shardOf(flipped, 65_536);
      for (let i = 0; i < 16; i++) flips[i] = (flips[i] ?? 0) + ((difference >> i) & 1);
    }
    for (const count of flips) {
      expect(count).toBeGreaterThan(800);
      expect(count).toBeLessThan(1_200);
    }
  }
});

test("the owner of a shard does not depend on the order of the nodes", () => {
  const nodes = fc.uniqueArray(fc.integer({ min: 1, max: 10_000 }), { minLength: 1, maxLength: 12 });
  fc.assert(
    fc.property(nodes, fc.constantFrom(...REGIONS), fc.nat(255), (nodeIds, region, shard) => {
      const owner = rendezvousOwner(region, shard, nodeIds);
      expect(nodeIds).toContain(owner ?? -1);
      expect(rendezvousOwner(region, shard, nodeIds.toReversed())).toBe(owner);
    }),
  );
  expect(rendezvousOwner("us-east", 0, [])).toBeNull();
});

test("a node that leaves moves its own shards only, and to all the others", () => {
  const nodes = [11, 12, 13, 14];
  const gained = new Map<number, number>();
  for (const region of REGIONS) {
    for (let shard = 0; shard < 256; shard++) {
      const before = rendezvousOwner(region, shard, nodes);
      const after = rendezvousOwner(region, shard, [11, 12, 13]);
      if (before !== 14) expect(after).toBe(before);
      else if (after !== null) gained.set(after, (gained.get(after) ?? 0) + 1);
    }
  }
  // 1,024 shards: the node had about 256, and each of the others gets about 85 of them.
  for (const node of [11, 12, 13]) {
    expect(gained.get(node)).toBeGreaterThan(50);
    expect(gained.get(node)).toBeLessThan(120);
  }
});
