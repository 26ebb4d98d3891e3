import type { Case, Outcome } from "./cases.ts";
import type { Cell } from "./cell.ts";
import {
  endOtherBackends,
  forgetPeaks,
  type Part,
  type PODS,
  type Reading,
  type Rows,
  read,
  readPeaks,
  readRows,
  readWal,
} from "./readings.ts";

/** The result of one run of a case. */
export interface Sample {
  jobs: number;
  ratePerS: number;
  requests: number;
  /** All following figures are for each 1,000 jobs (for "idle", each 1,000 s), except peaks and distributions. */
  cpuSeconds: Record<Part, number>;
  walBytes: number;
  walRecords: number;
  imageBytes: number;
  natsMessages: number;
  natsBytes: number;
  bytesIn: number;
  bytesOut: number;
  peakBytes: Record<(typeof PODS)[number], number>;
  latencyMs: number[] | null;
  latenessMs: number[] | null;
}

/** Measures one case once. */
export async function measure(cell: Cell, { ratePerS, run, name }: Case, seconds: number): Promise<Sample> {
  const { db, pids } = cell.watched;
  let before: Reading | undefined;
  const begin = async () => {
    forgetPeaks(pids);
    before = await read(cell.watched);
  };
  const outcome = await run(cell, { ratePerS, seconds, begin });
  const after = await read(cell.watched);
  const peakBytes = readPeaks(pids);
  if (before === undefined) throw new Error(`${name} did not begin`);
  const begunWith = before;
  const wal = await readWal(db, begunWith.wal, after.wal);
  const each = (figure: number) => figure / thousandsOf(name, outcome);
  const cpuOf = (part: Part) => each((after.cpuUs[part] - begunWith.cpuUs[part]) / 1e6);
  return {
    jobs: outcome.jobs,
    requests: outcome.requests,
    ratePerS: outcome.jobs / outcome.seconds,
    cpuSeconds: {
      gateway: cpuOf("gateway"),
      worker: cpuOf("worker"),
      delivery: cpuOf("delivery"),
      postgres: cpuOf("postgres"),
      nats: cpuOf("nats"),
    },
    walBytes: each(wal.bytes),
    walRecords: each(wal.records),
    imageBytes: each(wal.imageBytes),
    natsMessages: each(after.nats.messages - begunWith.nats.messages),
    natsBytes: each(after.nats.bytes - begunWith.nats.bytes),
    bytesIn: each(outcome.bytesIn),
    bytesOut: each(outcome.bytesOut),
    peakBytes,
    latencyMs: outcome.latencyMs,
    latenessMs: outcome.latenessMs,
  };
}

const thousandsOf = (name: string, { jobs, seconds }: Outcome) => (name === "idle" ? seconds : jobs) / 1_000;

/**
 * Runs one case again to count its rows. A backend reports its counters after 10 s of idleness or at its end, so all
 * backends are ended before and after. The services survive that, but other measurements in that round would be spoilt.
 */
export async function count(cell: Cell, { ratePerS, run, name }: Case, seconds: number): Promise<Rows> {
  const { db } = cell.watched;
  let before: Rows | undefined;
  const begin = async () => {
    await endOtherBackends(db);
    before = await readRows(db);
  };
  const outcome = await run(cell, { ratePerS, seconds, begin });
  await endOtherBackends(db);
  const after = await readRows(db);
  if (before === undefined) throw new Error(`${name} did not begin`);
  const begunWith = before;
  const counted = (of: keyof Rows) => (after[of] - begunWith[of]) / thousandsOf(name, outcome);
  return {
    inserted: counted("inserted"),
    updated: counted("updated"),
    deleted: counted("deleted"),
    transactions: counted("transactions"),
    fsyncs: counted("fsyncs"),
  };
}
