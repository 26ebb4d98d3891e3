import { readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";

/**
 * `bun scripts/prometheus-rule.ts [--write]`: checks that prometheus-rule.yaml, which Prometheus' operator takes, holds
 * what rules.yaml says, and ends with 1 if not. With --write it makes the file anew.
 */
const folder = join(dirname(import.meta.dir), "deploy", "monitoring", "home");
const file = join(folder, "prometheus-rule.yaml");
const rules = readFileSync(join(folder, "rules.yaml"), "utf8");

const wanted = `# Made from rules.yaml by \`npm run format\`, as the operator of Prometheus takes it. Edit that file, not this one.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: jobwheel
spec:
${rules.replace(/^(?=.)/gm, "  ")}`;

if (process.argv.includes("--write")) writeFileSync(file, wanted);
else if (readFileSync(file, "utf8") !== wanted) {
  console.error(`${file} is not what rules.yaml says: npm run format`);
  process.exitCode = 1;
}
