import type { OwedAttempt } from "../../../shared/bus/messages.ts";
import type { Lane as LaneName, RefillLane } from "../../../shared/store/queue/sweep.ts";

/** An owed attempt that the shard holds: on the wheel, ready to be sent, or sent and not yet answered. */
export type Entry = OwedAttempt & {
  state: "timed" | "ready" | "sent";
  /** While timed: the wheel's handle, and where the shard keeps it for the wheel. */
  handle: number;
  place: number;
  /** When it was sent, by the shard's clock, and to which delivery node. */
  sentAt: number;
  sentTo: number;
  /** It is due, and timed because a delivery node has put it off. */
  isPutOff: boolean;
};

/** Sent to find out whether permits are free when nothing tells of it; twice as many each time that all were granted. */
const PROBE_CREDITS_MIN = 32;
const PROBE_CREDITS_MAX = 4_096;

/**
 * What a shard holds of one lane: the next few owed attempts, oldest first, and how many of them may be sent.
 *
 * Credits begin without bound. A refusal for want of a permit takes them all, and is noted in the database, which tells
 * of the next permits that come back: so many credits return, and one more, whose refusal is noted in turn. A hint may
 * overtake the refusal that it answers, hence the count of returned permits in both. Where all were granted no refusal
 * stands, nobody would tell, and the lane probes. Once nothing is ready credits are without bound again.
 */
export class Lane {
  readonly known = new Map<string, Entry>();
  /** Nothing that was due before this instant is owed in the lane, what is known apart. */
  sinceAt: number;
  /** Postgres may hold more that is due than is known here. */
  hasMore = false;
  timedCount = 0;
  /** How many of the timed ones were put off. What is owed behind them may lead elsewhere, and does not wait for them. */
  putOffCount = 0;
  sentCount = 0;
  blockedUntilAt = 0;
  /** What was due by then had to wait for its project's limit, quota or hold. */
  heldBackUntilAt = Number.NEGATIVE_INFINITY;
  credits = Number.POSITIVE_INFINITY;
  /** Up to which of the project's returned permits credits were given or refused. */
  private returnedPermits = 0;
  private hasRefusalNoted = false;
  private probeCredits = PROBE_CREDITS_MIN;
  /** Whether the lane stands in the dispatcher's row of turns. */
  inTurn = false;

  /** Something did not fit since Postgres was last asked. */
  private hasOverflowed = false;
  /** The last refill reached this far, and so much of what it reached over is still known. */
  private refilledThrough = Number.NEGATIVE_INFINITY;
  private refillLeft = 0;
  private ready: Entry[] = [];
  private readyHead = 0;
  /** Refused ones, the next to be sent last. */
  private refusedEntries: Entry[] = [];

  constructor(
    readonly name: LaneName,
    readonly shard: number,
    sinceAt: number,
    public room: number,
  ) {
    this.sinceAt = sinceAt;
  }

  get readyCount(): number {
    return this.ready.length - this.readyHead + this.refusedEntries.length;
  }

  /** When the ready one that is sent next has been due since; null if there is none. */
  get nextDueAt(): number | null {
    // Those before the head are sent or forgotten.
    const isReady = (entry: Entry) => entry.state === "ready" && this.known.get(entry.id) === entry;
    const next = this.refusedEntries.findLast(isReady) ?? this.ready.find(isReady);
    return next?.dueAt ?? null;
  }

  /** Whether another entry may be held; if not, it is Postgres that remembers it. */
  hasRoom(isDue: boolean): boolean {
    return isDue ? this.readyCount < this.room : this.timedCount < LANE_TIMED_MAX;
  }

  /** Whether so much is ready that what comes due is left to Postgres: a lane may stand still for as long as it is held. */
  get isFull(): boolean {
    return this.readyCount >= this.room + LANE_TIMED_MAX;
  }

  isSendable(now: number): boolean {
    return this.readyCount > 0 && this.credits > 0 && this.blockedUntilAt <= now;
  }

  /** Whether so little is left of the last refill that Postgres should be asked for more. */
  wantsRefill(now: number): boolean {
    return (
      this.hasMore &&
      this.refillLeft - this.putOffCount < this.room / 2 &&
      this.putOffCount < LANE_PUT_OFF_MAX &&
      this.blockedUntilAt <= now
    );
  }

