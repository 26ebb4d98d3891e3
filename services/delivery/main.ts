import { openCellSealOrExit } from "../../shared/process/cell-seal.ts";
import { exitAsDead, joinAs, runService, targetRulesOf } from "../../shared/process/service.ts";
import { startDelivery } from "./start.ts";

await runService("delivery", async (config, cell) =>
  startDelivery(cell, {
    ...config,
    // Before it joins, so that a node that is refused leaves nothing behind.
    seal: await openCellSealOrExit(cell, config, "opens"),
    nodeId: await joinAs("delivery", cell, config),
    targets: targetRulesOf(config, config.port),
    onDeclaredDead: exitAsDead(cell.log),
  }),
);
