import { expect } from "bun:test";
import type { AttackRound } from "./attack.ts";
import { measureAttack } from "./under-attack.ts";

const WARM_UP_ATTEMPTS = 500;
const GROWTH_MAX = 1.2;

/** So many attempts at targets of every hostile kind, after which a delivery node holds what it held before. */
export async function expectMemoryBack(
  attempts: number,
): Promise<{ before: AttackRound; after: AttackRound }> {
  const { rounds, openCount } = await measureAttack({ warmUp: WARM_UP_ATTEMPTS, attempts, rounds: 1 });
  const [before, after] = rounds;
  expect(rounds.map((round) => round.attempts)).toEqual([0, attempts]);
  if (before === undefined || after === undefined) throw new Error("nothing was measured");
  expect(after.rssBytes).toBeLessThan(GROWTH_MAX * before.rssBytes);
  expect(after.heapBytes).toBeLessThan(GROWTH_MAX * before.heapBytes);
  expect(after.fdsLeft).toBe(0);
  expect(openCount).toBe(0);
  return { before, after };
}
