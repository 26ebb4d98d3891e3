import type { Region } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";
import { addNode, declareNodeDead, findLivingNode, type NodeKind } from "./nodes.ts";

/** Thrown when a node's name belongs to another living process. */
export class NameTaken extends Error {}

const ASK_EVERY_MS = 200;
/** How much longer than a lease joinCell waits for a name. */
const PATIENCE_MS = 3_000;

/**
 * Joins the cell under a name and answers the node's id, its incarnation. A predecessor of the same name is declared
 * dead as soon as its death is proved. `isProvedDead` proves it by the description of the predecessor's process.
 * Silence proves it as well, since a name belongs to one process at a time: this call has been asking for a whole lease
 * and the predecessor has not beaten. Silence before this call proves nothing, because Postgres may have been out of
 * reach. The call waits for a living predecessor, then throws NameTaken.
 */
export async function joinCell(
  db: Database,
  node: { kind: NodeKind; name: string; regions: readonly Region[]; process: string },
  { leaseMs, isProvedDead }: { leaseMs: number; isProvedDead: (process: string) => boolean },
): Promise<number> {
  const begunAt = performance.now();
  while (performance.now() < begunAt + leaseMs + PATIENCE_MS) {
    const id = await addNode(db, node);
    if (id !== null) return id;
    const holder = await findLivingNode(db, node.kind, node.name);
    if (holder === null) continue;
    const watchedMs = performance.now() - begunAt;
    const isSilent = watchedMs > leaseMs && holder.silentMs > leaseMs;
    if (isProvedDead(holder.process) || isSilent) await declareNodeDead(db, holder.id);
    else await Bun.sleep(ASK_EVERY_MS);
  }
  throw new NameTaken(
    `Another ${node.kind} node named ${node.name} is alive. Give this one another NODE_NAME.`,
  );
}
