import { CATCH_UP_MS } from "../../../shared/domain/schedule.ts";
import { type Clock, realNow } from "../../../shared/platform/clock.ts";
import type { Log } from "../../../shared/platform/log.ts";
import { LEAP_MS, noteClock } from "../../../shared/store/database/clock-watch.ts";
import type { Database } from "../../../shared/store/database/database.ts";

/** Deletions wait this long after a leap: longer than an operator who was called needs to set a clock right. */
export const DELETIONS_WAIT_MS = 3_600_000;

/**
 * Schedules wait this long after the clock has leapt ahead by more than CATCH_UP_MS. A schedule that fires by a clock that is
 * days ahead is silent until that time has come. A host that sets its clock right by itself does so within this time.
 */
const FIRINGS_WAIT_MS = 60_000;

/**
 * Keeps a database clock that is wrong for a while from deleting anything, since what is deleted is gone for good. The
 * clock is compared with this process's own, which runs evenly and is never set, and with what workers have noted
 * before. A duty that deletes asks here for the instant to judge by, and waits until the clock has run evenly for long
 * enough. Putting a test clock ahead is no leap, because the watch looks at real time.
 */
export class ClockWatch {
  private readonly db: Database;
  private readonly clock: Pick<Clock, "now" | "real">;
  private readonly log: Log;
  private readonly monotonic: () => number;
  /** By how much the database's clock is ahead of this process's. */
  private offsetMs: number | null = null;
  /** The instant since which the clock has run evenly, by real time; null while that is not known. */
  private steadySince: number | null = null;
  /** When this process last saw a leap; null if it has seen none. */
  private leaptAt: number | null = null;
  /** Whether that leap is noted for other processes. */
  private isNoted = true;
  /** Until when schedules wait, by this process's own clock. */
  private firingsWaitUntil = Number.NEGATIVE_INFINITY;
  /** The sum of the leaps since schedules began to wait. */
  private aheadMs = 0;

  constructor(options: {
    db: Database;
    clock: Pick<Clock, "now" | "real">;
    log: Log;
    monotonic?: () => number;
  }) {
    this.db = options.db;
    this.clock = options.clock;
    this.log = options.log;
    this.monotonic = options.monotonic ?? (() => performance.now());
  }

  /** Looks for a leap, and notes it for the other workers at once: the next one on duty may begin after it. */
  async watch(): Promise<void> {
    this.look();
    if (!this.isNoted) await this.note();
  }

  /** Calls `act`, which deletes, with the present instant if the clock has run evenly for long enough. */
  async delete(act: (now: number) => Promise<unknown>): Promise<void> {
    await this.note();
    const now = this.nowIfSteadyFor(DELETIONS_WAIT_MS);
    if (now !== null) await act(now);
  }

  /** Reads the workers' notes if it is not known how the clock ran: they may let this process trust it at once. */
  async noteOnce(): Promise<void> {
    if (this.steadySince === null) await this.note();
  }

  private async note(): Promise<void> {
    const now = this.look();
    const { leaptAt } = this;
    const noted = await noteClock(this.db, leaptAt);
    // If the clock has leapt again meanwhile, the note no longer holds.
    if (this.leaptAt !== leaptAt) return;
    if (this.isNoted && noted.steadySince >= noted.now) this.log.error({}, "clock.unseen");
    this.isNoted = true;
    // A process that was frozen has not measured yet how the clock was set meanwhile.
    const isMeasured = Math.abs(noted.now - now) <= LEAP_MS;
    this.steadySince = isMeasured ? noted.steadySince : null;
  }

  /** The present instant, or null if the clock has not run evenly for so long. */
  nowIfSteadyFor(ms: number): number | null {
    const now = this.look();
    return this.steadySince !== null && now - this.steadySince >= ms ? this.clock.now() : null;
  }

  /** Whether schedules may fire by the clock. They always may by a test clock, which is put ahead on purpose. */
  mayFire(): boolean {
    this.look();
    return this.clock.real !== undefined || this.monotonic() >= this.firingsWaitUntil;
  }

  /** How long it is until deletions go on. */
  waitMs(): number {
    const now = this.look();
    return this.steadySince === null ? 0 : Math.max(0, this.steadySince + DELETIONS_WAIT_MS - now);
  }

  /** The present instant by real time. Looks whether the clock has leapt. */
  private look(): number {
    const now = realNow(this.clock);
    const offsetMs = now - this.monotonic();
    const leapMs = this.offsetMs === null ? 0 : offsetMs - this.offsetMs;
    this.offsetMs = offsetMs;
    if (Math.abs(leapMs) > LEAP_MS) {
      this.log.error({ leapMs: Math.round(leapMs) }, "clock.leapt");
      this.steadySince = now;
      this.leaptAt = now;
      this.isNoted = false;
      this.aheadMs = leapMs + (this.monotonic() < this.firingsWaitUntil ? this.aheadMs : 0);
      const isFar = this.aheadMs > CATCH_UP_MS;
      this.firingsWaitUntil = isFar ? this.monotonic() + FIRINGS_WAIT_MS : Number.NEGATIVE_INFINITY;
    }
    return now;
  }
}
