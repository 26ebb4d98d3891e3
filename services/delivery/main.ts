import { openCellSealOrExit } from "../../shared/process/cell-seal.ts";
import { exitAsDead, joinAs, runService, targetRulesOf } from "../../shared/process/service.ts";
import { startDelivery } from "./start.ts";
import { warmUpDelivery } from "./warm-up.ts";

await runService("delivery", async (config, cell) => {
  // Both come before it joins, so that a node that is refused or stopped by then leaves nothing behind.
  const seal = await openCellSealOrExit(cell, config, "opens");
  await warmUpDelivery(cell, { regions: config.regions, seal });
  return startDelivery(cell, {
    ...config,
    seal,
    nodeId: await joinAs("delivery", cell, config),
    targets: targetRulesOf(config, config.port),
    onDeclaredDead: exitAsDead(cell.log),
  });
});
