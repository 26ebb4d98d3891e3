import { readFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "../manifests.ts";

/** Objects whose fields belong to Kubernetes or to the service instead of the chart. */
const OPEN = ["annotations", "resources"];

/**
 * Makes the JSON schema of the chart's values from values.yaml. By this schema Helm refuses a value that values.yaml lacks
 * or that has another type there.
 */
export function writeSchema(): string {
  const values = Bun.YAML.parse(readFileSync(join(DEPLOY, "chart", "values.yaml"), "utf8"));
  const { properties, ...rest } = schemaOf(values) as { properties: object };
  // A chart that contains this one hands down its `global` values.
  const schema = { ...rest, properties: { global: {}, ...properties } };
  return `${JSON.stringify({ $schema: "https://json-schema.org/draft-07/schema#", ...schema }, null, 2)}\n`;
}

function schemaOf(value: unknown, name = ""): object {
  if (name === "settings") return { type: "object", additionalProperties: { not: { type: "object" } } };
  if (OPEN.includes(name)) return { type: "object" };
  // The values have one list, and it holds texts.
  if (Array.isArray(value)) return { type: "array", items: { type: "string" } };
  if (typeof value === "number") return { type: "integer", minimum: 0 };
  if (typeof value !== "object" || value === null) return { type: typeof value };
  const properties = Object.fromEntries(
    Object.entries(value).map(([field, inner]) => [field, schemaOf(inner, field)]),
  );
  return { type: "object", additionalProperties: false, properties };
}
