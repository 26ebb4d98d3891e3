import type { WaitReason } from "../../../shared/domain/wait.ts";
import {
  LANE_ROOM_MIN,
  type Lane,
  laneRoom,
  type RefillLane,
  SWEEP_LAG_MS,
  type SweptRow,
} from "../../../shared/store/queue/sweep.ts";
import { Credits } from "./credits.ts";
import { CLOCKS_DIFFER_MS, type Entry, isInTheWay, owedAt } from "./entry.ts";
import { ReadyRow } from "./ready-row.ts";
import { SentCounts } from "./sent-counts.ts";
import type { Timers } from "./timers.ts";

/** A lane is refilled once so few entries are left of its last refill. The next one reads them again, so more would cost more. */
const REFILL_LEFT_MAX = 500;
/** How many entries of one lane the wheel holds at most. */
const TIMED_MAX = 2_000;
/**
 * Once so many entries are put off and still due in Postgres, the entries behind them wait for them. Each refill reads them again. A
 * delivery node keeps some attempts of each flow key back.
 */
const PUT_OFF_MAX = 2_000;
/** A put-off entry is owed sooner only if it is due more than this before its timer: answers take some time. */
const HASTENED_MS_MIN = 1_000;
/** No look takes longer. An answer that seems to be older was given by a clock that was set back. */
const LOOK_MS_MAX = 10_000;
/** How far ahead a look into Postgres reads: more than the time between two sweeps, so that what it finds is on the wheel before it is due. */
export const SWEEP_AHEAD_MS = 1_500;

/** A shard's memory of one lane: the next few owed attempts, oldest first, and how many of them may be sent. */
export class RememberedLane {
  private readonly entries = new Map<string, Entry>();
  /** Every attempt of the lane that was due before this instant and is still owed is among the entries. */
  private sinceAt: number;
  /** How many ready entries the lane may hold; a refill asks for as many. */
  private room = LANE_ROOM_MIN;
  /** Postgres may hold more that is due than the lane remembers. */
  private hasMore = false;
  /** An entry did not fit since Postgres was last asked. */
  private hasOverflowed = false;
  /** The last refill brought everything that is due up to this instant. */
  private refilledThroughAt = Number.NEGATIVE_INFINITY;
  /** How many of the entries that Postgres has due up to `refilledThroughAt` are left. */
  private refillLeft = 0;
  /** If Postgres has no more, all that it had due up to this instant at the last look is among the entries, except what was lost since. */
  private knownThroughAt = Number.NEGATIVE_INFINITY;
  /** The earliest due time of what was lost since Postgres was last asked. */
  private lostAt = Number.POSITIVE_INFINITY;
  /** Postgres' clock at the latest look that was answered. */
  private lookedAt = Number.NEGATIVE_INFINITY;
  /** How many rows the last look at everything, and the looks since, have brought. */
  private readCount = 0;

  private timedCount = 0;
  /** How many timed entries were put off and are still due in Postgres, where refills meet them first. Entries behind them do not wait. */
  private putOffCount = 0;
  private readonly sent = new SentCounts();
  private readonly ready = new ReadyRow();

  private blockedUntilAt = 0;
  /** Entries due by this instant had to wait for their project's limit, quota or hold: `heldBackFor` is the last. */
  private heldBackUntilAt = Number.NEGATIVE_INFINITY;
  private heldBackFor: WaitReason = "concurrency";
  private readonly credits = new Credits();
  /** Whether the lane stands in the dispatcher's row of lanes that have something to send. The dispatcher sets it. */
  standsInRow = false;

  constructor(
    readonly name: Lane,
    private readonly timers: Timers<Entry>,
    sinceAt: number,
  ) {
    this.sinceAt = sinceAt;
  }

  get size(): number {
    return this.entries.size;
  }

  get readyCount(): number {
    return this.ready.length;
  }

  /** When the ready entry that is sent next came due; null if nothing is ready. */
  get nextDueAt(): number | null {
    const next = this.ready.find((entry) => entry.state === "ready" && this.entries.get(entry.id) === entry);
    return next?.dueAt ?? null;
  }

  isSendable(now: number): boolean {
    return this.readyCount > 0 && this.credits.areLeft && this.blockedUntilAt <= now;
  }

  /** How many entries wait for the answers of the delivery node. */
  sentTo(nodeId: number): number {
    return this.sent.to(nodeId);
  }

  /** How many of the entries Postgres has due up to this instant. */
  countOwed(throughAt: number): number {
    let count = 0;
    for (const entry of this.entries.values()) if (owedAt(entry) <= throughAt) count++;
    return count;
  }

  find(id: string): Entry | undefined {
    return this.entries.get(id);
  }

