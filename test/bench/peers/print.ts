import { printTable, summarize } from "../harness/measure.ts";
import type { Results, Sample } from "./results.ts";

/** Prints a table for each part: a row for each figure, a column for each product, medians with their ranges. */
export function printResults(results: Results): void {
  const { command, begunAt, endedAt, machine, versions, products: order, titles, samples, faults } = results;
  console.log(`${command}\n${begunAt} to ${endedAt}, ${machine}`);
  console.log(
    Object.entries(versions)
      .map((each) => each.join(" "))
      .join(", "),
  );
  for (const [part, own] of Map.groupBy(samples, (sample) => sample.part)) {
    const measured = [...new Set(own.map(({ product }) => product))];
    const products = measured.toSorted((a, b) => order.indexOf(a) - order.indexOf(b));
    const rows = [...Map.groupBy(own, (sample) => sample.what ?? "")].flatMap(([what, each]) => [
      ...(what === "" ? [] : [[`${what}:`]]),
      ...rowsOf(products, each),
    ]);
    console.log(`\n${titles[part] ?? part}\n`);
    printTable(["median (least to most)", ...products], rows);
  }
  for (const fault of faults) console.log(`\nnot measured: ${fault}`);
}

/**
 * The figures come first, then the CPU a job of the whole product and of each process. A busy neighbour of the machine slows
 * the product, the load generator and the sink alike, so the CPU is also told in units of theirs.
 */
const KINDS: ((sample: Sample) => Record<string, number>)[] = [
  ({ figures }) => figures,
  ({ cpuUs: { all, ...each } }) => (all === undefined ? each : { all, ...each }),
  ({ cpuUs: { all }, apartUs: { load = 0, sink = 0 } }): Record<string, number> =>
    all === undefined || load + sink === 0 ? {} : { "CPU a job / load and sink": all / (load + sink) },
  ({ apartUs }) => apartUs,
  ({ othersCores }) => ({ "cores that others used": othersCores }),
];
const PREFIXES = ["", "CPU a job, µs: ", "", "beside it, µs: ", ""];

function rowsOf(products: string[], samples: Sample[]): string[][] {
  return KINDS.flatMap((figuresOf, kind) => {
    const names = new Set(samples.flatMap((sample) => Object.keys(figuresOf(sample))));
    return [...names].map((name) => [
      `  ${PREFIXES[kind]}${name}`,
      ...products.map((product) => {
        const own = samples.flatMap((each) =>
          each.product === product ? (figuresOf(each)[name] ?? []) : [],
        );
        return own.length === 0 ? "" : summarize(own);
      }),
    ]);
  });
}
