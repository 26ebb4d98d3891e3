import { type Entry, isBefore } from "./entry.ts";

/** The entries of a lane that are ready to be sent, in their order. Those that the lane has forgotten since stand there as well. */
export class ReadyRow {
  private ready: Entry[] = [];
  private head = 0;
  /** Refused entries; the last one is sent next. */
  private refused: Entry[] = [];

  get length(): number {
    return this.ready.length - this.head + this.refused.length;
  }

  /** The first of those that are meant. */
  find(isMeant: (entry: Entry) => boolean): Entry | undefined {
    // Entries before the head were sent or forgotten. One that was put off since may be ready, but stands further behind as well.
    return (
      this.refused.findLast(isMeant) ??
      this.ready.find((entry, place) => place >= this.head && isMeant(entry))
    );
  }

  /** Adds an entry that may be older than others. */
  add(entry: Entry): void {
    const next = this.refused.at(-1);
    if (next !== undefined && isBefore(entry, next)) this.refused.push(entry);
    else {
      const place = this.ready.findLastIndex((other) => !isBefore(entry, other)) + 1;
      this.ready.splice(Math.max(place, this.head), 0, entry);
    }
  }

  /** Adds an entry behind all others. */
  push(entry: Entry): void {
    this.ready.push(entry);
  }

  /** Adds an entry that was refused: it is sent before those that were not. */
  giveBack(entry: Entry): void {
    const place = this.refused.findLastIndex((other) => !isBefore(other, entry)) + 1;
    this.refused.splice(place, 0, entry);
  }

  /** Takes the next entry out. */
  takeNext(): Entry | undefined {
    const refused = this.refused.pop();
    if (refused !== undefined) return refused;
    const entry = this.ready[this.head];
    if (entry === undefined) return undefined;
    this.head++;
    if (this.head === this.ready.length) {
      this.ready = [];
      this.head = 0;
    } else if (this.head > 1_024 && this.head > this.ready.length / 2) {
      this.ready = this.ready.slice(this.head);
      this.head = 0;
    }
    return entry;
  }
}
