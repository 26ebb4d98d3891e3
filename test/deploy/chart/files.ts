import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "../manifests.ts";
import { writeSchema } from "./schema.ts";
import { CHART, writeTemplates } from "./templates.ts";

const FOLDER = join(DEPLOY, CHART);
const SCHEMA = "values.schema.json";

/** Generates the files of deploy/chart, by their paths in that folder. */
export const generate = (): Record<string, string> => ({ ...writeTemplates(), [SCHEMA]: writeSchema() });

/** Reads the generated files that are there at present. */
export function readGenerated(): Record<string, string> {
  const templates = readdirSync(join(FOLDER, "templates")).filter((file) => file.endsWith(".yaml"));
  const paths = [...templates.map((file) => join("templates", file)), SCHEMA];
  const present = paths.filter((path) => existsSync(join(FOLDER, path)));
  return Object.fromEntries(present.map((path) => [path, readFileSync(join(FOLDER, path), "utf8")]));
}

/** Writes the generated files anew, and removes those that are no longer made. */
export function writeGenerated(): void {
  const files = generate();
  for (const path of Object.keys(readGenerated())) if (!(path in files)) rmSync(join(FOLDER, path));
  for (const [path, text] of Object.entries(files)) writeFileSync(join(FOLDER, path), text);
}
