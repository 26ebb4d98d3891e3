import type { Log } from "../platform/log.ts";
import { beatNode } from "../store/cell/nodes.ts";
import { holdIfRestored } from "../store/cell/restored.ts";
import type { Database } from "../store/database/database.ts";

export const RESTORED = "this database was restored: nothing is sent until `admin resume`";

/** The beat of one node. `onDeclaredDead` is called when nothing of the node may go on. */
export function createHeartbeat({
  db,
  log,
  nodeId,
  onDeclaredDead,
}: {
  db: Database;
  log: Log;
  nodeId: number;
  onDeclaredDead(): void;
}): () => Promise<void> {
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
        // What this process remembers, its own number included, is of another history.
        onDeclaredDead();
        return;
      case "dead":
        onDeclaredDead();
    }
  };
}