  /** There was no room for something that is owed. */
  overflow(): void {
    this.hasMore = true;
    this.hasOverflowed = true;
  }

  /** What Postgres should be asked for. */
  ask(): RefillLane {
    this.hasOverflowed = false;
    return { ...this.name, sinceAt: this.sinceAt, room: this.room + this.putOffCount };
  }

  /** The answer has come and what it brought is known: entries due up to `throughAt`, so many as there was room for or fewer. */
  refilled(throughAt: number, isAll: boolean): void {
    this.hasMore = !isAll || this.hasOverflowed;
    this.refilledThrough = throughAt;
    this.refillLeft = 0;
    // Counted here and not by rows, of which some may have been stale: what is never forgotten would never be missed.
    for (const entry of this.known.values()) if (entry.dueAt <= throughAt) this.refillLeft++;
  }

  setReady(entry: Entry): void {
    entry.state = "ready";
    this.ready.push(entry);
  }

  /** Takes the next ready ones, as many as credits allow, and marks them as sent. */
  take(countMax: number, nodeId: number, now: number): Entry[] {
    const taken: Entry[] = [];
    while (taken.length < countMax && this.credits > 0) {
      const entry = this.nextReady();
      if (entry === undefined) break;
      // Forgotten or replaced by a later attempt while it stood in the row.
      if (this.known.get(entry.id) !== entry || entry.state !== "ready") continue;
      entry.state = "sent";
      entry.sentAt = now;
      entry.sentTo = nodeId;
      this.credits--;
      taken.push(entry);
    }
    if (this.readyCount === 0) this.credits = Number.POSITIVE_INFINITY;
    return taken;
  }

  refused(returned: number): void {
    const since = this.returnedPermits - returned;
    if (since > 0) {
      this.credits = Math.min(this.credits, since + 1);
    } else {
      this.credits = 0;
      this.hasRefusalNoted = true;
      this.probeCredits = PROBE_CREDITS_MIN;
      this.returnedPermits = returned;
    }
  }

  freed(returned: number): void {
    if (returned <= this.returnedPermits) return;
    this.hasRefusalNoted = false;
    this.credits += returned - this.returnedPermits + 1;
    this.returnedPermits = returned;
  }

  /** Everything sent was answered; `isOverdue` if a noted refusal has been answered by nothing for too long. */
  probe(isOverdue: boolean): void {
    if (this.credits > 0 || (this.hasRefusalNoted && !isOverdue)) return;
    this.credits = this.probeCredits;
    this.probeCredits = Math.min(2 * this.probeCredits, PROBE_CREDITS_MAX);
  }

  /** A refused entry goes back before the others. */
  giveBack(entry: Entry): void {
    entry.state = "ready";
    const at = this.refusedEntries.findLastIndex((other) => !isBefore(other, entry)) + 1;
    this.refusedEntries.splice(at, 0, entry);
  }

  forget(entry: Entry): void {
    if (this.known.get(entry.id) !== entry) return;
    this.known.delete(entry.id);
    if (entry.dueAt <= this.refilledThrough) this.refillLeft--;
  }

  private nextReady(): Entry | undefined {
    const refused = this.refusedEntries.pop();
    if (refused !== undefined) return refused;
    const entry = this.ready[this.readyHead];
    if (entry === undefined) return undefined;
    this.readyHead++;
    if (this.readyHead === this.ready.length) {
      this.ready = [];
      this.readyHead = 0;
    } else if (this.readyHead > 1_024 && this.readyHead > this.ready.length / 2) {
      this.ready = this.ready.slice(this.readyHead);
      this.readyHead = 0;
    }
    return entry;
  }
}

/** Of those due at one instant, the one whose id was made first. */
function isBefore(one: Entry, other: Entry): boolean {
  return one.dueAt === other.dueAt ? one.id < other.id : one.dueAt < other.dueAt;
}

/** How many entries of one lane the wheel holds at most. */
const LANE_TIMED_MAX = 2_000;
/** Beyond so many that are put off, what is behind them waits for them. */
const LANE_PUT_OFF_MAX = 1_000;
