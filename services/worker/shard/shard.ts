import {
  type AnsweredItem,
  type BegunAttempt,
  type FreedPermits,
  type OwedAttempt,
  SHARE_PAUSE_MS,
} from "../../../shared/bus/messages.ts";
import { FLOW_CLASSES, type FlowClass } from "../../../shared/domain/flow-class.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { HORIZON_MS } from "../../../shared/domain/shard.ts";
import type { WaitReason } from "../../../shared/domain/wait.ts";
import type { HeldShard } from "../../../shared/store/queue/shards.ts";
import { laneRoom, type RefillLane, SWEEP_LAG_MS, type SweptRow } from "../../../shared/store/queue/sweep.ts";
import { type Entry, newEntry } from "./entry.ts";
import { RememberedLane } from "./remembered-lane.ts";
import type { Timers } from "./timers.ts";
import { blockReason, putOffReason } from "./wait-reasons.ts";

/** An answer that has not come by then is given up; the sweep finds out what became of the claim. */
export const ANSWER_TIMEOUT_MS = 3_000;

/**
 * The instants from which sweeps begin suppose that a row appears within SWEEP_LAG_MS of its statement. No timeout
 * bounds a commit that hangs because a disk or a standby does not answer. So each shard looks at everything this often,
 * the shards of a worker one after the other.
 */
const LOOK_BACK_EVERY_MS = 60_000;
const LOOK_BACK_STEPS = 60;

/** A blocked lane asks again this often, since an upgrade or a resume may come before the quota's rollover. */
const BLOCKED_MS_MAX = 5_000;
/** A blocked lane rests at least this long. Clocks differ, so by the worker's clock its block may be over at once. */
const BLOCKED_MS_MIN = SHARE_PAUSE_MS;

/** The calls by which a shard tells its worker what has happened. */
export interface ShardCalls {
  /** A lane has something to send and does not stand in the dispatcher's row. */
  onSendable(lane: RememberedLane, shard: Shard): void;
  /** So little is left of what is due in a lane that Postgres should be asked for more. */
  onLow(lane: RememberedLane, shard: Shard): void;
  /** A delivery node has claimed the entry. `waitedFor` is the customer's own reason that made it wait. */
  onGranted(entry: Entry, waitedFor: WaitReason | null, now: number): void;
}

/**
 * A shard is an actor: everything that happens to it is one of these calls, one at a time, and it does nothing by
 * itself. It remembers what is owed soon (lanes) and when (timers, on the wheel that all shards of its host share). It
 * may forget any of it without harm, because Postgres knows it all. Instants are milliseconds since 1970 by the
 * database's clock.
 */
export class Shard {
  private readonly lanes = new Map<string, RememberedLane>();
  private hasEnded = false;
  /** In the order in which they were sent. */
  private readonly sent = new Set<Entry>();
  /** The delivery nodes of sent entries that were forgotten without an answer. */
  private readonly unanswered: number[] = [];
  /** Lanes that the shard does not remember hold nothing that was due before this instant. */
  private sinceAt = Number.NEGATIVE_INFINITY;
  private lookBackAt: number;

  constructor(
    readonly held: HeldShard,
    now: number,
    private readonly timers: Timers<Entry>,
    private readonly calls: ShardCalls,
  ) {
    this.lookBackAt = now + (LOOK_BACK_EVERY_MS / LOOK_BACK_STEPS) * (1 + (held.shard % LOOK_BACK_STEPS));
  }

  /** A command or a hint says that this is owed. True if that was news, and there was room to keep it. */
  learn(owed: OwedAttempt, now: number): boolean {
    return owed.dueAt <= now + HORIZON_MS && this.keep(owed, now, false);
  }

  /** `isAskedFor` says that it is kept in any case. */
  private keep(
    { projectNo, flowClass, id, attempt, dueAt, isGated, keyHash }: OwedAttempt,
    now: number,
    isAskedFor: boolean,
  ): boolean {
    const lane = this.lane(projectNo, flowClass);
    const known = lane.find(id);
    if (known !== undefined) {
      const isNews =
        known.attempt < attempt ||
        (known.attempt === attempt && (dueAt < known.dueAt || lane.isHastened(known, dueAt)));
      if (isGated) known.isGated = isGated;
      if (keyHash !== undefined) known.keyHash = keyHash;
      if (!isNews) {
        // A gate has refused the attempt and called it since. The answer that tells of the refusal is still to come.
        if (known.state === "sent" && known.attempt === attempt && dueAt > known.dueAt)
          known.calledFor = dueAt;
        return false;
      }
      // The news is a later attempt, or a manual retry or a higher limit has brought the same one forward.
      this.forget(lane, known);
    }
    const isDue = dueAt <= now;
    if (!isAskedFor && !lane.hasRoom(isDue)) {
      // The next sweeps find in time the attempts that are not due yet.
      if (isDue) lane.overflow();
      else lane.lookFrom(dueAt);
      return false;
    }
    // A job never loses its key.
    const gate = { isGated: isGated ?? known?.isGated, keyHash: keyHash ?? known?.keyHash };
    const entry = newEntry({ projectNo, flowClass, id, attempt, dueAt, ...gate }, this);
    lane.add(entry, now);
    if (isDue) this.announce(lane, now);
    return true;
  }

