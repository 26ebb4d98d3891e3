import { expect, setDefaultTimeout, test } from "bun:test";
import { Pump } from "./pump.ts";

setDefaultTimeout(60_000);

const WAKES = 150;
const clock = { now: () => performance.now(), stop: () => undefined };
const median = (samples: number[]) => samples.toSorted((one, other) => one - other)[samples.length >> 1] ?? 0;

test("the pump wakes at the instant, nearer to it than a timer of whole milliseconds, and never before it", async () => {
  const late: number[] = [];
  const lateByTimer: number[] = [];
  let dueAt = performance.now() + 2.5;
  const done = Promise.withResolvers<void>();
  const pump = new Pump(clock, {
    turn(now) {
      if (now < dueAt) return dueAt;
      late.push(now - dueAt);
      if (late.length === WAKES) done.resolve();
      // The instants have all parts of a millisecond.
      dueAt = now + 2 + (late.length % 10) / 10;
      return dueAt;
    },
    onSetBack: () => undefined,
  });
  pump.soon();
  await done.promise;
  pump.stop();
  // The control is what the pump would be without its last step.
  for (let wake = 0; wake < WAKES; wake++) {
    const at = performance.now() + 2 + (wake % 10) / 10;
    while (performance.now() < at)
      await new Promise((resolve) => setTimeout(resolve, Math.max(0, at - performance.now())));
    lateByTimer.push(performance.now() - at);
  }
  expect(Math.min(...late)).toBeGreaterThanOrEqual(0);
  expect(median(late)).toBeLessThan(median(lateByTimer));
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
