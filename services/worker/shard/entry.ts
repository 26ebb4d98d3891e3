import type { OwedAttempt } from "../../../shared/bus/messages.ts";
import type { WaitReason } from "../../../shared/domain/wait.ts";
import type { Timed } from "./timers.ts";

/** The worker's clock may be ahead of the database's by this much. An entry that is "early" by less was not put off. */
export const CLOCKS_DIFFER_MS = 100;

/** An owed attempt that the shard remembers: on the wheel, ready to be sent, or sent and not yet answered. */
export type Entry = OwedAttempt &
  Timed & {
    /** Hears that the entry's timer has ended. */
    shard: { comeDue(entry: Entry, now: number): void };
    state: "timed" | "ready" | "sent";
    /** When it was sent, by the shard's clock, and to which delivery node. */
    sentAt: number;
    sentTo: number;
    /** When its timer ends, while it is timed. */
    timedUntil: number;
    /** Why it is timed although it is due: a delivery node has put it off. Null if none has. */
    putOffFor: WaitReason | null;
    /** When it is due in Postgres since a gate has put it off there. Null if none has. */
    movedTo: number | null;
    /** When it is due since a gate has called it, while the answer to it is still to come. Null if none has. */
    calledFor: number | null;
    /** A delivery node has started it. The answer to it may still be to come. */
    hasBegun: boolean;
  };

export const newEntry = (owed: OwedAttempt, shard: Entry["shard"]): Entry => ({
  ...owed,
  ...{ shard, state: "ready", handle: 0, place: 0, timedUntil: 0, sentAt: 0, sentTo: 0 },
  ...{ putOffFor: null, movedTo: null, calledFor: null, hasBegun: false },
});

/** When Postgres has the entry due, as far as is known. */
export const owedAt = ({ movedTo, dueAt }: Entry) => movedTo ?? dueAt;
/** Whether a timed entry is due in Postgres while it waits. */
export const isInTheWay = (entry: Entry) => entry.timedUntil > owedAt(entry) + CLOCKS_DIFFER_MS;

/** Entries are ordered by due instant, and those of one instant by their ids, the first made first. */
export function isBefore(one: Entry, other: Entry): boolean {
  return one.dueAt === other.dueAt ? one.id < other.id : one.dueAt < other.dueAt;
}
