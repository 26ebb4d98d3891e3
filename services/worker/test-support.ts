import type { Answer, OwedAttempt } from "../../shared/bus/messages.ts";
import type { FlowClass } from "../../shared/domain/flow-class.ts";
import { createIdSource, JOB_PREFIX } from "../../shared/domain/ids.ts";
import type { WaitReason } from "../../shared/domain/wait.ts";
import type { RefillLane, SweptRow } from "../../shared/store/queue/sweep.ts";
import type { Entry } from "./shard/entry.ts";
import type { RememberedLane } from "./shard/remembered-lane.ts";
import { Shard } from "./shard/shard.ts";
import { Timers } from "./shard/timers.ts";

// Ids in an order that is the same in every run.
let drawn = 0;
const ids = createIdSource((count) => Uint8Array.from({ length: count }, () => (drawn++ * 75) & 255));

/** The shard of the attempts in these tests, unless told otherwise. */
export const SHARD = 3;
/** The delivery node to which everything is sent. */
export const NODE = 7;

export const newJobId = () => ids.next(JOB_PREFIX, 1);

export function owedOf(wish: Partial<OwedAttempt> = {}): OwedAttempt {
  return { projectNo: 1, flowClass: "production jobs", id: newJobId(), attempt: 1, dueAt: 0, ...wish };
}

export function sweptOf(owed: OwedAttempt, concurrency = 500): SweptRow {
  return { ...owed, region: "us-east", shard: SHARD, concurrency };
}

/** A shard, and the calls that it has made. */
export function startShard(now: number, shardNo = SHARD) {
  const sendable: RememberedLane[] = [];
  const low: RememberedLane[] = [];
  const granted: { entry: Entry; waitedFor: WaitReason | null }[] = [];
  const timers = new Timers<Entry>(now);
  const shard = new Shard({ region: "us-east", shard: shardNo, epoch: 1 }, now, timers, {
    onSendable: (lane) => sendable.push(lane),
    onLow: (lane) => low.push(lane),
    onGranted: (entry, waitedFor) => granted.push({ entry, waitedFor }),
  });
  const advance = (to: number) => timers.advance(to, (entry) => entry.shard.comeDue(entry, to));
  return {
    shard,
    timers,
    advance,
    low,
    granted,
    lane(projectNo = 1, flowClass: FlowClass = "production jobs"): RememberedLane | undefined {
      return shard
        .rememberedLanes()
        .find(({ name }) => name.projectNo === projectNo && name.flowClass === flowClass);
    },
    /** Takes all that the shard wants to send now, as a dispatcher with room for everything would. */
    send(now: number, countMax = Number.POSITIVE_INFINITY): Entry[] {
      advance(now);
      const sent: Entry[] = [];
      for (const lane of new Set(sendable.splice(0))) sent.push(...shard.take(lane, countMax, NODE, now));
      return sent;
    },
    answer(entry: OwedAttempt, answer: Answer, now: number): void {
      shard.answer(
        { projectNo: entry.projectNo, shard: shardNo, id: entry.id, attempt: entry.attempt, answer },
        now,
      );
    },
    /** A whole sweep over `owed`, without losses. */
    sweep(owed: readonly OwedAttempt[], now: number, concurrency = 500): void {
      shard.tidy(now);
      const asked = shard.sweepsFromAt;
      const remembered = shard.rememberedLanes();
      const rows = owed
        .filter((row) => row.dueAt <= now + 1_500)
        .sort((one, other) => one.dueAt - other.dueAt)
        .map((row) => sweptOf(row, concurrency));
      const isOf = (lane: RememberedLane) => (row: SweptRow) =>
        row.projectNo === lane.name.projectNo && row.flowClass === lane.name.flowClass;
      const apart: RememberedLane[] = [];
      const along: RefillLane[] = [];
      for (const lane of remembered) {
        const question = lane.ask(now);
        if (question !== null && lane.isKnownFrom(asked)) {
          along.push(question);
          continue;
        }
        apart.push(lane);
        if (question === null) continue;
        const found = rows.filter((row) => isOf(lane)(row) && row.dueAt >= question.sinceAt);
        shard.refilled(question, found.slice(0, question.room), now, now);
      }
      const others = rows.filter((row) => row.dueAt >= asked && !apart.some((lane) => isOf(lane)(row)));
      shard.swept(others, along, { fromAt: asked, sweptAt: now }, now);
    },
  };
}
