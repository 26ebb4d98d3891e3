import { type FlowClass, type FlowKind, flowClassOf } from "./flow-class.ts";
import type { ProjectNo, Region, Scope } from "./scope.ts";

/** An attempt that is to be made. `dueAt` is in milliseconds since 1970 by the database's clock. */
export interface OwedAttempt {
  projectNo: ProjectNo;
  flowClass: FlowClass;
  /** The id of the job or the delivery. */
  id: string;
  attempt: number;
  dueAt: number;
  /**
   * True if the job is known to have a flow key, or if a gate has called the attempt. Left out if neither is so, and if it is
   * not known. It only chooses the statement that is asked first to claim the attempt: each statement judges by the rows.
   */
  isGated?: true | undefined;
  /** A hash of the job's flow key. Left out if it has none, and if it is not known. */
  keyHash?: number | undefined;
}

/** Permits of a project came back after a claim from a shard was refused one. `returned` counts all that ever came back. */
export interface FreedPermits {
  projectNo: ProjectNo;
  returned: number;
}

/** A delivery node that has answered "queued" for the attempt has started it. */
export type BegunAttempt = Pick<OwedAttempt, "projectNo" | "flowClass" | "id" | "attempt">;

/** A thing together with the shard that looks after it. */
export type Placed<Thing> = Thing & { region: Region; shard: number };

/** The work that a statement leaves to shards. bus/hints.ts tells them of it, and their sweeps find it without a hint. */
export interface OwedWork {
  owed: Placed<OwedAttempt>[];
  freed: Placed<FreedPermits>[];
  begun?: Placed<BegunAttempt>[];
}

/** An attempt of a job or of a delivery, for OwedWork. The list is empty if the shard is unknown and so cannot be told. */
export function oweAttempt(
  kind: FlowKind,
  { projectNo, environment, region, shard }: Scope & { region: Region; shard: number | null },
  { id, attempt, dueAt, isGated }: Pick<OwedAttempt, "id" | "attempt" | "dueAt" | "isGated">,
): Placed<OwedAttempt>[] {
  if (shard === null) return [];
  const owed = { projectNo, flowClass: flowClassOf(kind, environment), region, shard, id, attempt, dueAt };
  return [isGated ? { ...owed, isGated } : owed];
}
