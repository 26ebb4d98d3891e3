import type { Cell } from "../../../shared/process/cell.ts";
import { declareNodeDead, listNodes } from "../../../shared/store/cell/nodes.ts";

/** Nodes beat twice a second; one that has missed a few is worth a look. */
const SUSPICIOUS_MS = 2_000;

/**
 * Declares nodes dead whose process is proved to be gone. On one machine this comes sooner than the proof by a
 * successor of the same name. `isProvedDead` judges the description that a node gave of its process.
 */
export async function declareGoneNodesDead(
  { db, log }: Cell,
  isProvedDead: (process: string) => boolean,
): Promise<void> {
  for (const node of await listNodes(db)) {
    if (node.dead || node.silentMs < SUSPICIOUS_MS || !isProvedDead(node.process)) continue;
    if (await declareNodeDead(db, node.id))
      log.warn({ node: node.name, kind: node.kind, id: node.id }, "node.dead");
  }
}
