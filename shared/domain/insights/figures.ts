import type { WaitReason } from "../wait.ts";
import { type FailedRun, failureKindOf } from "./failure.ts";
import { addFailures, type Hosts } from "./hosts.ts";
import { Sketch } from "./sketch.ts";

/** The figures of a stretch of time in GET /v2/project/insights. Figures of two stretches add up to those of both. */

/** The service's goal: 99 % of the runs that waited for nothing of the customer's own start within so many milliseconds. */
export const LATENESS_TARGET_P99_MS = 1_000;

/** Runs of one host that ended in the same way. Values are whole milliseconds; unknown values are left out. */
export interface RunGroup {
  host: string;
  count: number;
  end: { status: "succeeded" } | FailedRun;
  /** The lateness of runs that waited for nothing of the customer's own. */
  late: readonly number[];
  /** The lateness of runs that waited for something. */
  lateWaited: readonly number[];
  waitedFor: readonly WaitReason[];
  durations: readonly number[];
}

export class Figures {
  created = 0;
  succeeded = 0;
  failed = 0;
  timedOut = 0;
  readonly waitedFor = new Map<WaitReason, number>();
  readonly late = new Sketch();
  readonly lateWaited = new Sketch();
  readonly durations = new Sketch();

  addRuns({ count, end, late, lateWaited, waitedFor, durations }: RunGroup): void {
    switch (end.status) {
      case "succeeded":
        this.succeeded += count;
        break;
      case "failed":
        this.failed += count;
        break;
      case "timed_out":
        this.timedOut += count;
        break;
    }
    for (const ms of late) this.late.add(ms);
    for (const ms of lateWaited) this.lateWaited.add(ms);
    for (const reason of waitedFor) this.addWaited(reason, 1);
    for (const ms of durations) this.durations.add(ms);
  }

  addWaited(reason: WaitReason, count: number): void {
    this.waitedFor.set(reason, (this.waitedFor.get(reason) ?? 0) + count);
  }

  /** The lateness of all runs, whatever they waited for. */
  lateAll(): Sketch {
    const all = new Sketch();
    all.addAll(this.late);
    all.addAll(this.lateWaited);
    return all;
  }

  add(other: Figures): void {
    this.created += other.created;
    this.succeeded += other.succeeded;
    this.failed += other.failed;
    this.timedOut += other.timedOut;
    for (const [reason, count] of other.waitedFor) this.addWaited(reason, count);
    this.late.addAll(other.late);
    this.lateWaited.addAll(other.lateWaited);
    this.durations.addAll(other.durations);
  }
}

export function addRunsToHost(hosts: Hosts, { host, count, end, durations }: RunGroup): void {
  const figures = hosts.of(host);
  figures.runs += count;
  for (const ms of durations) figures.durations.add(ms);
  if (end.status === "succeeded") return;
  figures.failed += count;
  addFailures(figures, failureKindOf(end), count);
}
