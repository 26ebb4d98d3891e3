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
/** What one look may bring of each shard. A shard that has more is looked at again once these have fired. */
const SCHEDULES_PER_SHARD_MAX = 5_000;
/** Larger statements take no less time for each schedule, and the first one waits for the last. */
const FIRINGS_PER_STATEMENT_MAX = 100;
/** Each of these may cancel a thousand jobs. */
const BOUND_PER_STATEMENT_MAX = 5;
/** While one is being synced to disk the next is on its way. */
const STATEMENTS_IN_FLIGHT_MAX = 2;
/** So that firings which cancel many jobs leave a way to the others. */
const BOUND_IN_FLIGHT_MAX = 1;
/** Rows that appear later than SWEEP_LAG_MS behind the clock are found this often, as the shards find theirs. */
const LOOK_ANEW_EVERY_MS = 60_000;
/** How far back a look begins that knows of none before. What is older does not fire any more; `lookBack` finds it. */
const ANEW_BACK_MS = CATCH_UP_MS + 1_000;
/** Once so many timetables are remembered all are forgotten, which costs each of them one more reading. */
const TIMETABLES_MAX = 50_000;

export interface FirerOptions {
  /** The shard of the home region as this worker owns it now, if it does and may act on it. */
  heldOf(shard: number): HeldShard | undefined;
  /** A timer was set. `look` says that the next look of either kind is wanted at once. */
  onChange(wanted: { look: boolean }): void;
  /** Where the ids of jobs come from, if a simulation brings its own. */
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
 * Fires schedules at their instants. What it remembers may be lost or stale without harm: the store fires a schedule
 * only at the instant that was remembered, only for the shard's owner, and only once.
 */
export class Firer {
  private timers: Timers<Remembered>;
  private readonly remembered = new Map<string, Remembered>();
  private ready: Remembered[] = [];
  /** Those that lock more than schedules wait in a row of their own. */
  private readyBound: Remembered[] = [];
  private readonly inFlight = new Set<Promise<void>>();
  private boundInFlight = 0;
  private readonly timetables = new Map<string, Timetable>();
  private readonly ids: IdSource;
  private sinceAt = 0;
  /**
   * The next look begins here if not before: where the first of those that a statement has met since the last look stands
   * now. It is behind that look where the store refused it, or where the clock leapt ahead while the statement ran.
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

  /** When `advance` has something to do at the earliest. */
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

  /** A shard was acquired: the next look is for all that comes due. What is remembered fires in its time meanwhile. */
  lookAnew(): void {
    this.isAnew = true;
  }

  /** Forgets all schedules; the next look finds them again. The clock was set back. */
  forget(): void {
    this.lookAnew();
    this.timers = new Timers(this.cell.clock.now());
    this.remembered.clear();
  }

  /** Resolves when nothing is being fired any more. */
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
    // It is reset here and not at the end: a `forget` while this look is under way is for the next one.
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
   * because it begins where the index does: while somebody holds an old snapshot the entries of all that has fired
   * since stand in its way, and it may fail because of them.
   */
  async lookBack(shards: readonly number[]): Promise<void> {
    this.hasMoreBehind = await this.learnDue(shards, Number.NEGATIVE_INFINITY, -CATCH_UP_MS);
  }

  /** Returns whether some shard has more of them than were learned. */
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

  /** Returns whether any of them has moved on. Does not throw. */
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
        // What is gone has changed, or the database's clock has been set back and does not find it due yet.
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
      // Nobody knows whether they have fired: the next look finds those that have not. One that failed alone is found
      // no sooner than by the looks that come anyway.
      if (isOutage) this.isAnew = true;
      return isOutage ? "outage" : "unmoved";
    } finally {
      for (const schedule of batch) {
        const { scheduleId } = schedule.due;
        if (this.remembered.get(scheduleId) === schedule) this.remembered.delete(scheduleId);
      }
    }
  }

  /** One schedule has made the statement fail, and nobody knows which. Fired alone, only that one fails. */
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
      // The API accepted it once. The others must not wait until somebody has found out why it is not accepted any
      // more.
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
