import { readFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "../manifests.ts";

/** Objects whose fields are Kubernetes's or the service's own, and not the chart's. */
const OPEN = ["annotations", "resources"];

/**
 * The JSON schema by which Helm refuses a value that values.yaml does not have, or that is of another type. It is made from
 * values.yaml.
 */
export function writeSchema(): string {
  const values = Bun.YAML.parse(readFileSync(join(DEPLOY, "chart", "values.yaml"), "utf8"));
  const { properties, ...rest } = schemaOf(values) as { properties: object };
  // Of a chart that has this one as a part.
  const schema = { ...rest, properties: { global: {}, ...properties } };
  return `${JSON.stringify({ $schema: "https://json-schema.org/draft-07/schema#", ...schema }, null, 2)}\n`;
}

function schemaOf(value: unknown, name = ""): object {
  if (name === "settings") return { type: "object", additionalProperties: { not: { type: "object" } } };
  if (OPEN.includes(name)) return { type: "object" };
  // The one list is of texts.
  if (Array.isArray(value)) return { type: "array", items: { type: "string" } };
  if (typeof value === "number") return { type: "integer", minimum: 0 };
  if (typeof value !== "object" || value === null) return { type: typeof value };
  const properties = Object.fromEntries(
    Object.entries(value).map(([field, inner]) => [field, schemaOf(inner, field)]),
  );
  return { type: "object", additionalProperties: false, properties };
}
