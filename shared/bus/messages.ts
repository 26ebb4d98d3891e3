import type { BegunAttempt, FreedPermits, OwedAttempt } from "../domain/owed.ts";
import type { ProjectNo, Region } from "../domain/scope.ts";
import type { WaitReason } from "../domain/wait.ts";

export type { BegunAttempt, FreedPermits, OwedAttempt };

/**
 * The messages of the bus. Every message may be lost, doubled, reordered or replayed. This costs lateness only, because
 * the sweep finds in Postgres all work that no message told of. Messages hold ids, instants and numbers; never a
 * payload, a key or a secret.
 */

/**
 * Gateway to worker, over JetStream on `cmd.<region>.<shard>.<projectNo>`: these jobs of one project were committed. An
 * empty list says that one of the project's schedules or bulk operations has changed.
 */
export interface Command {
  region: Region;
  shard: number;
  projectNo: ProjectNo;
  owed: OwedAttempt[];
}

/** Worker or gateway to one delivery node, on `due.<nodeId>`: claim and send these now. */
export interface Due {
  /** The node id of the worker that waits for the answers; NO_WORKER if a gateway has sent the message. */
  workerNodeId: number;
  region: Region;
  items: DueItem[];
}

/**
 * A gateway tells a delivery node of jobs that are due when they are committed, and no command tells of them. The node tells
 * their shards of those that it does not take.
 */
export const NO_WORKER = 0;

export interface DueItem extends OwedAttempt {
  shard: number;
  /** Why the attempt was not sent when it came due; left out if nothing of the customer's own was in its way. */
  waitedFor?: WaitReason | undefined;
}

/**
 * The outcome of one due item.
 * - granted: it is claimed and will be sent.
 * - gone: it is not owed any more, is parked at its host, or was claimed by the node before.
 * - early: `waitMs` milliseconds are still to pass. `putOffFor` is what has put it off; it is left out if the delivery node
 *   does not know, or nothing has.
 * - queued: the node has all places of its flow key in flight and is likely to start it soon. If not, it is to be sent again in `waitMs`
 *   milliseconds. Only an item with a `keyHash` has this answer.
 * - no_permit: `returned` is the number of permits that had ever come back to the project by then. A hint that overtook
 *   the refusal is recognised by it.
 * - blocked: for at most SHARE_PAUSE_MS if the project has its share of a full node; longer by a quota or a hold.
 * - node_full: another node may take it at once.
 */
export type Answer =
  | { kind: "granted" }
  | { kind: "gone" }
  | { kind: "early"; waitMs: number; putOffFor?: WaitReason | undefined }
  | { kind: "queued"; waitMs: number }
  | { kind: "no_permit"; returned: number }
  | { kind: "blocked"; untilAt: number }
  | { kind: "node_full" };

/** A project that has its share of a full node is given no more for this long. */
export const SHARE_PAUSE_MS = 250;

/** Delivery node to the worker that sent the items, on `answers.<nodeId>`. */
export interface Answers {
  /** The node id of the delivery node that answers. */
  deliveryNodeId: number;
  region: Region;
  /** How many more attempts the node would take after these. */
  room: number;
  items: AnsweredItem[];
}

export interface AnsweredItem {
  projectNo: ProjectNo;
  shard: number;
  id: string;
  attempt: number;
  answer: Answer;
}

/**
 * To the worker that owns the shard, on `hint.<region>.<shard>`: attempts newly owed, permits that came free, and attempts that were
 * queued at the node and are begun.
 */
export interface Hint {
  region: Region;
  shard: number;
  owed: OwedAttempt[];
  freed: FreedPermits[];
  begun?: BegunAttempt[];
}

/**
 * Sent twice a second on `beat.delivery` and `beat.worker`, by every delivery node and by every worker that holds
 * shards by a lease that it trusts. Beats say which delivery nodes can be given work. A delivery node that hears no
 * worker looks for due attempts itself.
 */
export interface Beat {
  nodeId: number;
  /** The regions that a delivery node serves, or those in which a worker holds shards. */
  regions: Region[];
  /** How many more attempts the node would take now; 0 while it drains or cannot reach Postgres. Workers send 0. */
  room: number;
}
