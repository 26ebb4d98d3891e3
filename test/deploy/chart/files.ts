import { existsSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DEPLOY } from "../manifests.ts";
import { writeSchema } from "./schema.ts";
import { CHART, writeTemplates } from "./templates.ts";

const FOLDER = join(DEPLOY, CHART);
const SCHEMA = "values.schema.json";

/** The generated files of deploy/chart as they are to be, by their paths in it. */
export const generate = (): Record<string, string> => ({ ...writeTemplates(), [SCHEMA]: writeSchema() });

/** The generated files as they are. */
export function readGenerated(): Record<string, string> {
  const templates = readdirSync(join(FOLDER, "templates")).filter((file) => file.endsWith(".yaml"));
  const paths = [...templates.map((file) => join("templates", file)), SCHEMA];
  const present = paths.filter((path) => existsSync(join(FOLDER, path)));
  return Object.fromEntries(present.map((path) => [path, readFileSync(join(FOLDER, path), "utf8")]));
}

/** Writes them anew, and removes those that are no longer made. */
export function writeGenerated(): void {
  const files = generate();
  for (const path of Object.keys(readGenerated())) if (!(path in files)) rmSync(join(FOLDER, path));
  for (const [path, text] of Object.entries(files)) writeFileSync(join(FOLDER, path), text);
}
