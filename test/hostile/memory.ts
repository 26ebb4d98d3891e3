import { expect } from "bun:test";
import { measureAttack } from "./attack.ts";
import type { AttackRound } from "./attacked-node.ts";

const WARM_UP_ATTEMPTS = 500;
const GROWTH_MAX = 1.2;

/** Expects a delivery node's memory and sockets to be back after attempts at targets of every hostile kind. */
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
