import { join } from "node:path";
import { startCertifiedTargets } from "../support/target-certificates.ts";
import { HOSTILE_KINDS } from "../support/target-hostile.ts";
import type { AttackRound } from "./attacked-node.ts";

/** Attacks a delivery node with targets of every hostile kind. Answers its figures before and after each round. */
export async function measureAttack(wish: {
  warmUp: number;
  attempts: number;
  rounds: number;
}): Promise<{ rounds: AttackRound[]; openCount: number }> {
  const started = await Promise.all(Object.values(HOSTILE_KINDS).map((kind) => kind.start()));
  const certified = await startCertifiedTargets();
  const targets = [...started, ...Object.values(certified.bad)];
  try {
    const numbers = [wish.warmUp, wish.attempts, wish.rounds].map(String);
    const urls = targets.map((target) => target.url);
    const child = Bun.spawn(
      [process.execPath, join(import.meta.dir, "attacked-node.ts"), ...numbers, ...urls],
      {
        env: { ...process.env, ...certified.environment },
        stdout: "pipe",
        stderr: "inherit",
      },
    );
    const lines = (await new Response(child.stdout).text()).trim().split("\n");
    if ((await child.exited) !== 0) throw new Error("the node under attack ended badly");
    const openCount = targets.reduce((sum, target) => sum + target.openCount, 0);
    return { rounds: lines.map((line) => JSON.parse(line)), openCount };
  } finally {
    for (const target of started) await target.stop();
    await certified.stop();
  }
}
