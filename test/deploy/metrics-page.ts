import { readFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "./manifests.ts";

/** A row of the table of deploy/METRICS.md, without its unit, which the name ends in. */
export interface ListedMetric {
  name: string;
  type: string;
  labels: string;
  services: string;
  meaning: string;
}

const readPage = () => readFileSync(join(DEPLOY, "METRICS.md"), "utf8").split("\n");
const cellsOf = (line: string) =>
  line
    .slice(1, -1)
    .split("|")
    .map((cell) => cell.trim());

/** What deploy/METRICS.md says that services expose; test/flow/metrics.test.ts holds it against three of them. */
export function listMetrics(): ListedMetric[] {
  return readPage()
    .filter((line) => /^\| `(jobwheel|nodejs|process)_/.test(line))
    .map((line) => {
      const [name = "", type = "", labels = "", services = "", , meaning = ""] = cellsOf(line);
      return { name: name.replaceAll("`", ""), type, labels, services, meaning };
    })
    .sort((one, other) => (one.name < other.name ? -1 : 1));
}

/** The values that a label can have, over all metrics, where the page lists them. */
export function listLabelValues(): Map<string, Set<string>> {
  const values = new Map<string, Set<string>>();
  for (const line of readPage()) {
    const [, label] = /^\| `(\w+)` +\| [a-z]/.exec(line) ?? [];
    const listed = [...(cellsOf(line)[2] ?? "").matchAll(/`(\w+)`/g)].map(([, value = ""]) => value);
    if (label === undefined || listed.length === 0 || line.includes("openapi.json")) continue;
    values.set(label, new Set([...(values.get(label) ?? []), ...listed]));
  }
  return values;
}
