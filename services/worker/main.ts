import { isProvedDead } from "../../shared/platform/process-identity.ts";
import { exitAsDead, joinAs, runService } from "../../shared/process/service.ts";
import { rehearseWorker } from "./rehearsal.ts";
import { startWorker } from "./start.ts";

await runService("worker", async (config, cell) => {
  await rehearseWorker(cell);
  return startWorker(cell, {
    ...config,
    nodeId: await joinAs("worker", cell, config),
    isProvedDead,
    onDeclaredDead: exitAsDead(cell.log),
  });
});
