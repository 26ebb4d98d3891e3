import { copyFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";

/**
 * `npm pack` in services/cli calls this. It makes one file of the command line, the client and yaml, which runs on Node without
 * any package beside it.
 */
const root = dirname(dirname(import.meta.dir));
const cli = join(root, "services/cli");

rmSync(join(cli, "dist"), { recursive: true, force: true });
const built = await Bun.build({
  entrypoints: [join(cli, "main.ts")],
  target: "node",
  outdir: join(cli, "dist"),
  naming: "jobwheel.js",
  banner: "#!/usr/bin/env node",
});
if (!built.success) throw new AggregateError(built.logs, "the command line cannot be built");
copyFileSync(join(root, "LICENSE"), join(cli, "LICENSE"));
