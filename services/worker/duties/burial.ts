import type { Log } from "../../../shared/platform/log.ts";
import { declareNodeDead, listNodes } from "../../../shared/store/cell/nodes.ts";
import type { Database } from "../../../shared/store/database/database.ts";

/** Nodes beat twice a second; one that has missed a few is worth a look. */
const SUSPICIOUS_MS = 2_000;

/**
 * Declares nodes dead whose process is proved to be gone, which on one machine needs no waiting for a successor of the
 * same name. `isProvedDead` judges the description that a node gave of its process.
 */
export async function buryNodes(
  db: Database,
  isProvedDead: (process: string) => boolean,
  log: Log,
): Promise<void> {
  for (const node of await listNodes(db)) {
    if (node.dead || node.silentMs < SUSPICIOUS_MS || !isProvedDead(node.process)) continue;
    if (await declareNodeDead(db, node.id))
      log.warn({ node: node.name, kind: node.kind, id: node.id }, "node.dead");
  }
}
