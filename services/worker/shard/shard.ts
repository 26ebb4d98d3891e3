import {
  type AnsweredItem,
  type FreedPermits,
  type OwedAttempt,
  SHARE_PAUSE_MS,
} from "../../../shared/bus/messages.ts";
import { FLOW_CLASSES, type FlowClass } from "../../../shared/domain/flow-class.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { HORIZON_MS } from "../../../shared/domain/shard.ts";
import type { HeldShard } from "../../../shared/store/queue/shards.ts";
import {
  LANE_ROOM_MIN,
  laneRoom,
  type RefillLane,
  SWEEP_LAG_MS,
  type SweptRow,
} from "../../../shared/store/queue/sweep.ts";
import { type Entry, Lane } from "./lane.ts";
import { Wheel } from "./wheel.ts";

/** An answer that has not come by then is given up; the sweep finds out what became of the claim. */
export const ANSWER_TIMEOUT_MS = 3_000;

/**
 * The marks from which sweeps begin suppose that a row appears within SWEEP_LAG_MS of its statement. A commit that
 * hangs, for a disk or a standby that does not answer, is bounded by no timeout; so each shard looks so often at
 * everything, the shards one after the other.
 */
const LOOK_BACK_EVERY_MS = 60_000;
const LOOK_BACK_STEPS = 60;

/**
 * A shard is an actor: all that happens to it comes as one of these calls, one at a time, and it does nothing by
 * itself. It remembers what is owed soon (lanes) and when (wheel), and may forget any of it without harm.
 * Instants are milliseconds since 1970 by the database's clock.
 */
export class Shard {
  private readonly wheel: Wheel;
  private readonly lanes = new Map<string, Lane>();
  private readonly timed: (Entry | undefined)[] = [];
  private readonly freePlaces: number[] = [];
  private readonly sent = new Set<Entry>();
  /** Lanes that hold no memory here held nothing due before this instant. */
  private sinceAt = Number.NEGATIVE_INFINITY;
  private lookBackAt: number;

  constructor(
    readonly held: HeldShard,
    now: number,
    private readonly calls: {
      /** A lane has something to send and was not known to have. */
      onSendable(lane: Lane, shard: Shard): void;
      /** So little is left of what is due in a lane that Postgres should be asked for more. */
      onLow(lane: Lane, shard: Shard): void;
      /** A delivery node has claimed it. Whether it had to wait for a limit, a quota or a hold says `isHeldBack`. */
      onGranted(entry: Entry, isHeldBack: boolean, now: number): void;
    },
  ) {
    this.wheel = new Wheel(now);
    this.lookBackAt = now + (LOOK_BACK_EVERY_MS / LOOK_BACK_STEPS) * (1 + (held.shard % LOOK_BACK_STEPS));
  }

  /** A command or a hint says that this is owed. True if that was news, and there was room to keep it. */
  learn(owed: OwedAttempt, now: number): boolean {
    if (owed.dueAt > now + HORIZON_MS) return false;
    return this.keep(owed, now, (lane, isDue) => lane.hasRoom(isDue));
  }

  private keep(owed: OwedAttempt, now: number, hasRoom: (lane: Lane, isDue: boolean) => boolean): boolean {
    const lane = this.lane(owed.projectNo, owed.flowClass);
    const known = lane.known.get(owed.id);
    if (known !== undefined) {
      if (known.attempt > owed.attempt || (known.attempt === owed.attempt && known.dueAt <= owed.dueAt))
        return false;
      // A later attempt, or the same one brought forward by a manual retry.
      this.forget(lane, known);
    }
    const isDue = owed.dueAt <= now;
    if (!hasRoom(lane, isDue)) {
      // What is not due yet the next sweeps find in time.
      if (isDue) lane.overflow();
      return false;
    }
    const { projectNo, flowClass, id, attempt, dueAt } = owed;
    const entry: Entry = {
      projectNo,
      flowClass,
      id,
      attempt,
      dueAt,
      state: "ready",
      handle: 0,
      place: 0,
      sentAt: 0,
      sentTo: 0,
      isPutOff: false,
    };
    lane.known.set(id, entry);
    if (isDue) {
      lane.setReady(entry);
      this.announce(lane, now);
    } else {
      this.setTimer(lane, entry, dueAt);
    }
    return true;
  }

  /** Moves what has come due to its lane's ready ones. */
  advance(now: number): void {
    this.wheel.advance(now, (place) => {
      const entry = this.timed[place];
      if (entry === undefined) return;
      const lane = this.lane(entry.projectNo, entry.flowClass);
      this.clearTimer(lane, entry);
      if (lane.isFull) this.leaveToPostgres(lane, entry);
      else lane.setReady(entry);
      this.announce(lane, now);
    });
  }

  private leaveToPostgres(lane: Lane, entry: Entry): void {
    lane.forget(entry);
    lane.overflow();
    lane.sinceAt = Math.min(lane.sinceAt, entry.dueAt);
  }

  /** When `advance` has something to do at the earliest. */
  nextAt(): number {
    return this.wheel.nextAt();
  }

