import type { Clock } from "../../shared/platform/clock.ts";

/** A sleep is no longer than this, however far away the next timer is, so that a clock that was set is noticed. */
const SLEEP_MS_MAX = 1_000;
/** The clock is corrected by less than this all the time. A larger step means that somebody has set it. */
const CLOCK_STEP_MS = 1_000;

/**
 * Wakes the worker when its next timer is due, and at the end of a turn of the event loop in which something arrived.
 */
export class Pump {
  private isWanted = false;
  private isStopped = false;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private lastAt = Number.NEGATIVE_INFINITY;

  constructor(
    private readonly clock: Clock,
    private readonly calls: {
      /** Does what is due now and returns when the next timer is. */
      turn(now: number): number;
      /** The clock has gone back: what is remembered is timed by the clock of before. */
      onSetBack(): void;
    },
  ) {}

  soon(): void {
    if (!this.isWanted) setImmediate(this.run);
    this.isWanted = true;
  }

  stop(): void {
    this.isStopped = true;
    clearTimeout(this.timer);
  }

  private readonly run = (): void => {
    this.isWanted = false;
    if (this.isStopped) return;
    clearTimeout(this.timer);
    const now = this.clock.now();
    if (now < this.lastAt - CLOCK_STEP_MS) this.calls.onSetBack();
    this.lastAt = now;
    const nextAt = this.calls.turn(now);
    this.timer = setTimeout(this.run, Math.min(Math.max(nextAt - this.clock.now(), 0), SLEEP_MS_MAX));
  };
}
