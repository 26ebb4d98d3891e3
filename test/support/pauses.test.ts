import { expect, test } from "bun:test";
import { PauseTally } from "./pauses.ts";

test("two stalls of commits add up, while waits of processes count as one pause and quick commits as none", () => {
  const tally = new PauseTally();
  for (const pauseMs of [400, 3, 300, 40]) tally.noteCommit(pauseMs);
  for (const waitMs of [250, 350]) tally.noteWait(waitMs);
  expect(tally.read(5)).toEqual({ longestMs: 400, totalMs: 700 });
  expect(tally.read(80)).toEqual({ longestMs: 80, totalMs: 80 });
  tally.noteWait(900);
  tally.noteCommit(100);
  expect(tally.read(0)).toEqual({ longestMs: 900, totalMs: 900 });
});

test("a stall that lasts over several readings is told as the longest in each, and adds up to itself", () => {
  const tally = new PauseTally();
  expect(tally.read(300)).toEqual({ longestMs: 300, totalMs: 300 });
  expect(tally.read(500)).toEqual({ longestMs: 500, totalMs: 200 });
  tally.noteCommit(600);
  expect(tally.read(0)).toEqual({ longestMs: 600, totalMs: 100 });
});
