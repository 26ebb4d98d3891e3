import type { FlowClass } from "../domain/flow-class.ts";
import type { ProjectNo, Region } from "../domain/scope.ts";

/**
 * What travels over the bus. Every message is a hint: all of it can be lost, doubled, reordered or replayed,
 * and costs lateness only, because the sweep finds in Postgres whatever no message told of. Messages hold ids,
 * instants and numbers; never a payload, a key or a secret.
 */

/** An attempt that is owed: of which job or delivery, which attempt, and when it is due (milliseconds since 1970, database clock). */
export interface OwedAttempt {
  projectNo: ProjectNo;
  flowClass: FlowClass;
  /** Of the job or the delivery. */
  id: string;
  attempt: number;
  dueAt: number;
}

/**
 * Gateway to worker, over JetStream on `cmd.<region>.<shard>.<projectNo>`: these jobs of one project were committed. With
 * none it says that one of the project's schedules was changed, and when it fires next.
 */
export interface Command {
  region: Region;
  shard: number;
  projectNo: ProjectNo;
  owed: OwedAttempt[];
}

/** Worker to one delivery node, on `due.<nodeId>`: claim and send these now. */
export interface Due {
  /** The node id of the worker that waits for the answers. */
  workerNodeId: number;
  region: Region;
  items: DueItem[];
}

export interface DueItem extends OwedAttempt {
  shard: number;
}

/**
 * What became of one due item. `early` gives the milliseconds that are still to pass; `no_permit` how many permits had
 * ever come back to the project when it was refused, so that a hint that overtook the refusal is recognised. `blocked` for
 * no longer than SHARE_PAUSE_MS says that the node is full and the project has its share of it; a quota or a hold blocks for longer.
 */
export type Answer =
  | { kind: "granted" }
  | { kind: "gone" }
  | { kind: "early"; waitMs: number }
  | { kind: "no_permit"; returned: number }
  | { kind: "blocked"; untilAt: number }
  | { kind: "node_full" };

/** A project that has its share of a full node is left alone for so long. */
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

/** To whoever owns the shard, on `hint.<region>.<shard>`: attempts newly owed, and projects whose permits came free. */
export interface Hint {
  region: Region;
  shard: number;
  owed: OwedAttempt[];
  freed: FreedPermits[];
}

/** Permits of a project have come back, `returned` of them ever, and a claim from this shard had been refused one. */
export interface FreedPermits {
  projectNo: ProjectNo;
  returned: number;
}

/**
 * Twice a second from every delivery node, and from every worker that holds shards by a lease that it trusts, on
 * `beat.delivery` and `beat.worker`. It says who can be given work. Where none comes from a worker, delivery nodes look for
 * what is due themselves.
 */
export interface Beat {
  nodeId: number;
  /** That a delivery node serves, or in which a worker holds shards. */
  regions: Region[];
  /** How many more attempts the node would take now; 0 while it drains or cannot reach Postgres. Workers send 0. */
  room: number;
}