  /** Remembers an entry, with a timer if it is not due yet. A late message may tell of one that is older than others. */
  add(entry: Entry, now: number): void {
    this.entries.set(entry.id, entry);
    if (entry.dueAt > now) this.setTimer(entry, entry.dueAt, null);
    else this.ready.add(entry);
  }

  /** Whether another entry may be held. Postgres remembers those that do not fit. */
  hasRoom(isDue: boolean): boolean {
    return isDue ? this.readyCount < this.room : this.timedCount < TIMED_MAX;
  }

  /** There was no room for an attempt that is due. */
  overflow(): void {
    this.hasMore = true;
    this.hasOverflowed = true;
  }

  /** A gate has put an entry off until `at`, in Postgres as well. */
  move(entry: Entry, at: number, reason: WaitReason): void {
    if (owedAt(entry) <= this.refilledThroughAt) this.refillLeft--;
    entry.movedTo = at;
    if (owedAt(entry) <= this.refilledThroughAt) this.refillLeft++;
    this.setTimer(entry, at, reason);
  }

  /** Keeps an entry until `at`: it is not due yet, or a delivery node has put it off, for `reason`. */
  setTimer(entry: Entry, at: number, reason: WaitReason | null): void {
    entry.state = "timed";
    entry.timedUntil = at;
    this.timers.arm(entry, at);
    this.timedCount++;
    entry.putOffFor = at > entry.dueAt + CLOCKS_DIFFER_MS ? reason : null;
    if (isInTheWay(entry)) this.putOffCount++;
  }

  /** Whether an entry that was put off is owed sooner now, since its flow key or its host lets it start at `dueAt`. */
  isHastened(entry: Entry, dueAt: number): boolean {
    return (
      entry.state === "timed" &&
      entry.putOffFor !== null &&
      dueAt > entry.dueAt &&
      dueAt < entry.timedUntil - HASTENED_MS_MIN
    );
  }

  /** The timer of an entry has ended. If the lane is full, perhaps because it is held, Postgres remembers the entry. */
  becomeDue(entry: Entry): void {
    this.endTimed(entry);
    entry.state = "ready";
    if (this.readyCount < this.room + TIMED_MAX) this.ready.push(entry);
    else {
      this.forget(entry);
      this.overflow();
      this.lookFrom(entry.dueAt);
    }
  }

  /** Takes the timers of all entries away: the lane is not used any more. */
  cancelTimers(): void {
    for (const entry of this.entries.values()) if (entry.state === "timed") this.timers.cancel(entry);
  }

  forget(entry: Entry): void {
    if (this.entries.get(entry.id) !== entry) return;
    if (entry.state === "timed") {
      this.timers.cancel(entry);
      this.endTimed(entry);
    }
    this.entries.delete(entry.id);
    if (owedAt(entry) <= this.refilledThroughAt) this.refillLeft--;
  }

  /** Takes the next ready entries, as many as credits allow, and marks them as sent. */
  take(countMax: number, nodeId: number, now: number): Entry[] {
    const taken: Entry[] = [];
    while (taken.length < countMax && this.credits.areLeft) {
      const entry = this.ready.takeNext();
      if (entry === undefined) break;
      // The entry may have been forgotten, or replaced by a later attempt, while it stood in the row.
      if (this.entries.get(entry.id) !== entry || entry.state !== "ready") continue;
      entry.state = "sent";
      entry.sentAt = now;
      entry.sentTo = nodeId;
      this.credits.spend();
      taken.push(entry);
    }
    this.sent.add(nodeId, taken.length);
    if (this.readyCount === 0) this.credits.unbind();
    return taken;
  }

  /** The answer to one sent entry has come, or is not waited for any more. */
  endWait({ sentTo }: Entry): void {
    this.sent.add(sentTo, -1);
  }

  /** A sent entry was refused: it is sent before the others. */
  giveBack(entry: Entry): void {
    entry.state = "ready";
    this.ready.giveBack(entry);
  }

  /** A claim was refused for want of a permit. `returned` is the number of permits that had ever come back by then. */
  refusePermit(returned: number, now: number): void {
    this.credits.refuse(returned);
    this.holdBack(now, "concurrency");
  }

  /** Permits of the project have come back, `returned` of them ever. */
  returnPermits(returned: number, now: number): void {
    if (!this.credits.areLeft) this.holdBack(now, "concurrency");
    this.credits.give(returned);
  }

  /** Finds out whether permits are free, if nothing else will tell. `isOverdue`: a hint may have been lost. */
  probe(isOverdue: boolean): void {
    this.credits.probe({ isOverdue, isAwaited: this.sent.total > 0 });
  }

  /** Sends nothing until `untilAt`. `reason` is null if the block is not for the project's own quota or hold. */
  block(untilAt: number, reason: WaitReason | null): void {
    this.blockedUntilAt = Math.max(this.blockedUntilAt, untilAt);
    if (reason !== null) this.holdBack(this.blockedUntilAt, reason);
  }

