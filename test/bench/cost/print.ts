import { formatCount, printTable } from "../harness/measure.ts";
import type { Figure, Figures, Measurements } from "./measurements.ts";

/** Prints the measurements, with ranges where rounds differ. */
export function printCosts({ cases, disk, fullest }: Measurements): void {
  const whole = ([middle, least, most]: Figure, format = formatCount) =>
    least === most ? format(middle) : `${format(middle)} (${format(least)} to ${format(most)})`;
  const titleOf = ({ name, ratePerS }: Figures) =>
    `${name}${ratePerS === null ? ", all that goes" : ratePerS === 0 ? "" : `, ${ratePerS}/s`}`;

  console.log("CPU seconds for each 1,000 jobs (idle: for each 1,000 s):");
  printTable(
    ["case", "jobs/s", "gateway", "worker", "delivery", "postgres", "nats"],
    cases.map((each) => {
      const { gateway, worker, delivery, postgres, nats } = each.cpuSeconds;
      return [
        titleOf(each),
        whole(each.reachedPerS),
        ...[gateway, worker, delivery, postgres, nats].map((figure) => whole(figure)),
      ];
    }),
  );

  console.log("\nFor each 1,000 jobs (idle: for each 1,000 s); KB are 1,000 bytes:");
  const kilo = (figure: Figure) => whole(figure, (bytes) => formatCount(bytes / 1_000));
  printTable(
    ["case", "log KB", "and images KB", "log records", "NATS messages", "NATS KB", "in KB", "out KB"],
    cases.map((each) => [
      titleOf(each),
      kilo(each.walBytes),
      kilo(each.imageBytes),
      whole(each.walRecords),
      whole(each.natsMessages),
      kilo(each.natsBytes),
      kilo(each.bytesIn),
      kilo(each.bytesOut),
    ]),
  );

  console.log("\nRows for each 1,000 jobs, of one round (idle: for each 1,000 s):");
  printTable(
    ["case", "inserted", "updated", "deleted", "transactions", "fsyncs"],
    cases.map((each) => {
      const { inserted, updated, deleted, transactions, fsyncs } = each.rows;
      return [titleOf(each), ...[inserted, updated, deleted, transactions, fsyncs].map(formatCount)];
    }),
  );

  console.log(
    "\nMost resident memory, MiB, and milliseconds (p50 / p99) to the 201 and from due to received:",
  );
  const mib = (bytes: number) => formatCount(bytes / 1_048_576);
  const quantiles = (ms: number[] | null) =>
    ms === null ? "" : `${formatCount(ms[3] ?? 0)} / ${formatCount(ms[7] ?? 0)}`;
  printTable(
    ["case", "gateway", "worker", "delivery", "nats", "to 201", "lateness"],
    cases.map((each) => {
      const { gateway, worker, delivery, nats } = each.peakBytes;
      return [
        titleOf(each),
        ...[gateway, worker, delivery, nats].map(mib),
        quantiles(each.latencyMs),
        quantiles(each.latenessMs),
      ];
    }),
  );
  console.log("\nBytes on disk for each job, indexes included, by how long they stay:");
  printTable(
    ["job", "queues", "runs", "deliveries", "for ever"],
    Object.entries(disk).map(([name, { queues, runs, deliveries, rest }]) => [
      name,
      ...[queues, runs, deliveries, rest].map(formatCount),
    ]),
  );
  const { gateway, delivery } = fullest;
  console.log(
    `\nAt the most: a gateway took ${mib(gateway.peakBytes)} MiB while ${gateway.bodies} batches of ${mib(gateway.bodyBytes)} MiB came at once (it took ${gateway.taken}), a delivery node ${mib(delivery.peakBytes)} MiB with ${formatCount(delivery.attempts)} of the largest payloads on the wire.`,
  );
}
