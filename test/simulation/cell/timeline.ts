import { drainMicrotasks } from "bun:jsc";

/** A process of the simulated cell, as far as its time is concerned. */
export interface Owner {
  state: "running" | "frozen" | "gone";
  /** By how much its events come late, which makes it slow. */
  delayMs(): number;
  /** The entries that came while it was frozen. */
  readonly backlog: Entry[];
}

/** Something that is to happen. A timer's handle has one (globals.ts). */
export interface Entry {
  at: number;
  order: number;
  owner: Owner | null;
  isCanceled: boolean;
  run(): void;
}

/** Far more than what a cell does within a second. */
const PER_SECOND_MAX = 100_000;

/**
 * Simulated time, in milliseconds since the simulation began. Everything that happens is an entry, and the microtasks
 * that follow from an entry run before the next one. So all that runs within an entry belongs to the entry's owner.
 */
export class Timeline {
  now = 0;
  current: Owner | null = null;
  private readonly heap: Entry[] = [];
  private count = 0;
  private second = 0;
  /** How many entries have happened in this second. */
  private ofSecond = 0;

  /** `owner` is null for entries that belong to no process: those of the database's server, targets and the network. */
  in(delayMs: number, owner: Owner | null, run: () => void): Entry {
    const entry = { at: this.now + Math.max(0, delayMs), order: 0, owner, isCanceled: false, run };
    this.push(entry);
    return entry;
  }

  /** Lets time pass until `at`. Throws if the cell works without end. */
  run(at: number): void {
    for (let next = this.heap[0]; next !== undefined && next.at <= at; next = this.heap[0]) {
      this.pop();
      this.now = Math.max(this.now, next.at);
      this.countEntry();
      this.happen(next);
    }
    this.now = Math.max(this.now, at);
  }

  private countEntry(): void {
    const second = Math.floor(this.now / 1_000);
    this.ofSecond = second === this.second ? this.ofSecond + 1 : 1;
    this.second = second;
    if (this.ofSecond > PER_SECOND_MAX) throw new Error(`the cell works without end in second ${second}`);
  }

  /** Makes the entries of the backlog happen now, in their order. */
  thaw(owner: Owner): void {
    for (const entry of owner.backlog.splice(0))
      this.push({ ...entry, at: this.now, run: () => this.happen(entry) });
  }

  private happen(entry: Entry): void {
    const { owner } = entry;
    if (entry.isCanceled || owner?.state === "gone") return;
    if (owner?.state === "frozen") {
      owner.backlog.push(entry);
      return;
    }
    this.current = owner;
    entry.run();
    drainMicrotasks();
    this.current = null;
  }

  private push(entry: Entry): void {
    if (entry.owner !== null) entry.at += entry.owner.delayMs();
    entry.order = this.count++;
    const { heap } = this;
    let place = heap.length;
    heap.push(entry);
    while (place > 0) {
      const above = (place - 1) >> 1;
      const other = heap[above] as Entry;
      if (!isBefore(entry, other)) break;
      heap[place] = other;
      place = above;
    }
    heap[place] = entry;
  }

  private pop(): void {
    const { heap } = this;
    const last = heap.pop() as Entry;
    if (heap.length === 0) return;
    let place = 0;
    for (;;) {
      let below = 2 * place + 1;
      if (below >= heap.length) break;
      if (below + 1 < heap.length && isBefore(heap[below + 1] as Entry, heap[below] as Entry)) below++;
      const other = heap[below] as Entry;
      if (!isBefore(other, last)) break;
      heap[place] = other;
      place = below;
    }
    heap[place] = last;
  }
}

const isBefore = (one: Entry, other: Entry) =>
  one.at < other.at || (one.at === other.at && one.order < other.order);
