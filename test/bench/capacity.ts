import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { checkPlan } from "./capacity/check.ts";
import { type Mix, RATES, REFERENCE } from "./capacity/mix.ts";
import { planFor } from "./capacity/model.ts";
import { PAGE, readMeasurements, renewPage } from "./capacity/page.ts";
import { computeTables, INSUFFICIENT } from "./capacity/tables.ts";
import { formatCount } from "./harness/measure.ts";

/**
 * How many pods and which Postgres do 100 to 100,000 jobs/s need? It computes from what `npm run bench -- cost`
 * measured, and checks by simulating a minute; it measures nothing itself.
 *
 * `--measurements FILE` replaces deploy/capacity.json; `--write` renews deploy/CAPACITY.md from it. For other jobs than
 * the page's: `--fired`, `--batched`, `--new-connections` (shares of 1), `--retries`, `--webhooks` (for a job),
 * `--attempt-ms`, `--run-days`, and `--rate` for one rate.
 */

const { values } = parseArgs({
  options: {
    measurements: { type: "string" },
    write: { type: "boolean", default: false },
    rate: { type: "string" },
    fired: { type: "string" },
    batched: { type: "string" },
    retries: { type: "string" },
    webhooks: { type: "string" },
    "new-connections": { type: "string" },
    "attempt-ms": { type: "string" },
    "run-days": { type: "string" },
  },
});
const mix: Mix = {
  fired: Number(values.fired ?? REFERENCE.fired),
  batched: Number(values.batched ?? REFERENCE.batched),
  retries: Number(values.retries ?? REFERENCE.retries),
  webhooks: Number(values.webhooks ?? REFERENCE.webhooks),
  newConnections: Number(values["new-connections"] ?? REFERENCE.newConnections),
  attemptMs: Number(values["attempt-ms"] ?? REFERENCE.attemptMs),
  runDays: Number(values["run-days"] ?? REFERENCE.runDays),
};
const measurements = readMeasurements(values.measurements);
const rates = values.rate === undefined ? RATES : [Number(values.rate)];
const tables = computeTables(measurements, mix, rates);
for (const name of ["measured", "mix", "needs", "bounds", "simulation"]) console.log(`${tables[name]}\n`);
const isEnough = !tables.simulation?.includes(INSUFFICIENT);
if (!isEnough)
  for (const rate of rates) {
    const { complaints } = checkPlan(measurements, mix, planFor(measurements, mix, rate));
    for (const complaint of complaints) console.error(`${formatCount(rate)} jobs/s ${complaint}`);
  }
if (values.write) writeFileSync(PAGE, renewPage(readFileSync(PAGE, "utf8"), measurements));
process.exitCode = isEnough ? 0 : 1;
