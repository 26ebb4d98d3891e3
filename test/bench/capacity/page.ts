import { readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Measurements } from "../cost/measurements.ts";
import { REFERENCE } from "./mix.ts";
import { computeTables } from "./tables.ts";

const DEPLOY = join(dirname(dirname(dirname(import.meta.dir))), "deploy");
export const PAGE = join(DEPLOY, "CAPACITY.md");
/** The measurements of the page, as `npm run bench -- cost --json` wrote them. */
export const MEASUREMENTS = join(DEPLOY, "capacity.json");

export const readMeasurements = (path = MEASUREMENTS) =>
  JSON.parse(readFileSync(path, "utf8")) as Measurements;

/** The page with all computed parts made anew. Throws if a part is missing or unknown. */
export function renewPage(page: string, measurements: Measurements): string {
  const tables = computeTables(measurements, REFERENCE);
  const places = [...page.matchAll(PLACE)].map(([, name = ""]) => name);
  if (places.toSorted().join() !== Object.keys(tables).toSorted().join())
    throw new Error(`the page has places for ${places.join(", ")}`);
  return page.replace(PLACE, (_, name: string) => `<!-- ${name} -->\n\n${tables[name]}\n\n<!-- /${name} -->`);
}

const PLACE = /<!-- (\w+) -->.*?<!-- \/\1 -->/gs;
