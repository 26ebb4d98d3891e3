import type { Measurements } from "../cost/measurements.ts";
import { formatCount } from "../harness/measure.ts";
import { checkPlan, LATENESS_MS_MAX, postgresCoresOf } from "./check.ts";
import { percent, table } from "./markdown.ts";
import { showMeasured } from "./measured-tables.ts";
import { type Mix, RATES } from "./mix.ts";
import { type Plan, PRIMARY, planFor, projectPerSSeen, ratePerSSeen, SERVICES, USE_MAX } from "./model.ts";

/** The words in a row of the simulation whose plan breaks a bound. */
export const INSUFFICIENT = "does not suffice";

/** The computed parts of deploy/CAPACITY.md, by the names of their places in it. */
export function computeTables(
  measurements: Measurements,
  mix: Mix,
  rates: readonly number[] = RATES,
): Record<string, string> {
  const plans = rates.map((jobsPerS) => planFor(measurements, mix, jobsPerS));
  return {
    ...showMeasured(measurements),
    mix: describeMix(mix),
    needs: needsTable(measurements, plans),
    bounds: boundsTable(measurements, plans),
    simulation: simulationTable(measurements, mix, plans),
  };
}

function describeMix(mix: Mix): string {
  const single = 1 - mix.fired - mix.batched;
  return [
    `${percent(single)} of the jobs are created one by one, ${percent(mix.batched)} in batches of 100, ${percent(mix.fired)} by schedules; for 100 jobs there are`,
    `${formatCount(mix.retries * 100)} retries and ${formatCount(mix.webhooks * 100)} webhook deliveries; ${percent(mix.newConnections)} of the requests open a new TLS connection; a target takes`,
    `${formatCount(mix.attemptMs)} ms; runs are shown for ${mix.runDays} days.`,
  ].join("\n");
}

function needsTable(measurements: Measurements, plans: readonly Plan[]): string {
  const each = (name: string, figureOf: (plan: Plan) => number | string) => [
    name,
    ...plans.map((plan) => {
      const figure = figureOf(plan);
      return typeof figure === "number" ? formatCount(figure) : figure;
    }),
  ];
  const pods = (service: "gateway" | "worker" | "delivery") => (plan: Plan) =>
    `${plan.cell.pods[service]} (${percent(plan.cell.use[service])})`;
  return table(
    ["jobs/s", ...plans.map(({ jobsPerS }) => formatCount(jobsPerS))],
    [
      each("cells", ({ cells }) => cells),
      each("**in each cell**: jobs/s", ({ cell }) => cell.jobsPerS),
      each("times what was run here", ({ cell }) => cell.jobsPerS / ratePerSSeen(measurements)),
      each("attempts and deliveries/s", ({ cell }) => cell.requestsPerS),
      each("of them on the wire", ({ cell }) => cell.inFlight),
      each("gateways (use of the thread)", pods("gateway")),
      each("workers (use)", pods("worker")),
      each("delivery nodes (use)", pods("delivery")),
      each("cores that Postgres uses", ({ cell }) => cell.postgres.cores),
      each(`cores to give it, at ${percent(USE_MAX)}`, postgresCoresOf),
      each("log, MB/s", ({ cell }) => cell.postgres.logBytesPerS / 1e6),
      each("log, GB a day", ({ cell }) => (cell.postgres.logBytesPerS * 86_400) / 1e9),
      each("fsyncs/s", ({ cell }) => cell.postgres.fsyncsPerS),
      each("disk that stays, GB a day", ({ cell }) => cell.disk.foreverPerDay / 1e9),
      each("disk of runs and events in the end, GB", ({ cell }) => cell.disk.levelled / 1e9),
      each("connections to the pooler at most", ({ cell }) => cell.postgres.connections),
      each(
        "NATS, MB/s (cores)",
        ({ cell }) => `${formatCount(cell.nats.bytesPerS / 1e6)} (${formatCount(cell.nats.cores)})`,
      ),
      each("network in, Mbit/s", ({ cell }) => (cell.network.inBytesPerS * 8) / 1e6),
      each("network out, Mbit/s", ({ cell }) => (cell.network.outBytesPerS * 8) / 1e6),
    ],
  );
}

function describeBound(name: Plan["bound"]["name"]): string {
  switch (name) {
    case "cores":
      return `Postgres uses ${percent(USE_MAX)} of ${PRIMARY.cores} cores`;
    case "logBytesPerS":
      return `its log grows by ${formatCount(PRIMARY.logBytesPerS / 1e6)} MB/s`;
  }
}

function boundsTable(measurements: Measurements, plans: readonly Plan[]): string {
  return [
    table(
      ["jobs/s", "cells", "what binds a cell", "reached of that bound"],
      plans.map(({ jobsPerS, cells, bound }) => [
        formatCount(jobsPerS),
        formatCount(cells),
        describeBound(bound.name),
        percent(bound.part),
      ]),
    ),
    "",
    `Really run through one of each, from creation to delivery: ${formatCount(ratePerSSeen(measurements))} jobs/s. Really run of one project, through`,
    `its one flow row and one delivery node: ${formatCount(projectPerSSeen(measurements))} attempts/s.`,
  ].join("\n");
}

function simulationTable(measurements: Measurements, mix: Mix, plans: readonly Plan[]): string {
  const ms = (figure: number) =>
    figure >= 1_000 ? `${formatCount(figure / 1_000)} s` : `${formatCount(figure)} ms`;
  const busiest = (use: Record<string, number>) =>
    percent(Math.max(...SERVICES.map((service) => use[service] ?? 0)));
  return table(
    [
      "jobs/s of a cell",
      "p50",
      `p99 (at most ${ms(LATENESS_MS_MAX.whole)})`,
      "busiest thread",
      `p99 without a zone (${ms(LATENESS_MS_MAX.withoutZone)})`,
      "busiest thread",
      `worst when it dies (${ms(LATENESS_MS_MAX.zoneDies)})`,
    ],
    plans.map((plan) => {
      const { whole, withoutZone, zoneDies, complaints } = checkPlan(measurements, mix, plan);
      return [
        `${formatCount(plan.cell.jobsPerS)}${complaints.length === 0 ? "" : ` (${INSUFFICIENT})`}`,
        ms(whole.p50),
        ms(whole.p99),
        busiest(whole.use),
        ms(withoutZone.p99),
        busiest(withoutZone.use),
        ms(zoneDies.worst),
      ];
    }),
  );
}
