import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";

/**
 * `bun scripts/check.ts [--write]`: runs formatter and linter, then checks types and the file made from another one.
 * With --write it applies the formatter's and the linter's safe corrections and writes that file, instead of reporting
 * them. It shows every fault, and then exits with 1.
 */
const root = dirname(import.meta.dir);
const write = process.argv.includes("--write") ? ["--write"] : [];

const steps: Record<string, string[]> = {
  "format and lint": [
    join(root, "node_modules/@biomejs/biome/bin/biome"),
    "check",
    ...write,
    "--error-on-warnings",
  ],
  types: ["check", "--no-script"],
  // Browsers have other globals than Bun.
  "types of the console": ["check", "--no-script", "-p", join(root, "services", "console", "app")],
  "prometheus-rule.yaml": [join(root, "scripts", "prometheus-rule.ts"), ...write],
};

const failed = Object.entries(steps).filter(
  ([, args]) => spawnSync(process.execPath, args, { cwd: root, stdio: "inherit" }).status !== 0,
);
for (const [name] of failed) console.error(`check failed: ${name}`);
process.exit(failed.length === 0 ? 0 : 1);
