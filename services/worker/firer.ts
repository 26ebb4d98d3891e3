import { randomBytes } from "node:crypto";
import { sendCommands } from "../../shared/bus/hints.ts";
import { createIdSource, type IdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { CATCH_UP_MS, decideFiring, readTimetable, type Timetable } from "../../shared/domain/schedule.ts";
import type { Count } from "../../shared/platform/metrics/families.ts";
import type { Span } from "../../shared/platform/traces/traces.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { StoreUnavailable } from "../../shared/store/database/database.ts";
import {
  type DueSchedule,
  type Firing,
  fireBoundSchedules,
  fireSchedules,
  listDueSchedules,
} from "../../shared/store/queue/firings.ts";
import type { HeldShard } from "../../shared/store/queue/shards.ts";
import { SWEEP_LAG_MS } from "../../shared/store/queue/sweep.ts";
import { type Timed, Timers } from "./shard/timers.ts";

/**
 * More than the time between two looks, so that a schedule is on the wheel before it is due, even after a slow look.
 */
const AHEAD_MS = 3_000;
/** The most schedules that a look brings of a shard. If it has more, it is looked at again once these have fired. */
const SCHEDULES_PER_SHARD_MAX = 5_000;
/** Larger statements take no less time for each schedule, and their first schedule waits for their last. */
const FIRINGS_PER_STATEMENT_MAX = 100;
/** Each firing of a bound schedule may cancel a thousand jobs. */
const BOUND_PER_STATEMENT_MAX = 5;
/** While one statement is being synced to disk, the next is on its way. */
const STATEMENTS_IN_FLIGHT_MAX = 2;
/** Below STATEMENTS_IN_FLIGHT_MAX, so that firings which cancel many jobs leave a way to the others. */
const BOUND_IN_FLIGHT_MAX = 1;
/** Rows that appear later than SWEEP_LAG_MS behind the clock are found at this interval, as in the shards. */
const LOOK_ANEW_EVERY_MS = 60_000;
/** How far back a look begins that follows on no other. Older schedules no longer fire; `lookBack` finds them. */
const ANEW_BACK_MS = CATCH_UP_MS + 1_000;
/** Once this many timetables are remembered, all are forgotten, and each of them is read once more. */
const TIMETABLES_MAX = 50_000;

export interface FirerOptions {
  /** The shard of the home region as this worker owns it now, if it does and may act on it. */
  heldOf(shard: number): HeldShard | undefined;
  /** A timer was set. `look` says that the next look of either kind is wanted at once. */
  onChange(wanted: { look: boolean }): void;
  /** The source of the ids of jobs, if a simulation brings its own. */
  ids?: IdSource;
}

/** A firing, and its span where one is recorded. */
interface TracedFiring extends Firing {
  span: Span | null;
}

/** A schedule and when it fires next. */
interface Remembered extends Timed {
  due: DueSchedule;
}

/**
 * Fires schedules at their instants. Its memory may be lost or stale without harm: the store fires a schedule only at
 * the instant that was remembered, only for the shard's owner, and only once.
 */
export class Firer {
  private timers: Timers<Remembered>;
  private readonly remembered = new Map<string, Remembered>();
  private ready: Remembered[] = [];
  /** Schedules whose firing locks more than the schedule wait in a row of their own. */
  private readyBound: Remembered[] = [];
  private readonly inFlight = new Set<Promise<void>>();
  private boundInFlight = 0;
  private readonly timetables = new Map<string, Timetable>();
  private readonly ids: IdSource;
  private sinceAt = 0;
  /**
   * The next look begins here or before: the earliest next instant of the schedules that statements have met since the
   * last look. It lies behind that look if the store refused a firing, or if the clock leapt ahead while a statement ran.
   */
  private metAt = Number.POSITIVE_INFINITY;
  /** The next look begins as if there had been none before. */
  private isAnew = true;
  private anewAt = 0;
  private hasMore = false;
  private hasMoreBehind = false;
  private readonly timedFiring: ReturnType<Cell["metrics"]["statement"]>;
  private readonly jobsCreated: Count;

  constructor(
    private readonly cell: Cell,
    private readonly options: FirerOptions,
  ) {
    this.timers = new Timers(cell.clock.now());
    this.ids = options.ids ?? createIdSource(randomBytes);
    this.timedFiring = cell.metrics.statement("fire_schedules");
    this.jobsCreated = cell.metrics.jobsCreated.of({ origin: "schedule" });
  }

  /** The earliest instant at which `advance` has something to do. */
  nextAt(): number {
    return this.timers.nextAt();
  }

  /** Whether it has nothing to fire now, as far as it remembers. */
  isIdle(now: number): boolean {
    const areReady = this.ready.length + this.readyBound.length > 0;
    return !areReady && this.inFlight.size === 0 && this.timers.nextAt() > now;
  }

  /** Fires what has come due. */
  advance(now: number): void {
    this.timers.advance(now, (schedule) =>
      (schedule.due.isBound ? this.readyBound : this.ready).push(schedule),
    );
    this.fireReady();
  }

  /** A shard was acquired: the next look is for all that comes due. Remembered schedules fire meanwhile. */
  lookAnew(): void {
    this.isAnew = true;
  }

  /** Forgets all schedules; the next look finds them again. The clock was set back. */
  forget(): void {
    this.lookAnew();
    this.timers = new Timers(this.cell.clock.now());
    this.remembered.clear();
    this.ready = [];
    this.readyBound = [];
  }

  /** Begins no more firings, and resolves when the last one has ended. */
  async drain(): Promise<void> {
    this.ready = [];
    this.readyBound = [];
    await Promise.all(this.inFlight);
  }

  /** Learns what comes due in these shards of the home region, and what has come due of late. */
  async look(shards: readonly number[]): Promise<void> {
    const askedAt = this.cell.clock.now();
    if (this.isAnew || askedAt >= this.anewAt) {
      this.anewAt = askedAt + LOOK_ANEW_EVERY_MS;
      this.sinceAt = askedAt - ANEW_BACK_MS;
    }
    // The flag is reset here and not at the end: a `forget` while this look is under way is for the next look.
    this.isAnew = false;
    const sinceAt = Math.min(this.sinceAt, this.metAt);
    this.metAt = Number.POSITIVE_INFINITY;
    try {
      this.hasMore = await this.learnDue(shards, sinceAt, AHEAD_MS);
    } catch (error) {
      this.isAnew = true;
      throw error;
    }
    // A schedule that is remembered need not be found again until it has fired.
    if (!this.hasMore) this.sinceAt = askedAt - SWEEP_LAG_MS;
  }

  /**
   * Learns which schedules are too late to fire, so that they go on to their next instants. This is not part of `look`
   * because it reads the index from its beginning: while a transaction holds an old snapshot, the entries of all later
   * firings stay in the index, and this look may fail because of them.
   */
  async lookBack(shards: readonly number[]): Promise<void> {
    this.hasMoreBehind = await this.learnDue(shards, Number.NEGATIVE_INFINITY, -CATCH_UP_MS);
  }

  /** Returns whether some shard may have more due schedules than were learned. */
  private async learnDue(shards: readonly number[], sinceAt: number, aheadMs: number): Promise<boolean> {
    if (shards.length === 0) return false;
    const limit = SCHEDULES_PER_SHARD_MAX;
    const rows = await listDueSchedules(this.cell.db, shards, { sinceAt, aheadMs, limit });
    for (const row of rows) this.learn(row);
    this.options.onChange({ look: false });
    return [...Map.groupBy(rows, ({ shard }) => shard).values()].some(({ length }) => length === limit);
  }

  private learn(due: DueSchedule): void {
    const known = this.remembered.get(due.scheduleId);
    if (known !== undefined) {
      if (isSameFiring(known.due, due)) return;
      this.timers.cancel(known);
    }
    const schedule = { due, place: 0, handle: 0 };
    this.timers.arm(schedule, due.nextRunAt);
    this.remembered.set(due.scheduleId, schedule);
  }

  private fireReady(): void {
    while (this.inFlight.size < STATEMENTS_IN_FLIGHT_MAX) {
      const mayFireBound = this.boundInFlight < BOUND_IN_FLIGHT_MAX;
      const bound = mayFireBound ? this.readyBound.splice(0, BOUND_PER_STATEMENT_MAX) : [];
      const isBound = bound.length > 0;
      const batch = isBound ? bound : this.ready.splice(0, FIRINGS_PER_STATEMENT_MAX);
      if (batch.length === 0) return;
      if (isBound) this.boundInFlight++;
      const statement = this.fire(batch, isBound).then((outcome) => {
        this.inFlight.delete(statement);
        if (isBound) this.boundInFlight--;
        this.fireReady();
        const isMore = this.hasMore || this.hasMoreBehind;
        // If nothing has moved, a look would find the same schedules again, without end.
        const isEmpty = this.ready.length === 0 && this.readyBound.length === 0;
        if (outcome === "moved" && isMore && isEmpty) this.options.onChange({ look: true });
      });
      this.inFlight.add(statement);
    }
  }

  /** Returns whether any schedule of the batch has moved on. Does not throw. */
  private async fire(
    batch: readonly Remembered[],
    isBound: boolean,
  ): Promise<"moved" | "unmoved" | "outage"> {
    const { db, bus, clock, log } = this.cell;
    try {
      const firings = batch.flatMap(({ due }) => this.decide(due) ?? []);
      if (firings.length === 0) return "unmoved";
      const run = isBound ? fireBoundSchedules : fireSchedules;
      const fired = await this.timedFiring(firings.length, () => run(db, firings));
      const now = clock.now();
      const owed = firings.flatMap(({ span, nextRunAt, thenAt }, index) => {
        const outcome = fired[index];
        // A schedule that is gone has changed, or the database's clock was set back and does not find it due yet.
        const standsAt = outcome?.kind === "gone" ? nextRunAt : thenAt;
        this.metAt = Math.min(this.metAt, standsAt ?? Number.POSITIVE_INFINITY);
        if (outcome?.kind !== "fired") return [];
        span?.end(now, { attributes: { "jobwheel.region": outcome.region }, isError: false });
        return outcome.owed;
      });
      this.jobsCreated.inc(owed.length);
      sendCommands(bus, owed, now);
      return fired.some(({ kind }) => kind !== "gone") ? "moved" : "unmoved";
    } catch (error) {
      const isOutage = error instanceof StoreUnavailable;
      if (!isOutage && batch.length > 1) return await this.fireOneByOne(batch, isBound);
      log.warn({ err: error, count: batch.length }, "schedules.not_fired");
      // The schedules may have fired or not: the next look finds those that have not. A schedule that failed alone is
      // left to the regular looks.
      if (isOutage) this.isAnew = true;
      return isOutage ? "outage" : "unmoved";
    } finally {
      for (const schedule of batch) {
        const { scheduleId } = schedule.due;
        if (this.remembered.get(scheduleId) === schedule) this.remembered.delete(scheduleId);
      }
    }
  }

  /** One schedule has made the statement fail, and it is unknown which. If each is fired alone, only that one fails. */
  private async fireOneByOne(
    batch: readonly Remembered[],
    isBound: boolean,
  ): Promise<"moved" | "unmoved" | "outage"> {
    let outcome: "moved" | "unmoved" = "unmoved";
    for (const schedule of batch) {
      const alone = await this.fire([schedule], isBound);
      // Every further statement would run into the same timeout.
      if (alone === "outage") return alone;
      if (alone === "moved") outcome = alone;
    }
    return outcome;
  }

  private decide(due: DueSchedule): TracedFiring | null {
    const { clock, log } = this.cell;
    const held = this.options.heldOf(due.shard);
    if (held === undefined) {
      // The shard may be acted upon again in a moment. A look that went on from here would not find this schedule.
      this.isAnew = true;
      return null;
    }
    const now = clock.now();
    try {
      const { projectNo, environment, scheduleId, cron, timezone, nextRunAt } = due;
      const { firedFor, thenAt, missed } = decideFiring(this.timetableOf(due), nextRunAt, now);
      const jobId = this.ids.next(JOB_PREFIX, now);
      const span = firedFor === null ? null : this.beginSpan(due, firedFor, jobId, now);
      const trace = span?.context ?? null;
      const asked = { projectNo, environment, scheduleId, held, cron, timezone, nextRunAt };
      return { ...asked, firedFor, thenAt, missed, jobId, trace, span };
    } catch (error) {
      // The API accepted this timetable once. The other schedules must not wait until it is clear why it can no longer
      // be read.
      log.error({ err: error, scheduleId: due.scheduleId }, "schedule.unreadable");
      return null;
    }
  }

  /** The span begins at the instant that fires. It is ended, and thereby sent, only if a job was made. */
  private beginSpan(due: DueSchedule, firedFor: number, jobId: string, now: number): Span | null {
    const { projectNo, environment, scheduleId } = due;
    return this.cell.traces.begin(null, projectNo, () => ({
      name: "fire schedule",
      kind: "internal",
      at: firedFor,
      id: jobId,
      attributes: {
        "jobwheel.project_no": projectNo,
        "jobwheel.environment": environment,
        "jobwheel.schedule_id": scheduleId,
        "jobwheel.job_id": jobId,
        "jobwheel.lateness_ms": Math.round(now - firedFor),
      },
    }));
  }

  private timetableOf({ cron, timezone }: DueSchedule): Timetable {
    const name = `${cron}\n${timezone}`;
    const known = this.timetables.get(name);
    if (known !== undefined) return known;
    if (this.timetables.size >= TIMETABLES_MAX) this.timetables.clear();
    const timetable = readTimetable(cron, timezone);
    this.timetables.set(name, timetable);
    return timetable;
  }
}

const isSameFiring = (one: DueSchedule, other: DueSchedule) =>
  one.nextRunAt === other.nextRunAt &&
  one.cron === other.cron &&
  one.timezone === other.timezone &&
  one.isBound === other.isBound;
