import { isProvedDead } from "../../shared/platform/process-identity.ts";
import { exitAsDead, joinAs, runService } from "../../shared/process/service.ts";
import { startWorker } from "./start.ts";

await runService("worker", async (config, cell) =>
  startWorker(cell, {
    nodeId: await joinAs("worker", cell, config),
    regions: config.regions,
    shardsPerRegion: config.shardsPerRegion,
    leaseMs: config.leaseTtlMs,
    attemptTimeoutMs: config.attemptTimeoutMs,
    webhookTimeoutMs: config.webhookTimeoutMs,
    webhookRetryScale: config.webhookRetryScale,
    isProvedDead,
    onDeclaredDead: exitAsDead(cell.log),
  }),
);
