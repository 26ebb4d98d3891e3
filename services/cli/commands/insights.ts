import type { Insights } from "../../../shared/client/index.ts";
import { INSIGHT_PERIODS } from "../../../shared/domain/insights/levels.ts";
import { REGIONS } from "../../../shared/domain/scope.ts";
import { type Command, type Table, tableOf } from "../command.ts";
import { definedOf, wordOf } from "../input.ts";

type Bucket = Insights["buckets"][number];

/** The lowest bar is for 0 alone. */
const BARS = "▁▂▃▄▅▆▇█";
/** If there are more values, neighbours are drawn together. */
const BARS_MAX = 72;

export const insights: Command = {
  about: "show how many runs ended how, how late and how long they were, and what waits",
  options: {
    period: { value: "PERIOD", about: `${INSIGHT_PERIODS.join(", ")}; without it 24h` },
    region: { value: "REGION", about: REGIONS.join(", ") },
  },
  async run(input, { client, signal }) {
    const query = definedOf({
      period: wordOf(input, "period", INSIGHT_PERIODS),
      region: wordOf(input, "region", REGIONS),
    });
    const { result, answer } = await client().project.insights(query, { signal }).withAnswer();
    const columns = ["at", "created", "succeeded", "failed", "timed_out", "late_ms.p99", "duration_ms.p99"];
    return {
      json: answer.text,
      text: tableOf(result.buckets, ...columns),
      onTerminal: [
        `${result.period} until ${result.to}`,
        summaryOf(result),
        ...(result.hosts.length === 0 ? [] : [hostsOf(result)]),
        waitingOf(result),
      ],
    };
  },
};

function summaryOf({ buckets, totals, lateness_target }: Insights): Table {
  const bad = totals.failed + totals.timed_out;
  const row = (name: string, of: (bucket: Bucket) => number | null, total: string) => [
    name,
    barsOf(buckets.map((bucket) => of(bucket) ?? 0)),
    total,
  ];
  const timesOf = ({ p50, p90, p99, max }: Insights["totals"]["late_ms"]) =>
    p50 === null ? "no runs" : `p50 ${p50} ms, p90 ${p90} ms, p99 ${p99} ms, max ${max} ms`;
  return {
    columns: [],
    rows: [
      row("created", ({ created }) => created, countOf(totals.created)),
      row("succeeded", ({ succeeded }) => succeeded, countOf(totals.succeeded)),
      row(
        "failed",
        ({ failed, timed_out }) => failed + timed_out,
        `${countOf(bad)}, ${countOf(totals.timed_out)} of them timed out`,
      ),
      row(
        "late p99",
        ({ late_ms }) => late_ms.p99,
        `${timesOf(totals.late_ms)} (the aim: p99 ${lateness_target.p99_ms} ms)`,
      ),
      row("took p99", ({ duration_ms }) => duration_ms.p99, timesOf(totals.duration_ms)),
    ],
  };
}

function hostsOf({ hosts }: Insights): Table {
  return tableOf(hosts, "host", "runs", "failed", "duration_p99_ms", "commonest_error");
}

function waitingOf({ waiting: { due, by_reason, later, estimated } }: Insights): string {
  const reasons = Object.entries(by_reason).map(([reason, count]) => `${reason} ${countOf(count)}`);
  const why = reasons.length === 0 ? "" : ` (${reasons.join(", ")})`;
  return `due now: ${countOf(due)}${why}, later: ${countOf(later)}${estimated ? ", as estimated" : ""}`;
}

const countOf = (count: number) => count.toLocaleString("en-GB");

/** A bar for each value, or for the greatest of neighbours if there are many. */
export function barsOf(values: readonly number[]): string {
  const together = Math.ceil(values.length / BARS_MAX);
  const shown = Array.from({ length: Math.ceil(values.length / together) }, (_, index) =>
    Math.max(...values.slice(index * together, (index + 1) * together)),
  );
  const most = Math.max(...shown, 1);
  return shown.map((value) => BARS[Math.ceil((value / most) * (BARS.length - 1))]).join("");
}