  /** Why the entry had to wait: its project's limit, quota or hold, or a put-off. Null if it had not to wait. */
  waitOf(entry: Entry): WaitReason | null {
    return entry.dueAt <= this.heldBackUntilAt ? this.heldBackFor : entry.putOffFor;
  }

  /** Postgres may owe something that is due from this instant on and that the lane does not remember. */
  lookFrom(at: number): void {
    this.sinceAt = Math.min(this.sinceAt, at);
    this.lostAt = Math.min(this.lostAt, at);
  }

  /** Whether so little is left of the last refill that Postgres should be asked for more. */
  wantsRefill(now: number): boolean {
    if (!this.hasMore || this.putOffCount >= PUT_OFF_MAX || this.blockedUntilAt > now) return false;
    return this.refillLeft - this.putOffCount < Math.min(this.room / 2, REFILL_LEFT_MAX);
  }

  /** Whether `ask` would answer with a question at this instant. */
  isWorthAsking(now: number): boolean {
    return this.blockedUntilAt <= now && (!this.hasMore || this.wantsRefill(now));
  }

  /** About how many entries a look at everything would read again. */
  get readAgainCount(): number {
    return Math.min(this.readCount, this.entries.size);
  }

  /** A question was not answered: what was lost before it is still to be looked for. */
  failRefill(): void {
    this.knownThroughAt = Number.NEGATIVE_INFINITY;
  }

  /**
   * The question that should be put to Postgres for the lane; null if it is not worth asking now. `mayBePart`: if all is known that was
   * due up to some instant, only what is due after it is asked for, and the known entries are not read again.
   */
  ask(now: number, mayBePart = false): RefillLane | null {
    if (!this.isWorthAsking(now)) return null;
    const isAllKnown =
      !this.hasMore && this.knownThroughAt > this.sinceAt && this.lostAt > this.knownThroughAt;
    const isPart = mayBePart && isAllKnown && this.readyCount < this.room;
    this.hasOverflowed = false;
    this.lostAt = Number.POSITIVE_INFINITY;
    const sinceAt = isPart ? this.knownThroughAt : this.sinceAt;
    return { ...this.name, sinceAt, room: this.room + this.putOffCount };
  }

  /** Postgres has answered with these rows. `keep` adds them, and the lane wants no refill until then. */
  refill(asked: RefillLane, rows: readonly SweptRow[], sweptAt: number, keep: () => void): void {
    const [first] = rows;
    if (first !== undefined) this.room = laneRoom(first.concurrency);
    const hadMore = this.hasMore;
    this.hasMore = false;
    keep();
    // Two looks may be under way at once. What the earlier one tells of the rest is out of date once the later one was answered.
    const isOutdated = sweptAt < this.lookedAt && sweptAt > this.lookedAt - LOOK_MS_MAX;
    this.hasMore = rows.length >= asked.room || this.hasOverflowed || (isOutdated && hadMore);
    if (!isOutdated) this.refilledThroughAt = rows.at(-1)?.dueAt ?? Number.NEGATIVE_INFINITY;
    // Entries are counted, and not rows: a stale row adds no entry that could be forgotten later.
    this.refillLeft = this.countOwed(this.refilledThroughAt);
    if (isOutdated) return;
    this.lookedAt = sweptAt;
    const isPart = asked.sinceAt > this.sinceAt && asked.sinceAt === this.knownThroughAt;
    this.readCount = rows.length + (isPart ? this.readCount : 0);
    // An entry may have been lost while the refill was under way; then the next look begins where that one was due.
    if (!isPart && this.sinceAt < asked.sinceAt) return;
    this.knownThroughAt = sweptAt + SWEEP_AHEAD_MS;
    if (isPart) return;
    const throughAt = Math.min(rows[0]?.dueAt ?? Number.POSITIVE_INFINITY, sweptAt - SWEEP_LAG_MS);
    this.sinceAt = Math.max(this.sinceAt, throughAt);
  }

  /** Whether a look from `sinceAt` on, without more room than other lanes have, finds all that the lane may lack. */
  isKnownFrom(sinceAt: number): boolean {
    return !this.hasMore && this.sinceAt >= sinceAt && this.putOffCount === 0;
  }

  /** Whether the shard knows as much without this lane, if it looks from `sinceAt` on into forgotten lanes. */
  isForgettable(sinceAt: number, now: number): boolean {
    return this.entries.size === 0 && this.isKnownFrom(sinceAt) && this.blockedUntilAt <= now;
  }

  private holdBack(untilAt: number, reason: WaitReason): void {
    this.heldBackUntilAt = Math.max(this.heldBackUntilAt, untilAt);
    this.heldBackFor = reason;
  }

  private endTimed(entry: Entry): void {
    this.timedCount--;
    if (isInTheWay(entry)) this.putOffCount--;
  }
}
