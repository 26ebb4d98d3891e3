import { expect, test } from "bun:test";
import { Pump } from "./pump.ts";

const WAKES = 150;
const clock = { now: () => performance.now(), stop: () => undefined };

test("the pump wakes once for an instant with parts of a millisecond, and not before it", async () => {
  let [earlyCount, wakeCount] = [0, 0];
  let dueAt = Number.NEGATIVE_INFINITY;
  const done = Promise.withResolvers<void>();
  const pump = new Pump(clock, {
    turn(now) {
      if (now < dueAt) {
        earlyCount++;
        return dueAt;
      }
      if (++wakeCount === WAKES) done.resolve();
      // The instants have all parts of a millisecond.
      dueAt = now + 2 + (wakeCount % 10) / 10;
      return dueAt;
    },
    onSetBack: () => undefined,
  });
  pump.soon();
  await done.promise;
  pump.stop();
  // A timer alone comes before most of them, since it drops the fraction.
  expect(earlyCount).toBe(0);
});

test("a pump that is told of something runs its turn after those who told, once, and not any more once it is stopped", async () => {
  let turnCount = 0;
  const pump = new Pump(clock, {
    turn() {
      turnCount++;
      return Number.POSITIVE_INFINITY;
    },
    onSetBack: () => undefined,
  });
  for (let told = 0; told < 5; told++) pump.soon();
  expect(turnCount).toBe(0);
  await new Promise(setImmediate);
  expect(turnCount).toBe(1);
  pump.soon();
  pump.stop();
  await new Promise(setImmediate);
  expect(turnCount).toBe(1);
});
