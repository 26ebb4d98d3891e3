import { randomBytes } from "node:crypto";
import type { Bus } from "../../shared/bus/bus.ts";
import { sendCommands } from "../../shared/bus/hints.ts";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import { CATCH_UP_MS, decideFiring, readTimetable, type Timetable } from "../../shared/domain/schedule.ts";
import type { Clock } from "../../shared/platform/clock.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Count } from "../../shared/platform/metrics/families.ts";
import type { Metrics } from "../../shared/platform/metrics/metrics.ts";
import type { Span, Traces } from "../../shared/platform/traces/traces.ts";
import { type Database, StoreUnavailable } from "../../shared/store/database/database.ts";
import {
  type DueSchedule,
  type Firing,
  fireSchedules,
  listDueSchedules,
} from "../../shared/store/queue/firings.ts";
import type { HeldShard } from "../../shared/store/queue/shards.ts";
import { SWEEP_LAG_MS } from "../../shared/store/queue/sweep.ts";
import { Wheel } from "./shard/wheel.ts";

/** Further than two looks ahead, so that what is due is on the wheel before it is, even after a slow look. */
const AHEAD_MS = 3_000;
/** What one look may bring of each shard; a shard that has more is looked at again once this has fired. */
const SCHEDULES_PER_SHARD_MAX = 5_000;
/** Larger ones take no less time a firing, and the first of them waits for the last. */
const FIRINGS_PER_STATEMENT_MAX = 100;
/** While one is being synced to disk the next is on its way. */
const STATEMENTS_IN_FLIGHT_MAX = 2;
/** As the shards do: what appears later than SWEEP_LAG_MS behind the clock is found so often. */
const LOOK_ANEW_EVERY_MS = 60_000;
/** Where a look begins that knows of none before: what is older will not fire any more, and is for `lookBack`. */
const ANEW_BACK_MS = CATCH_UP_MS + 1_000;
/** Where it is reached the memory begins anew, which costs each timetable one more reading. */
const TIMETABLES_MAX = 50_000;

export interface FirerOptions {
  db: Database;
  bus: Bus;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  traces: Traces;
  /** The shard of the home region as this worker owns it now, if it does and may act on it. */
  heldOf(shard: number): HeldShard | undefined;
  /** A timer was set, or the next look of either kind is wanted at once. */
  onChange(wanted: { look: boolean }): void;
}

/** A firing, and its span where one is recorded. */
interface TracedFiring extends Firing {
  span: Span | null;
}

interface Timer {
  due: DueSchedule;
  place: number;
  handle: number;
}

/**
 * Fires schedules at their instants. What it remembers may be lost or stale without harm: the store fires a schedule
 * only at the instant that it was remembered with, only for the shard's owner, and only once.
 */
export class Firer {
  private wheel: Wheel;
  private readonly timers = new Map<string, Timer>();
  private timed: (Timer | undefined)[] = [];
  private freePlaces: number[] = [];
  private ready: Timer[] = [];
  private readonly inFlight = new Set<Promise<void>>();
  private readonly timetables = new Map<string, Timetable>();
  private readonly ids = createIdSource(randomBytes);
  private sinceAt = 0;
  /** Where the last look began is of no interest to the next one. */
  private isAnew = true;
  private anewAt = 0;
  private hasMore = false;
  private hasMoreBehind = false;
  private readonly timedFiring: ReturnType<Metrics["statement"]>;
  private readonly jobsCreated: Count;

  constructor(private readonly options: FirerOptions) {
    this.wheel = new Wheel(options.clock.now());
    this.timedFiring = options.metrics.statement("fire_schedules");
    this.jobsCreated = options.metrics.jobsCreated.of({ origin: "schedule" });
  }

  /** When `advance` has something to do at the earliest. */
  nextAt(): number {
    return this.wheel.nextAt();
  }

  /** Fires what has come due. */
  advance(now: number): void {
    this.wheel.advance(now, (place) => {
      const timer = this.timed[place];
      if (timer === undefined) return;
      this.release(timer);
      this.ready.push(timer);
    });
    this.fireReady();
  }

  /** Everything is looked for anew: a shard was acquired, or the clock was set back. */
  forget(): void {
    this.isAnew = true;
    this.wheel = new Wheel(this.options.clock.now());
    this.timers.clear();
    this.timed = [];
    this.freePlaces = [];
  }

  /** Resolves when nothing is being fired any more. */
  async drain(): Promise<void> {
    this.ready = [];
    await Promise.all(this.inFlight);
  }

  /** Learns what comes due in these shards of the home region, and what has come due of late. */
  async look(shards: readonly number[]): Promise<void> {
    const askedAt = this.options.clock.now();
    if (this.isAnew || askedAt >= this.anewAt) {
      this.anewAt = askedAt + LOOK_ANEW_EVERY_MS;
      this.sinceAt = askedAt - ANEW_BACK_MS;
    }
    // From here on: whoever asks for it while this look is under way gets another one.
    this.isAnew = false;
    try {
      this.hasMore = await this.learnDue(shards, this.sinceAt, AHEAD_MS);
    } catch (error) {
      this.isAnew = true;
      throw error;
    }
    // What is remembered does not need to be found again until it has fired.
    if (!this.hasMore) this.sinceAt = askedAt - SWEEP_LAG_MS;
  }

  /**
   * Learns what is too late to fire, so that it goes on. Apart from `look`, since it begins where the index does: while
   * somebody holds an old snapshot the entries of all that has fired since stand in its way, and it may fail of that.
   */
  async lookBack(shards: readonly number[]): Promise<void> {
    this.hasMoreBehind = await this.learnDue(shards, Number.NEGATIVE_INFINITY, -CATCH_UP_MS);
  }

