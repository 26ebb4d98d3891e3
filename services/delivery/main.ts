import { openCellSealOrExit } from "../../shared/process/cell-seal.ts";
import { exitAsDead, joinAs, runService, targetRulesOf } from "../../shared/process/service.ts";
import { startDelivery } from "./start.ts";

await runService("delivery", async (config, parts) =>
  startDelivery({
    ...parts,
    // Before it joins: whoever is refused leaves nothing.
    seal: await openCellSealOrExit(parts, config, "opens"),
    nodeId: await joinAs("delivery", parts, config),
    regions: config.regions,
    targets: targetRulesOf(config, config.port),
    attemptTimeoutMs: config.attemptTimeoutMs,
    webhookTimeoutMs: config.webhookTimeoutMs,
    webhookRetryScale: config.webhookRetryScale,
    drainTimeoutMs: config.drainTimeoutMs,
    onDeclaredDead: exitAsDead(parts.log),
  }),
);
