import type { HistoryEvent } from "../../support/history/history.ts";
import type { Timeline } from "./timeline.ts";

/** What one run leaves behind: the history that is checked, how often each rare path was met, and the trace if one is wanted. */
export class Recording {
  readonly events: HistoryEvent[] = [];
  readonly counts = new Map<string, number>();
  readonly lines: string[] = [];

  constructor(
    private readonly timeline: Timeline,
    private readonly isTraced: boolean,
  ) {}

  note(event: HistoryEvent): void {
    this.events.push(event);
    this.trace(() => `* ${JSON.stringify(event)}`);
  }

  /** A rare path was met. */
  meet(name: string, count = 1): void {
    this.counts.set(name, (this.counts.get(name) ?? 0) + count);
  }

  /** Adds a line to the trace. The text is made only if there is one. */
  trace(text: () => string): void {
    if (this.isTraced) this.lines.push(`${this.timeline.now.toFixed(3)} ${text()}`);
  }
}