  /** Answers whether some shard has more of them than were learned. */
  private async learnDue(shards: readonly number[], sinceAt: number, aheadMs: number): Promise<boolean> {
    if (shards.length === 0) return false;
    const limit = SCHEDULES_PER_SHARD_MAX;
    const rows = await listDueSchedules(this.options.db, shards, { sinceAt, aheadMs, limit });
    for (const row of rows) this.learn(row);
    this.options.onChange({ look: false });
    return [...Map.groupBy(rows, ({ shard }) => shard).values()].some(({ length }) => length === limit);
  }

  private learn(due: DueSchedule): void {
    const known = this.timers.get(due.scheduleId);
    if (known !== undefined && isSameTurn(known.due, due)) return;
    if (known !== undefined) this.drop(known);
    const place = this.freePlaces.pop() ?? this.timed.length;
    const timer = { due, place, handle: this.wheel.insert(due.nextRunAt, place) };
    this.timed[place] = timer;
    this.timers.set(due.scheduleId, timer);
  }

  private release(timer: Timer): void {
    this.timed[timer.place] = undefined;
    this.freePlaces.push(timer.place);
  }

  private drop(timer: Timer): void {
    if (this.timed[timer.place] === timer) {
      this.wheel.cancel(timer.handle);
      this.release(timer);
    }
    this.timers.delete(timer.due.scheduleId);
  }

  private fireReady(): void {
    while (this.ready.length > 0 && this.inFlight.size < STATEMENTS_IN_FLIGHT_MAX) {
      const batch = this.ready.splice(0, FIRINGS_PER_STATEMENT_MAX);
      const firing = this.fire(batch).then((outcome) => {
        this.inFlight.delete(firing);
        this.fireReady();
        const isMore = this.hasMore || this.hasMoreBehind;
        // Where nothing has moved the same would be found again, and again at once.
        if (outcome === "moved" && isMore && this.ready.length === 0) this.options.onChange({ look: true });
      });
      this.inFlight.add(firing);
    }
  }

  /** Whether any of them has moved on. Does not throw. */
  private async fire(batch: readonly Timer[]): Promise<"moved" | "unmoved" | "outage"> {
    const { db, bus, clock, log } = this.options;
    try {
      const firings = batch.flatMap((timer) => this.decide(timer) ?? []);
      if (firings.length === 0) return "unmoved";
      const fired = await this.timedFiring(firings.length, () => fireSchedules(db, firings));
      const now = clock.now();
      const owed = firings.flatMap(({ span }, index) => {
        const outcome = fired[index];
        if (outcome?.kind !== "fired") return [];
        span?.end(now, { attributes: { "jobwheel.region": outcome.region }, isError: false });
        return outcome.owed;
      });
      this.jobsCreated.inc(owed.length);
      sendCommands(bus, owed, now);
      return fired.some(({ kind }) => kind !== "gone") ? "moved" : "unmoved";
    } catch (error) {
      const isOutage = error instanceof StoreUnavailable;
      if (!isOutage && batch.length > 1) return await this.fireOneByOne(batch);
      log.warn({ err: error, count: batch.length }, "schedules.not_fired");
      // Whether they have fired is not known: the next look finds those that have not. One that failed alone is found
      // no sooner than by the looks that come anyway.
      if (isOutage) this.isAnew = true;
      return isOutage ? "outage" : "unmoved";
    } finally {
      for (const timer of batch) {
        if (this.timers.get(timer.due.scheduleId) === timer) this.timers.delete(timer.due.scheduleId);
      }
    }
  }

  /** The statement failed for one schedule's sake and nobody knows whose: alone, only that one fails. */
  private async fireOneByOne(batch: readonly Timer[]): Promise<"moved" | "unmoved" | "outage"> {
    let outcome: "moved" | "unmoved" = "unmoved";
    for (const timer of batch) {
      const alone = await this.fire([timer]);
      // Every further statement would have to run into the same timeout.
      if (alone === "outage") return alone;
      if (alone === "moved") outcome = alone;
    }
    return outcome;
  }

  private decide({ due }: Timer): TracedFiring | null {
    const { clock, log } = this.options;
    const held = this.options.heldOf(due.shard);
    if (held === undefined) return null;
    const now = clock.now();
    try {
      const { projectNo, environment, scheduleId, cron, timezone, nextRunAt } = due;
      const { firedFor, thenAt } = decideFiring(this.timetableOf(due), nextRunAt, now);
      const jobId = this.ids.next(JOB_PREFIX, now);
      const span = firedFor === null ? null : this.beginSpan(due, firedFor, jobId, now);
      const trace = span?.context ?? null;
      const turn = { projectNo, environment, scheduleId, held, cron, timezone, nextRunAt };
      return { ...turn, firedFor, thenAt, jobId, trace, span };
    } catch (error) {
      // It was accepted once: the others must not wait for whoever finds out why it is not any more.
      log.error({ err: error, scheduleId: due.scheduleId }, "schedule.unreadable");
      return null;
    }
  }

  /** From the instant that fires; it is ended, and thereby told, only if a job was made. */
  private beginSpan(due: DueSchedule, firedFor: number, jobId: string, now: number): Span | null {
    const { projectNo, environment, scheduleId } = due;
    return this.options.traces.begin(null, projectNo, () => ({
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

const isSameTurn = (one: DueSchedule, other: DueSchedule) =>
  one.nextRunAt === other.nextRunAt && one.cron === other.cron && one.timezone === other.timezone;
