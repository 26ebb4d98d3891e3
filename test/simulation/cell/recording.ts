import type { DownTime, GateName, HistoryEvent } from "../../support/history/history.ts";
import type { Timeline } from "./timeline.ts";

const isOfGate = (one: GateName, other: GateName) =>
  one.project === other.project && one.environment === other.environment && one.gate === other.gate;

/** The record of one run: the history that is checked, how often each rare path was met, and the trace if wanted. */
export class Recording {
  readonly events: HistoryEvent[] = [];
  readonly counts = new Map<string, number>();
  readonly lines: string[] = [];

  /** The jobs that have waited at a host which was down or opening. */
  readonly keptByHost = new Set<string>();
  private readonly hostChanges: ({ isDown: boolean; at: number } & GateName)[] = [];

  constructor(
    private readonly timeline: Timeline,
    private readonly isTraced: boolean,
  ) {}

  note(event: HistoryEvent): void {
    this.events.push(event);
    this.trace(() => `* ${JSON.stringify(event)}`);
  }

  /** Notes that a host went down or came up at an instant of the database's clock, unless it was so before. */
  noteHost(change: { isDown: boolean; at: number } & GateName): void {
    const before = this.hostChanges.findLast((other) => isOfGate(other, change));
    if ((before?.isDown ?? false) === change.isDown) return;
    this.hostChanges.push(change);
    this.meet(change.isDown ? "host down" : "host up");
  }

  /** The times during which hosts were down. */
  downTimes(): DownTime[] {
    return this.hostChanges.flatMap(({ isDown, at, ...name }, index) => {
      const up = this.hostChanges.slice(index + 1).find((other) => isOfGate(other, name));
      return isDown ? [{ ...name, downAt: at, upAt: up?.at ?? null }] : [];
    });
  }

  /** Counts that a rare path was met. */
  meet(name: string, count = 1): void {
    this.counts.set(name, (this.counts.get(name) ?? 0) + count);
  }

  /** Adds a line to the trace. The text is made only if there is a trace. */
  trace(text: () => string): void {
    if (this.isTraced) this.lines.push(`${this.timeline.now.toFixed(3)} ${text()}`);
  }
}
