import { createIdSource, type IdSource } from "../../../shared/domain/ids.ts";
import { Random } from "./random.ts";
import type { Entry, Owner, Timeline } from "./timeline.ts";

/** Real clocks differ in their pace by less than this. */
const PACE_DIFFERS_MAX = 0.0002;
/** Bun's timers wait for whole milliseconds, and for one at least. */
const TIMER_STEP_MS = 1;
const LATE_PART = 0.1;

/**
 * The point at which a process dies: its `calls`-th call from now on of the outside world with these letters in its
 * name (any call if there are none), before or after the call is made. A call is a statement, a message by its subject,
 * or a "request".
 */
export interface Crash {
  named: string;
  calls: number;
  isAfterCall: boolean;
}

/**
 * One life of a simulated process: its clock, its chance and its end. Every call that it makes outside of itself (a
 * statement, a message, a request) goes through `act`. So a death at any such call is a death at any await: others see
 * nothing that happens between two calls.
 */
export class SimProcess implements Owner {
  state: Owner["state"] = "running";
  readonly backlog: Entry[] = [];
  readonly random: Random;
  readonly ids: IdSource;
  slowMs = 0;
  /** Whether it dies with the call that it makes now. */
  isEnding = false;
  private readonly pace: number;
  private readonly bornAt: number;
  private floorMs = 0;
  /** By how much a timer may come late, now and then. */
  lateTimersMs = 0;
  private crash: Crash | null = null;
  private readonly endings: (() => void)[] = [];

  constructor(
    readonly name: string,
    private readonly timeline: Timeline,
    seed: number,
    private readonly onDeath: (process: SimProcess) => void,
  ) {
    this.random = new Random(seed, name);
    this.ids = createIdSource((count) => this.random.bytes(count));
    this.pace = 1 + this.random.between(-PACE_DIFFERS_MAX, PACE_DIFFERS_MAX);
    this.bornAt = timeline.now - this.random.between(0, 1_000);
  }

  delayMs(): number {
    return this.slowMs > 0 ? this.random.between(0, this.slowMs) : 0;
  }

  /** Its monotonic clock. */
  performanceNow(): number {
    return Math.max((this.timeline.now - this.bornAt) * this.pace, this.floorMs);
  }

  /** Lets its thread stand still for `ms`. */
  standStill(ms: number): void {
    this.floorMs = this.performanceNow() + ms;
  }

  /** Calls `run` after `ms` by its own clock. Null means at once, but after the entries that wait already. */
  later(ms: number | null, run: () => void): Entry {
    const waitMs = ms === null ? 0 : Math.max(TIMER_STEP_MS, Math.floor(ms)) / this.pace;
    const isLate = this.lateTimersMs > 0 && ms !== null && this.random.chance(LATE_PART);
    return this.timeline.in(waitMs + (isLate ? this.random.between(0, this.lateTimersMs) : 0), this, run);
  }

  armCrash(crash: Crash): void {
    this.crash = crash;
  }

  /** Ends the faults of the process. */
  heal(): void {
    this.crash = null;
    this.slowMs = 0;
    this.lateTimersMs = 0;
  }

  /** Makes a call of the outside world, unless the process is dead or dies just before it. */
  act(name: string, call: () => void): void {
    if (this.state === "gone") return;
    const isLast = this.crash !== null && name.includes(this.crash.named) && --this.crash.calls <= 0;
    this.isEnding = isLast;
    if (!isLast || this.crash?.isAfterCall) call();
    if (isLast) this.die();
  }

  freeze(): void {
    if (this.state === "running") this.state = "frozen";
  }

  thaw(): void {
    if (this.state !== "frozen") return;
    this.state = "running";
    this.timeline.thaw(this);
  }

  /** Calls `end` when the process dies. */
  onEnd(end: () => void): void {
    this.endings.push(end);
  }

  die(): void {
    if (this.state === "gone") return;
    this.state = "gone";
    for (const end of this.endings) end();
    this.onDeath(this);
  }
}
