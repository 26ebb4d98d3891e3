import { expect, test } from "bun:test";
import { StoreUnavailable } from "../../../shared/store/database/database.ts";
import { Deadline } from "./deadline.ts";

const LIMIT_MS = 60;
const never = () => new Promise<never>(() => undefined);
const outcomeOf = (work: Promise<unknown>) => work.catch((error: unknown) => error);

test("a deadline gives up work that takes longer, not before its time, and then says so", async () => {
  const begunAt = performance.now();
  const deadline = new Deadline(LIMIT_MS);
  expect(await outcomeOf(deadline.bound(never()))).toBeInstanceOf(StoreUnavailable);
  expect(performance.now() - begunAt).toBeGreaterThanOrEqual(LIMIT_MS);
  expect(deadline.isPassed).toBe(true);
});

test("a deadline passes on what the work results in, its error included", async () => {
  const deadline = new Deadline(LIMIT_MS);
  expect(await deadline.bound(Promise.resolve("done"))).toBe("done");
  const error = new Error("it broke");
  expect(await outcomeOf(deadline.bound(Promise.reject(error)))).toBe(error);
  deadline.stop();
});

test("a deadline that stands still does not pass, and goes on with the time that was left", async () => {
  const still = new Deadline(LIMIT_MS);
  still.standStill();
  const waiting = outcomeOf(still.bound(never()));
  const stopped = new Deadline(LIMIT_MS);
  stopped.stop();
  // A deadline of three times the limit, which runs on the same clock, tells that the time of both is over.
  await outcomeOf(new Deadline(3 * LIMIT_MS).bound(never()));
  expect([still.isPassed, stopped.isPassed]).toEqual([false, false]);
  still.goOn();
  expect(await waiting).toBeInstanceOf(StoreUnavailable);
});
