import { createSeal } from "../../shared/platform/seal.ts";
import { exitAsDead, joinAs, runService, targetRulesOf } from "../../shared/process/service.ts";
import { startDelivery } from "./start.ts";

await runService("delivery", async (config, parts) =>
  startDelivery({
    ...parts,
    nodeId: await joinAs("delivery", parts, config),
    seal: createSeal(config.secretsKey),
    regions: config.regions,
    targets: targetRulesOf(config, config.port),
    attemptTimeoutMs: config.attemptTimeoutMs,
    webhookTimeoutMs: config.webhookTimeoutMs,
    webhookRetryScale: config.webhookRetryScale,
    drainTimeoutMs: config.drainTimeoutMs,
    onDeclaredDead: exitAsDead(parts.log),
  }),
);
