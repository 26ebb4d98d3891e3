import { beatNode } from "../store/cell/nodes.ts";
import { holdIfRestored } from "../store/cell/restored.ts";
import type { Cell } from "./cell.ts";

export const RESTORED = "this database was restored: nothing is sent until `admin resume`";

/** The beat of one node. `onDeclaredDead` is called when all work of the node must end. */
export function createHeartbeat(
  { db, log }: Pick<Cell, "db" | "log">,
  { nodeId, onDeclaredDead }: { nodeId: number; onDeclaredDead(): void },
): () => Promise<void> {
  let answered = 0;
  return async function beat() {
    const beaten = await beatNode(db, nodeId, answered);
    switch (beaten.kind) {
      case "alive":
        answered = beaten.beats;
        return;
      case "restored":
        await holdIfRestored(db, { isProved: true });
        log.error({ nodeId, answered }, RESTORED);
        // The memory of this process, the number of its node included, belongs to a history that the database has
        // lost.
        onDeclaredDead();
        return;
      case "dead":
        onDeclaredDead();
    }
  };
}
