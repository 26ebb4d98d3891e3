import { openCellSealOrExit } from "../../shared/process/cell-seal.ts";
import { exitAsDead, joinAs, runService, targetRulesOf } from "../../shared/process/service.ts";
import { rehearseDelivery } from "./rehearsal.ts";
import { startDelivery } from "./start.ts";

await runService("delivery", async (config, cell) => {
  // The seal and the rehearsal come before the node joins, so that a node that is refused or stopped by then leaves
  // nothing behind.
  const seal = await openCellSealOrExit(cell, config, "opens");
  await rehearseDelivery(cell, { regions: config.regions, seal });
  return startDelivery(cell, {
    ...config,
    seal,
    nodeId: await joinAs("delivery", cell, config),
    targets: targetRulesOf(config, config.port),
    onDeclaredDead: exitAsDead(cell.log),
  });
});
