import type { ClockReading, HistoryEvent } from "../../support/history/history.ts";

/** The record of one run: the history that is checked, how often each path was met, and other faults. */
export class Recording {
  readonly counts = new Map<string, number>();
  /** Faults that no rule of the history looks for: an answer of 500, a process that ended by itself. */
  readonly faults: string[] = [];
  private readonly noted: HistoryEvent[] = [];

  note(event: HistoryEvent): void {
    this.noted.push(event);
  }

  meet(path: string, count = 1): void {
    if (count > 0) this.counts.set(path, (this.counts.get(path) ?? 0) + count);
  }

  get now(): number {
    return performance.now();
  }

  /** The database's servers are on this machine, so their clock is this process's, which leaves out parts of a millisecond. */
  readClock(): ClockReading {
    const nowAt = Date.now();
    return { nowAt, latestAt: nowAt + 1 };
  }

  /** Sorted by time: a request is noted when its body is there, with the time of its first byte. */
  get events(): HistoryEvent[] {
    return this.noted.toSorted((one, other) => one.at - other.at);
  }
}