  /** The timer of one of its entries has ended: makes it ready. */
  comeDue(entry: Entry, now: number): void {
    const lane = this.lane(entry.projectNo, entry.flowClass);
    lane.becomeDue(entry);
    this.announce(lane, now);
  }

  /** The shard is no longer held: takes its timers off the wheel, which the other shards go on using. */
  end(): void {
    this.hasEnded = true;
    for (const lane of this.lanes.values()) lane.cancelTimers();
  }

  /** Takes ready entries of one of this shard's lanes to be sent. */
  take(lane: RememberedLane, countMax: number, nodeId: number, now: number): Entry[] {
    const taken = lane.take(countMax, nodeId, now);
    for (const entry of taken) this.sent.add(entry);
    return taken;
  }

  /** Hears what became of a sent entry. An answer to an entry that the shard has forgotten is ignored. */
  answer({ projectNo, id, attempt, answer }: AnsweredItem, now: number): void {
    let lane: RememberedLane | undefined;
    let entry: Entry | undefined;
    for (const flowClass of FLOW_CLASSES) {
      lane = this.lanes.get(laneKey(projectNo, flowClass));
      entry = lane?.find(id);
      if (entry !== undefined) break;
    }
    if (lane === undefined || entry?.attempt !== attempt || !this.sent.delete(entry)) return;
    lane.endWait(entry);
    switch (answer.kind) {
      case "granted":
        this.calls.onGranted(entry, lane.waitOf(entry), now);
        lane.forget(entry);
        break;
      case "gone":
        lane.forget(entry);
        if (entry.calledFor !== null) this.keep({ ...entry, dueAt: entry.calledFor }, now, false);
        break;
      case "early":
        // Postgres remembers an entry that is far from due, and it may be brought forward there.
        if (answer.waitMs > HORIZON_MS) {
          lane.forget(entry);
          break;
        }
        if (answer.putOffFor !== undefined) lane.move(entry, now + answer.waitMs, answer.putOffFor);
        else lane.setTimer(entry, now + answer.waitMs, putOffReason(answer.waitMs));
        break;
      case "queued":
        lane.setTimer(entry, now + answer.waitMs, "flow");
        break;
      case "no_permit":
        lane.refusePermit(answer.returned, now);
        lane.giveBack(entry);
        break;
      case "blocked": {
        const restMs = Math.max(BLOCKED_MS_MIN, Math.min(answer.untilAt - now, BLOCKED_MS_MAX));
        lane.block(now + restMs, blockReason(answer.untilAt, now));
        lane.giveBack(entry);
        break;
      }
      case "node_full":
        lane.giveBack(entry);
        break;
    }
    if (entry.hasBegun) lane.forget(entry);
    lane.probe(false);
    this.announce(lane, now);
  }

  /** A delivery node has started an attempt for which it has answered "queued". That answer may come later. */
  begun({ projectNo, flowClass, id, attempt }: BegunAttempt, now: number): void {
    const lane = this.lanes.get(laneKey(projectNo, flowClass));
    const entry = lane?.find(id);
    if (lane === undefined || entry?.attempt !== attempt) return;
    entry.hasBegun = true;
    if (entry.state === "sent") return;
    lane.forget(entry);
    this.announce(lane, now);
  }

  /** Permits of a project have come free. */
  freed({ projectNo, returned }: FreedPermits, now: number): void {
    for (const flowClass of FLOW_CLASSES) {
      const lane = this.lanes.get(laneKey(projectNo, flowClass));
      if (lane === undefined) continue;
      lane.returnPermits(returned, now);
      this.announce(lane, now);
    }
  }

  /** The region is held: sends nothing until `untilAt`, since Postgres would refuse every claim. */
  hold(untilAt: number): void {
    for (const lane of this.lanes.values()) lane.block(untilAt, "hold");
  }

  /**
   * Once a second: gives up on answers that have not come, lets refused lanes ask again, and drops lanes that hold
   * nothing. Returns the delivery nodes that owed those answers, and answers to attempts that a later one has replaced.
   */
  tidy(now: number): number[] {
    if (now >= this.lookBackAt) this.lookBack(now);
    for (const entry of this.sent) {
      if (entry.sentAt > now - ANSWER_TIMEOUT_MS) break;
      const lane = this.lane(entry.projectNo, entry.flowClass);
      this.forget(lane, entry);
      // The entry may still be owed: the next look into Postgres must find it.
      lane.lookFrom(entry.dueAt);
    }
    for (const [key, lane] of this.lanes) {
      lane.probe(true);
      if (lane.isForgettable(this.sinceAt, now)) this.lanes.delete(key);
      else this.announce(lane, now);
    }
    return this.unanswered.splice(0);
  }

