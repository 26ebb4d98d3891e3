import type { ClockReading, HistoryEvent } from "../../support/history/history.ts";

/** What one run leaves behind: the history that is checked, how often each path was met, and what no process may do. */
export class Recording {
  readonly counts = new Map<string, number>();
  /** What is wrong whatever the history says: an answer of 500, a process that ended by itself. */
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

  /** What a request has brought is noted when its body is there, at the time of its first byte. */
  get events(): HistoryEvent[] {
    return this.noted.toSorted((one, other) => one.at - other.at);
  }
}
