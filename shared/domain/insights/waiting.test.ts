import { expect, test } from "bun:test";
import { countWaiting, type ProjectWaiting, type RegionWaiting } from "./waiting.ts";

const region = (wish: Partial<RegionWaiting> = {}): RegionWaiting => ({
  ...{
    isHeld: false,
    hasWorker: true,
    hasDelivery: true,
    parked: 2,
    parkedAtFlows: 3,
    due: 5,
    byHand: { parked: 0, parkedAtFlows: 0, due: 1 },
    later: 7,
  },
  ...wish,
});
const counted = (wish: Partial<ProjectWaiting>): Record<string, number> => {
  const { due, byReason, later } = countWaiting({
    ...{ isHeld: false, month: { runs: 3, max: 10 }, concurrency: 4, permitsInUse: 1, regions: [region()] },
    ...wish,
  });
  return { due, ...Object.fromEntries(byReason), later };
};

test("what is due waits for the first reason that applies", () => {
  expect(counted({})).toEqual({ due: 10, host: 2, flow: 3, turn: 5, later: 7 });
  expect(counted({ permitsInUse: 4 })).toEqual({ due: 10, host: 2, flow: 3, concurrency: 5, later: 7 });
  expect(counted({ regions: [region({ hasWorker: false })] })).toEqual({ due: 10, no_worker: 10, later: 7 });
  expect(counted({ regions: [region({ hasDelivery: false })] })).toEqual({
    due: 10,
    no_worker: 10,
    later: 7,
  });
  const month = { runs: 10, max: 10 };
  expect(counted({ month })).toEqual({ due: 10, quota: 9, turn: 1, later: 7 });
  expect(counted({ month, permitsInUse: 9 })).toEqual({ due: 10, quota: 9, concurrency: 1, later: 7 });
  expect(counted({ month, isHeld: true })).toEqual({ due: 10, hold: 10, later: 7 });
  expect(counted({ month: { runs: 99, max: null } })).toEqual({
    due: 10,
    host: 2,
    flow: 3,
    turn: 5,
    later: 7,
  });
});

test("retries by hand wait for their host or flow key if the month has no runs left, as explain says of each", () => {
  const month = { runs: 10, max: 10 };
  const byHand = { parked: 1, parkedAtFlows: 2, due: 3 };
  expect(counted({ month, regions: [region({ byHand })] })).toEqual({
    ...{ due: 10, quota: 4, host: 1, flow: 2, turn: 3, later: 7 },
  });
  expect(counted({ month, regions: [region({ byHand, hasWorker: false })] })).toEqual({
    ...{ due: 10, quota: 4, no_worker: 6, later: 7 },
  });
  expect(counted({ month, regions: [region({ byHand, isHeld: true })] })).toEqual({
    due: 10,
    hold: 10,
    later: 7,
  });
});

test("each region waits for its own reasons, and the reasons add up to what is due", () => {
  const regions = [
    region({ isHeld: true }),
    region({ hasWorker: false, parked: 0, parkedAtFlows: 0 }),
    region({ due: 0, byHand: { parked: 0, parkedAtFlows: 0, due: 0 } }),
  ];
  expect(counted({ regions })).toEqual({ due: 20, hold: 10, no_worker: 5, host: 2, flow: 3, later: 21 });
});

test("nothing waits for nothing", () => {
  expect(counted({ regions: [] })).toEqual({ due: 0, later: 0 });
});
