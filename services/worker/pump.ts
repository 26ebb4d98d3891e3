import type { Clock } from "../../shared/platform/clock.ts";
import { thread } from "./thread.ts";

/** A sleep is no longer than this, however far away the next timer is, so that a clock that was set is noticed. */
const SLEEP_MS_MAX = 1_000;
/** The clock is corrected by less than this all the time. A larger step means that somebody has set it. */
const CLOCK_STEP_MS = 1_000;

/** Bun's timers wait for whole milliseconds, rounded down, and for one at least. So a timer can come too early, by less than a step. */
const TIMER_STEP_MS = 1;

/**
 * Wakes the worker when its next timer is due, and at the end of a turn of the event loop in which something arrived.
 */
export class Pump {
  private isWanted = false;
  private isStopped = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private lastAt = Number.NEGATIVE_INFINITY;
  private nextAt = Number.POSITIVE_INFINITY;

  constructor(
    private readonly clock: Clock,
    private readonly calls: {
      /** Does what is due now and returns when the next timer is. */
      turn(now: number): number;
      /** The clock has gone back: remembered timers go by the clock as it was before. */
      onSetBack(): void;
    },
  ) {}

  soon(): void {
    if (!this.isWanted) setImmediate(this.runNow);
    this.isWanted = true;
  }

  /** Whether a turn is to come at once. */
  get isSoon(): boolean {
    return this.isWanted;
  }

  stop(): void {
    this.isStopped = true;
    clearTimeout(this.timer);
  }

  /** The timer may have come too early, by less than a step. */
  private readonly runOnTime = (): void => {
    const leftMs = this.nextAt - this.clock.now();
    // The thread stands still for the rest of the step: less than a millisecond, and only if the timer came early.
    if (leftMs > 0 && leftMs < TIMER_STEP_MS) thread.sleep(leftMs);
    this.run();
  };

  private readonly runNow = (): void => {
    this.isWanted = false;
    this.run();
  };

  private run(): void {
    if (this.isStopped) return;
    clearTimeout(this.timer);
    const now = this.clock.now();
    if (now < this.lastAt - CLOCK_STEP_MS) this.calls.onSetBack();
    this.lastAt = now;
    this.nextAt = this.calls.turn(now);
    const sleepMs = Math.min(Math.max(this.nextAt - this.clock.now(), 0), SLEEP_MS_MAX);
    this.timer = setTimeout(this.runOnTime, sleepMs);
  }
}
