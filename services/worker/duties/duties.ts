import type { Cell } from "../../../shared/process/cell.ts";
import type { ClockWatch } from "./clock-watch.ts";
import type { createInsights } from "./insights.ts";
import { auditPermits } from "./permits.ts";
import { purgeExpired } from "./purge.ts";
import { createRescue, type RescueOptions } from "./rescue.ts";
import { retainRuns } from "./retention.ts";

/** An act that the worker on duty repeats for the whole cell. */
export interface Duty {
  name: string;
  everyMs: number;
  run(cell: Cell): Promise<unknown>;
}

/** The duties that delete do so only while `clockWatch` trusts the clock and `mayDelete` allows it. */
export function listDuties(
  options: RescueOptions & { mayDelete?(): boolean },
  clockWatch: ClockWatch,
  rollUp: ReturnType<typeof createInsights>,
): Duty[] {
  const deleteAs = async (act: (now: number) => Promise<unknown>) => {
    if (options.mayDelete?.() !== false) await clockWatch.delete(act);
  };
  return [
    { name: "rescue", everyMs: 1_000, run: createRescue(options, clockWatch) },
    {
      name: "purge",
      // The purge runs often and removes little at a time, so that keys go at the pace at which they came.
      everyMs: 60_000,
      run: ({ db }) => deleteAs((now) => purgeExpired(db, now)),
    },
    {
      name: "retention",
      everyMs: 60_000,
      run: ({ db, log }) => deleteAs((now) => retainRuns(db, { now, log })),
    },
    { name: "permits", everyMs: 60_000, run: auditPermits },
    // The figures are at most 15 s behind, also when another worker takes over.
    { name: "insights", everyMs: 5_000, run: rollUp },
  ];
}
