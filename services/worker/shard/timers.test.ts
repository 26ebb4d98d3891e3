import { expect, test } from "bun:test";
import { Timers } from "./timers.ts";

const NOW = 1_800_000_000_000;

test("a timer that has ended or was canceled leaves its place to the next, and to cancel it again takes nothing away", () => {
  const timers = new Timers<{ handle: number; place: number }>(NOW);
  const [ended, canceled, next, last] = Array.from({ length: 4 }, () => ({ handle: 0, place: 0 }));
  if (!ended || !canceled || !next || !last) throw new Error("four items");
  timers.arm(ended, NOW + 1);
  timers.arm(canceled, NOW + 2);
  const expired: unknown[] = [];
  timers.advance(NOW + 1, (item) => expired.push(item));
  timers.cancel(canceled);
  timers.arm(next, NOW + 3);
  timers.arm(last, NOW + 3);
  expect(new Set([next.place, last.place])).toEqual(new Set([ended.place, canceled.place]));
  timers.cancel(ended);
  timers.cancel(canceled);
  timers.advance(NOW + 3, (item) => expired.push(item));
  expect(expired).toEqual([ended, next, last]);
});