  /** The delivery nodes that owe an answer, each as often as it owes one. */
  sentTo(): number[] {
    return [...this.unanswered, ...[...this.sent].map((entry) => entry.sentTo)];
  }

  private lookBack(now: number): void {
    this.lookBackAt = now + LOOK_BACK_EVERY_MS;
    this.sinceAt = Number.NEGATIVE_INFINITY;
    for (const lane of this.lanes.values()) lane.lookFrom(Number.NEGATIVE_INFINITY);
  }

  /** The instant from which the sweep looks into lanes that are not remembered: they hold nothing due before it. */
  get sweepsFromAt(): number {
    return this.sinceAt;
  }

  rememberedLanes(): readonly RememberedLane[] {
    return this.lanes.size === 0 ? NO_LANES : [...this.lanes.values()];
  }

  /**
   * The sweep at `sweptAt` has looked, from `fromAt` on, into all lanes that were not remembered and into those of the questions in
   * `along`; `rows` is what it found, the oldest of each lane first. Returns how many of them were news.
   */
  swept(
    rows: readonly SweptRow[],
    along: readonly RefillLane[],
    { fromAt, sweptAt }: { fromAt: number; sweptAt: number },
    now: number,
  ): number {
    let newsCount = 0;
    const rowsOf = Map.groupBy(rows, (row) => laneKey(row.projectNo, row.flowClass));
    for (const laneRows of rowsOf.values()) {
      const [first] = laneRows;
      if (first === undefined) continue;
      const lane = this.lane(first.projectNo, first.flowClass);
      const asked = { ...lane.name, sinceAt: fromAt, room: laneRoom(first.concurrency) };
      newsCount += this.refilled(asked, laneRows, sweptAt, now);
    }
    for (const asked of along)
      if (!rowsOf.has(laneKey(asked.projectNo, asked.flowClass))) this.refilled(asked, [], sweptAt, now);
    this.sinceAt = Math.max(this.sinceAt, sweptAt - SWEEP_LAG_MS);
    return newsCount;
  }

  /** A lane's refill has come: its rows, oldest first. Returns how many of them were news. */
  refilled(asked: RefillLane, rows: readonly SweptRow[], sweptAt: number, now: number): number {
    // The shard was lost meanwhile. Entries would stay on the wheel of the others, and their lane would ask again.
    if (this.hasEnded) return 0;
    const lane = this.lane(asked.projectNo, asked.flowClass);
    let newsCount = 0;
    lane.refill(asked, rows, sweptAt, () => {
      // All rows are kept, however full commands have made the lane: they are older, and were asked for.
      for (const row of rows) if (this.keep(row, now, true)) newsCount++;
    });
    this.announce(lane, now);
    return newsCount;
  }

  /** Whether no answer is awaited and nothing may be sent: ready entries wait for a limit, a quota or a hold. */
  isIdle(now: number): boolean {
    if (this.sent.size > 0) return false;
    for (const lane of this.lanes.values()) if (lane.isSendable(now)) return false;
    return true;
  }

  /** How many entries are remembered, over all lanes. */
  get entryCount(): number {
    let count = 0;
    for (const lane of this.lanes.values()) count += lane.size;
    return count;
  }

  /**
   * How many entries are ready, and when the oldest came due among those that may be sent now; null if none may. An
   * entry that its own project's limit, quota or hold keeps back does not count as late.
   */
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

  private lane(projectNo: ProjectNo, flowClass: FlowClass): RememberedLane {
    const key = laneKey(projectNo, flowClass);
    const known = this.lanes.get(key);
    if (known !== undefined) return known;
    const name = { projectNo, flowClass, region: this.held.region };
    const lane = new RememberedLane(name, this.timers, this.sinceAt);
    this.lanes.set(key, lane);
    return lane;
  }

  private forget(lane: RememberedLane, entry: Entry): void {
    if (this.sent.delete(entry)) {
      lane.endWait(entry);
      this.unanswered.push(entry.sentTo);
    }
    lane.forget(entry);
  }

  private announce(lane: RememberedLane, now: number): void {
    if (!lane.standsInRow && lane.isSendable(now)) this.calls.onSendable(lane, this);
    if (lane.wantsRefill(now)) this.calls.onLow(lane, this);
  }
}

const NO_LANES: readonly RememberedLane[] = [];
const laneKey = (projectNo: ProjectNo, flowClass: FlowClass) => `${projectNo} ${flowClass}`;
