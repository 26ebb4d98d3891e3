import { describe, expect, test } from "bun:test";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import type { OwedItem } from "./attempt-kind.ts";
import { type KeyInFlight, KeyQueues } from "./key-queues.ts";

const ids = createIdSource((count) => new Uint8Array(count).fill(7));
const HASH = 4_711;

function itemOf(changes: Partial<OwedItem> = {}): OwedItem {
  return {
    ...{ projectNo: 1, environment: "production", region: "us-east", shard: 0 },
    ...{ flowClass: "production jobs", id: ids.next(JOB_PREFIX, Date.now()), attempt: 1, dueAt: 0 },
    ...{ isGated: true, keyHash: HASH, ...changes },
  };
}

/** The attempt as its run is to tell of it. */
const waited = (item: OwedItem): OwedItem => ({ ...item, waitedFor: "flow" });

/** A key of which so many attempts are in flight, in a project whose settlements hand places on. */
function startQueues({ places, inFlight }: { places: number; inFlight: number }) {
  const keys = new KeyQueues();
  keys.handsOn(null, itemOf());
  const begin = () => keys.begins(itemOf(), { hash: HASH, count: places });
  const [key] = Array.from({ length: inFlight }, begin);
  return { keys, key: key as KeyInFlight };
}

describe("an attempt is kept back", () => {
  test("if the node has all places of its key in flight", () => {
    expect(startQueues({ places: 2, inFlight: 1 }).keys.keepsBack(itemOf())).toBe(false);
    expect(startQueues({ places: 2, inFlight: 2 }).keys.keepsBack(itemOf())).toBe(true);
  });

  test("if its key is the same, and is known", () => {
    const { keys } = startQueues({ places: 1, inFlight: 1 });
    const others = [
      { keyHash: HASH + 1 },
      { keyHash: undefined },
      { projectNo: 2 },
      { environment: "development" },
    ] as const;
    for (const other of others) expect(keys.keepsBack(itemOf(other))).toBe(false);
  });

  test("if the settlements of its project hand places on", () => {
    const keys = new KeyQueues();
    const key = keys.begins(itemOf(), { hash: HASH, count: 1 });
    expect(keys.keepsBack(itemOf())).toBe(false);
    keys.handsOn(key, itemOf());
    expect(keys.keepsBack(itemOf())).toBe(true);
  });

  test("once", () => {
    const { keys } = startQueues({ places: 1, inFlight: 1 });
    const item = itemOf();
    expect([keys.keepsBack(item), keys.keepsBack(item)]).toEqual([true, false]);
  });

  test("with 15 others at most, until one of them starts", () => {
    const { keys, key } = startQueues({ places: 1, inFlight: 1 });
    const items = Array.from({ length: 20 }, () => itemOf());
    expect(items.filter((item) => keys.keepsBack(item))).toEqual(items.slice(0, 16));
    expect(keys.handsOn(key, items[3] as OwedItem)).toBe(true);
    expect(keys.handsOn(key, items[3] as OwedItem)).toBe(false);
    expect([itemOf(), itemOf()].map((item) => keys.keepsBack(item))).toEqual([true, false]);
  });
});

describe("once an attempt ends and none gets its place", () => {
  test("those that were kept back are claimed, one for each place, in the order in which they are due", () => {
    const { keys, key } = startQueues({ places: 2, inFlight: 2 });
    const items = [itemOf({ dueAt: 3 }), itemOf({ dueAt: 2 }), itemOf({ dueAt: 2 }), itemOf({ dueAt: 1 })];
    for (const item of items) expect(keys.keepsBack(item)).toBe(true);
    const [last, first, second, again] = items as [OwedItem, OwedItem, OwedItem, OwedItem];
    // It has come again, and is being claimed.
    expect(keys.keepsBack(again)).toBe(false);
    const claimed = [keys.ends(key), keys.ends(key), keys.next(key), keys.next(key)];
    expect(claimed).toEqual([waited(first), waited(second), waited(last), null]);
  });

  test("the others stay kept back behind one that is claimed, and are forgotten if it is refused", () => {
    const { keys, key } = startQueues({ places: 1, inFlight: 1 });
    const [first, second] = [itemOf({ dueAt: 1 }), itemOf({ dueAt: 2 })];
    for (const item of [first, second]) expect(keys.keepsBack(item)).toBe(true);
    expect(keys.ends(key)).toEqual(waited(first));
    expect(keys.begins(first, { hash: HASH, count: 1 })).toBe(key);
    expect(keys.ends(key)).toEqual(waited(second));
    keys.leave(key);
    expect(keys.begins(first, { hash: HASH, count: 1 })).not.toBe(key);
  });
});

test("the first claim of a key is known until it is over, so that others wait to hear how many places there are", async () => {
  const { keys } = startQueues({ places: 1, inFlight: 0 });
  const [first, second] = [itemOf(), itemOf()];
  const end = keys.claims(first);
  keys.claims(second)();
  let isOver = false;
  const waiting = keys.firstClaimOf(second)?.then(() => {
    isOver = true;
  });
  await Bun.sleep(0);
  expect(isOver).toBe(false);
  end();
  await waiting;
  expect([isOver, keys.firstClaimOf(second)]).toEqual([true, undefined]);
  // It has told of no places, so nobody waits for the next.
  keys.claims(first);
  expect(keys.firstClaimOf(second)).toBeUndefined();
});