  /** Takes ready entries of one of this shard's lanes to be sent. */
  take(lane: Lane, countMax: number, nodeId: number, now: number): Entry[] {
    const taken = lane.take(countMax, nodeId, now);
    for (const entry of taken) this.sent.add(entry);
    lane.sentCount += taken.length;
    return taken;
  }

  /** Hears what became of a sent entry. Answers to what is not held any more are of no use. */
  answer({ projectNo, id, attempt, answer }: AnsweredItem, now: number): void {
    const lane = FLOW_CLASSES.map((flowClass) => this.lanes.get(laneKey(projectNo, flowClass))).find(
      (candidate) => candidate?.known.has(id),
    );
    const entry = lane?.known.get(id);
    if (lane === undefined || entry === undefined || entry.attempt !== attempt || entry.state !== "sent")
      return;
    this.sent.delete(entry);
    lane.sentCount--;
    switch (answer.kind) {
      case "granted":
        this.calls.onGranted(entry, entry.isPutOff || entry.dueAt <= lane.heldBackUntilAt, now);
        this.forget(lane, entry);
        break;
      case "gone":
        this.forget(lane, entry);
        break;
      case "early":
        this.setTimer(lane, entry, now + answer.waitMs);
        break;
      case "no_permit":
        lane.refused(answer.returned);
        lane.heldBackUntilAt = Math.max(lane.heldBackUntilAt, now);
        lane.giveBack(entry);
        break;
      case "blocked":
        lane.blockedUntilAt = Math.max(lane.blockedUntilAt, Math.min(answer.untilAt, now + BLOCKED_MS_MAX));
        // That delivery nodes are full is no limit of the project's. Two clocks differ by less than half of it.
        if (answer.untilAt > now + 2 * SHARE_PAUSE_MS)
          lane.heldBackUntilAt = Math.max(lane.heldBackUntilAt, lane.blockedUntilAt);
        lane.giveBack(entry);
        break;
      case "node_full":
        lane.giveBack(entry);
        break;
    }
    if (lane.sentCount === 0) lane.probe(false);
    this.announce(lane, now);
  }

  /** Permits of a project have come free. */
  freed({ projectNo, returned }: FreedPermits, now: number): void {
    for (const flowClass of FLOW_CLASSES) {
      const lane = this.lanes.get(laneKey(projectNo, flowClass));
      if (lane === undefined) continue;
      if (lane.credits === 0) lane.heldBackUntilAt = Math.max(lane.heldBackUntilAt, now);
      lane.freed(returned);
      this.announce(lane, now);
    }
  }

  /** The region is held: Postgres, which would refuse every lane by itself, is not asked until then. */
  hold(untilAt: number): void {
    for (const lane of this.lanes.values()) {
      lane.blockedUntilAt = Math.max(lane.blockedUntilAt, untilAt);
      lane.heldBackUntilAt = Math.max(lane.heldBackUntilAt, untilAt);
    }
  }

  /** Once a second: gives up on answers (the answer names the delivery nodes that owed them), lets refused lanes ask again, drops lanes that hold nothing. */
  tidy(now: number): number[] {
    if (now >= this.lookBackAt) this.lookBack(now);
    const unanswered: number[] = [];
    for (const entry of this.sent) {
      // Entries are in the order in which they were sent.
      if (entry.sentAt > now - ANSWER_TIMEOUT_MS) break;
      const lane = this.lane(entry.projectNo, entry.flowClass);
      this.forget(lane, entry);
      // Whether it is still owed is not known: the next look into Postgres must find it.
      lane.sinceAt = Math.min(lane.sinceAt, entry.dueAt);
      unanswered.push(entry.sentTo);
    }
    for (const [key, lane] of this.lanes) {
      lane.probe(true);
      if (
        lane.known.size === 0 &&
        !lane.hasMore &&
        lane.sinceAt >= this.sinceAt &&
        lane.blockedUntilAt <= now
      ) {
        this.lanes.delete(key);
      } else {
        this.announce(lane, now);
      }
    }
    return unanswered;
  }

  /** The delivery nodes that owe an answer, each as often as it owes one. */
  sentTo(): number[] {
    return [...this.sent].map((entry) => entry.sentTo);
  }

  private lookBack(now: number): void {
    this.lookBackAt = now + LOOK_BACK_EVERY_MS;
    this.sinceAt = Number.NEGATIVE_INFINITY;
    for (const lane of this.lanes.values()) lane.sinceAt = Number.NEGATIVE_INFINITY;
  }

  /** Where the sweep begins in lanes that are not remembered: they hold nothing due before this instant. */
  get sweepsFromAt(): number {
    return this.sinceAt;
  }

  rememberedLanes(): Lane[] {
    return [...this.lanes.values()];
  }

