import type { Region } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";
import { addNode, declareNodeDead, findLivingNode, type NodeKind } from "./nodes.ts";

/** Thrown where a node's name belongs to another process that goes on living. */
export class NameTaken extends Error {}

const ASK_EVERY_MS = 200;
/** How much longer than a lease a name is waited for. */
const PATIENCE_MS = 3_000;

/**
 * Joins the cell under a name and answers with the node's id, its incarnation. A predecessor of the same name is
 * declared dead as soon as that is proved: by `isProvedDead` (its description is that of a process which is gone), or,
 * since a name belongs to one process at a time, by a whole lease in which this call has asked and the predecessor has
 * not beaten. Silence from before counts for nothing: it may have been Postgres that nobody reached. A living one is
 * waited for, then the call throws NameTaken.
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
