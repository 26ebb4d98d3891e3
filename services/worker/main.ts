import { isProvedDead } from "../../shared/platform/process-identity.ts";
import { exitAsDead, joinAs, runService } from "../../shared/process/service.ts";
import { startWorker } from "./start.ts";

await runService("worker", async (config, parts) =>
  startWorker({
    ...parts,
    nodeId: await joinAs("worker", parts.db, config),
    regions: config.regions,
    shardsPerRegion: config.shardsPerRegion,
    leaseMs: config.leaseTtlMs,
    attemptTimeoutMs: config.attemptTimeoutMs,
    isProvedDead,
    onDeclaredDead: exitAsDead(parts.log),
  }),
);
