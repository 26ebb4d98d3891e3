import { PAYLOAD } from "./jobs.ts";
import type { Load, LoadReport } from "./load.ts";
import { formatCount, printTable } from "./measure.ts";
import type { OwnCell } from "./own-cell.ts";
import { runProgram, until } from "./processes.ts";
import { quantileOf } from "./quantiles.ts";

/** Jobs that are created over HTTP at a rate and delivered, beside something else. */
export interface LoadBeside {
  /** Keeps up the load while `act` goes on. Its figures are a row of the table. */
  watch(name: string, act: () => Promise<unknown>): Promise<void>;
  print(): void;
}

const CONNECTIONS = 32;
/** One program makes the requests of this time, and another program follows until `act` is over. */
const SECONDS = 10;

/** With a rate of 0 there is no load, and no table. */
export async function startLoad(cell: OwnCell, ratePerS: number): Promise<LoadBeside> {
  if (ratePerS === 0) return { watch: async (_name, act) => void (await act()), print: () => undefined };
  const { key } = await cell.addProject("load");
  const sink = await cell.startSink();
  const rows: string[][] = [];
  const load: Load = {
    ...{
      port: cell.gateway.port,
      key,
      path: "/v2/jobs",
      ratePerS,
      seconds: SECONDS,
      connections: CONNECTIONS,
    },
    body: `{"target_url":"${sink.url}/hook","payload":${PAYLOAD}}`,
  };
  return {
    async watch(name, act) {
      await sink.begin("lateness");
      const endUse = await cell.beginUse();
      let isOver = false;
      const acted = act().finally(() => (isOver = true));
      const reports: LoadReport[] = [];
      // The program runs at least once, and again until `act` is over.
      do reports.push((await runProgram<LoadReport>("load.ts", load)).report);
      while (!isOver);
      await acted;
      const created = reports.reduce((sum, { answeredCount }) => sum + answeredCount, 0);
      for (let tenth = 1; tenth <= 10; tenth++)
        await until("more have arrived", async () => (await sink.counts()).count >= (created * tenth) / 10);
      const { othersCores } = await endUse();
      const { latenessMs } = await sink.received();
      const worst = (part: number) =>
        Math.max(...reports.map(({ latencyMs }) => quantileOf(latencyMs, part)));
      rows.push([
        ...[name, formatCount(created)],
        ...[worst(0.5), worst(0.99), quantileOf(latenessMs, 0.5), quantileOf(latenessMs, 0.99)].map(
          formatCount,
        ),
        othersCores.toFixed(2),
      ]);
    },
    print: () =>
      printTable(["the load", "jobs", "201 ms p50", "p99", "late ms p50", "p99", "others' cores"], rows),
  };
}
