import type { Figure, Figures, Measurements } from "../cost/measurements.ts";
import { formatCount } from "../harness/measure.ts";
import { gib, mib, table } from "./markdown.ts";

/** The measurements as the page shows them. */
export function showMeasured(measurements: Measurements): Record<string, string> {
  return {
    measured: describe(measurements),
    cpu: cpuTable(measurements),
    postgres: postgresTable(measurements),
    network: networkTable(measurements),
    disk: diskTable(measurements),
    memory: memoryTable(measurements),
  };
}

function describe({ measuredAt, command, machine, postgres, payloadBytes }: Measurements): string {
  const settings = Object.entries(postgres.settings).map(([name, value]) => `\`${name}\` ${value}`);
  return [
    `Measured on ${measuredAt.slice(0, 10)} by \`${command}\`: ${machine.cores} cores (${machine.cpu}),`,
    `${gib(machine.memoryBytes)} GiB, Linux ${machine.kernel}, Bun ${machine.bun}, Postgres ${postgres.version} with`,
    ...settings.map((setting) => `${setting},`),
    `and payloads of ${payloadBytes} bytes.`,
  ].join("\n");
}

const CASE = "what is done";

function cpuTable({ cases }: Measurements): string {
  return table(
    [CASE, "jobs/s", "gateway", "worker", "delivery", "Postgres", "NATS", "all"],
    cases.map((each) => {
      const parts = Object.values(each.cpuSeconds);
      const { gateway, worker, delivery, postgres, nats } = each.cpuSeconds;
      const all = parts.reduce((sum, [middle]) => sum + middle, 0);
      return [
        titleOf(each),
        reached(each),
        ...[gateway, worker, delivery, postgres, nats].map(ranged),
        formatCount(all),
      ];
    }),
  );
}

function postgresTable({ cases }: Measurements): string {
  return table(
    [
      CASE,
      "jobs/s",
      "inserted",
      "updated",
      "deleted",
      "commits",
      "fsyncs",
      "log, KB",
      "records",
      "images, KB",
    ],
    cases.map((each) => {
      const { inserted, updated, deleted, transactions, fsyncs } = each.rows;
      return [
        titleOf(each),
        reached(each),
        ...[
          inserted,
          updated,
          deleted,
          transactions,
          fsyncs,
          each.walBytes[0] / 1_000,
          each.walRecords[0],
          each.imageBytes[0] / 1_000,
        ].map(formatCount),
      ];
    }),
  );
}

function networkTable({ cases }: Measurements): string {
  return table(
    [CASE, "jobs/s", "NATS messages", "NATS KB", "gateway KB", "delivery KB"],
    cases.map((each) => [
      titleOf(each),
      reached(each),
      ...[
        each.natsMessages[0],
        each.natsBytes[0] / 1_000,
        each.bytesIn[0] / 1_000,
        each.bytesOut[0] / 1_000,
      ].map(formatCount),
    ]),
  );
}

function diskTable({ disk }: Measurements): string {
  const row = (
    name: string,
    { rest, runs, deliveries, queues }: Measurements["disk"]["over"],
    isWaiting = false,
  ) => [name, ...[rest, runs, deliveries].map(formatCount), isWaiting ? formatCount(queues) : "0"];
  return table(
    ["bytes for each job", "for ever", "as long as runs are shown", "31 days", "until it is over"],
    [
      row("that waits", disk.waiting, true),
      row("that is over", disk.over),
      row("that is over and told an endpoint", disk.overWithWebhook),
    ],
  );
}

function memoryTable({ cases, fullest: { gateway, delivery } }: Measurements): string {
  const most = (name: "gateway" | "worker" | "delivery" | "nats", wanted: readonly Figures[]) =>
    mib(Math.max(...wanted.map(({ peakBytes }) => peakBytes[name])));
  const idle = cases.filter(({ name }) => name === "idle");
  const names = ["gateway", "worker", "delivery", "nats"] as const;
  return [
    table(
      ["resident MiB", ...names],
      [
        ["idle", ...names.map((name) => most(name, idle))],
        ["the most in any case above", ...names.map((name) => most(name, cases))],
        ["made to hold all that it takes", mib(gateway.peakBytes), "", mib(delivery.peakBytes), ""],
      ],
    ),
    "",
    `The last row: ${gateway.bodies} batches of ${mib(gateway.bodyBytes)} MiB that came to a gateway at once, of which it took ${gateway.taken}, and ${formatCount(delivery.attempts)} attempts`,
    "with payloads of 256 KB on the wire of a delivery node.",
  ].join("\n");
}

const titleOf = ({ name, ratePerS }: Figures) => (ratePerS === null ? `${name}, all that goes` : name);
const reached = ({ name, reachedPerS }: Figures) => (name === "idle" ? "0" : formatCount(reachedPerS[0]));
const ranged = ([middle, least, most]: Figure) =>
  least === most
    ? formatCount(middle)
    : `${formatCount(middle)} (${formatCount(least)} to ${formatCount(most)})`;
