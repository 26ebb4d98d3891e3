import { readFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "./manifests.ts";

/** A row of the table in deploy/METRICS.md. The unit is left out, because the name ends in it. */
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

/** The metrics that deploy/METRICS.md lists; test/flow/metrics.test.ts compares them with three services. */
export function listMetrics(): ListedMetric[] {
  return readPage()
    .filter((line) => /^\| `(jobwheel|nodejs|process)_/.test(line))
    .map((line) => {
      const [name = "", type = "", labels = "", services = "", , meaning = ""] = cellsOf(line);
      return { name: name.replaceAll("`", ""), type, labels, services, meaning };
    })
    .sort((one, other) => (one.name < other.name ? -1 : 1));
}

/** The values of each label over all metrics, where the page lists them. */
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
