import { openCellSealOrExit } from "../../shared/process/cell-seal.ts";
import { listenOrExit } from "../../shared/process/listen-or-exit.ts";
import { runService, targetRulesOf } from "../../shared/process/service.ts";
import { rehearseGateway } from "./rehearsal.ts";
import { startGateway } from "./start.ts";

await runService("gateway", async (config, cell) => {
  const options = {
    ...cell,
    host: config.host,
    port: config.port,
    shardsPerRegion: config.shardsPerRegion,
    targets: targetRulesOf(config, config.port),
    publicUrl: config.publicUrl,
    seal: await openCellSealOrExit(cell, config),
  };
  await rehearseGateway(cell, options);
  return listenOrExit({ setting: "PORT", host: config.host, port: config.port }, () => startGateway(options));
});
