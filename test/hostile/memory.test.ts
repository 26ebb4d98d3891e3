import { expect, setDefaultTimeout, test } from "bun:test";
import { measureAttack } from "./under-attack.ts";

setDefaultTimeout(180_000);

/** `npm run bench -- hostile` does the same with 10,000. */
const ATTEMPTS = 1_000;
const GROWTH_MAX = 1.2;

test(`memory and sockets are back after ${ATTEMPTS} attempts at targets of every hostile kind`, async () => {
  const { rounds, openCount } = await measureAttack({ warmUp: 500, attempts: ATTEMPTS, rounds: 1 });
  const [before, after] = rounds;
  expect(rounds.map(({ attempts }) => attempts)).toEqual([0, ATTEMPTS]);
  expect(after?.rssBytes).toBeLessThan(GROWTH_MAX * (before?.rssBytes ?? 0));
  expect(after?.heapBytes).toBeLessThan(GROWTH_MAX * (before?.heapBytes ?? 0));
  expect(after?.fdsLeft).toBe(0);
  expect(openCount).toBe(0);
});