  /**
   * The sweep at `sweptAt` has looked, from `fromAt` on, into all lanes that were not remembered; `rows` is what it
   * found, of each lane the oldest first. Says how many of them were news.
   */
  swept(rows: readonly SweptRow[], fromAt: number, sweptAt: number, now: number): number {
    let newsCount = 0;
    for (const laneRows of Map.groupBy(rows, (row) => laneKey(row.projectNo, row.flowClass)).values()) {
      const [first] = laneRows;
      if (first === undefined) continue;
      const lane = this.lane(first.projectNo, first.flowClass);
      const asked = { ...lane.name, sinceAt: fromAt, room: laneRoom(first.concurrency) };
      newsCount += this.refilled(asked, laneRows, sweptAt, now);
    }
    this.sinceAt = Math.max(this.sinceAt, sweptAt - SWEEP_LAG_MS);
    return newsCount;
  }

  /** What the sweep should ask for in a lane that is remembered, if it is worth asking. */
  refillOf(lane: Lane, now: number): RefillLane | null {
    if (lane.blockedUntilAt > now || (lane.hasMore && !lane.wantsRefill(now))) return null;
    return lane.ask();
  }

  /** A lane's refill has come: its rows, oldest first. Says how many of them were news. */
  refilled(asked: RefillLane, rows: readonly SweptRow[], sweptAt: number, now: number): number {
    const lane = this.lane(asked.projectNo, asked.flowClass);
    const [first] = rows;
    if (first !== undefined) lane.room = laneRoom(first.concurrency);
    let newsCount = 0;
    // Until the answer has been read, nothing more is asked for.
    lane.hasMore = false;
    // All of them are kept, whatever commands have filled the lane with: these are older, and were asked for.
    for (const row of rows) if (this.keep(row, now, () => true)) newsCount++;
    lane.refilled(rows.at(-1)?.dueAt ?? Number.NEGATIVE_INFINITY, rows.length < asked.room);
    // Something may have been lost while the refill was under way; then it has to be looked for from there again.
    if (lane.sinceAt >= asked.sinceAt) {
      const through = Math.min(rows[0]?.dueAt ?? Number.POSITIVE_INFINITY, sweptAt - SWEEP_LAG_MS);
      lane.sinceAt = Math.max(lane.sinceAt, through);
    }
    this.announce(lane, now);
    return newsCount;
  }

  /** What is remembered: entries over all lanes. */
  get entryCount(): number {
    let count = 0;
    for (const lane of this.lanes.values()) count += lane.known.size;
    return count;
  }

  /** How many are ready, and since when the oldest is due that nothing of its own lane's holds back; null if none is. */
  backlog(now: number): { readyCount: number; oldestDueAt: number | null } {
    let readyCount = 0;
    let oldestDueAt: number | null = null;
    for (const lane of this.lanes.values()) {
      readyCount += lane.readyCount;
      const dueAt = lane.isSendable(now) ? lane.nextDueAt : null;
      if (dueAt !== null && (oldestDueAt === null || dueAt < oldestDueAt)) oldestDueAt = dueAt;
    }
    return { readyCount, oldestDueAt };
  }

  private lane(projectNo: ProjectNo, flowClass: FlowClass): Lane {
    const key = laneKey(projectNo, flowClass);
    const known = this.lanes.get(key);
    if (known !== undefined) return known;
    const name = { projectNo, flowClass, region: this.held.region };
    // Its true room comes with the first swept row; a command does not know the project's limit.
    const lane = new Lane(name, this.held.shard, this.sinceAt, LANE_ROOM_MIN);
    this.lanes.set(key, lane);
    return lane;
  }

  private setTimer(lane: Lane, entry: Entry, at: number): void {
    entry.state = "timed";
    entry.place = this.freePlaces.pop() ?? this.timed.length;
    entry.handle = this.wheel.insert(at, entry.place);
    this.timed[entry.place] = entry;
    lane.timedCount++;
    entry.isPutOff = at > entry.dueAt + CLOCKS_DIFFER_MS;
    if (entry.isPutOff) lane.putOffCount++;
  }

  private clearTimer(lane: Lane, entry: Entry): void {
    this.timed[entry.place] = undefined;
    this.freePlaces.push(entry.place);
    lane.timedCount--;
    if (entry.isPutOff) lane.putOffCount--;
  }

  private forget(lane: Lane, entry: Entry): void {
    if (entry.state === "timed") {
      this.wheel.cancel(entry.handle);
      this.clearTimer(lane, entry);
    }
    if (this.sent.delete(entry)) lane.sentCount--;
    lane.forget(entry);
  }

  private announce(lane: Lane, now: number): void {
    if (!lane.inTurn && lane.isSendable(now)) this.calls.onSendable(lane, this);
    if (lane.wantsRefill(now)) this.calls.onLow(lane, this);
  }
}

/** What was sent by a clock that is ahead of the database's by less than this was not put off. */
const CLOCKS_DIFFER_MS = 100;

/** A blocked lane is looked at again this often, since an upgrade or a release may come before the quota's rollover. */
const BLOCKED_MS_MAX = 5_000;

const laneKey = (projectNo: ProjectNo, flowClass: FlowClass) => `${projectNo} ${flowClass}`;
