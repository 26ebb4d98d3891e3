import { type FlowClass, type FlowKind, flowClassOf } from "./flow-class.ts";
import type { ProjectNo, Region, Scope } from "./scope.ts";

/** An attempt that is to be made. `dueAt` is in milliseconds since 1970 by the database's clock. */
export interface OwedAttempt {
  projectNo: ProjectNo;
  flowClass: FlowClass;
  /** Of the job or the delivery. */
  id: string;
  attempt: number;
  dueAt: number;
  /**
   * True if its job is known to have a flow key, or if a gate has called the attempt. It is left out where that is not so, and
   * where nobody has told. It says which statement is asked first to claim the attempt, and no more: each judges by the rows.
   */
  isGated?: true | undefined;
}

/** Permits of a project have come back, `returned` of them ever, and a claim from a shard had been refused one. */
export interface FreedPermits {
  projectNo: ProjectNo;
  returned: number;
}

/** A thing together with the shard that looks after it. */
export type Placed<Thing> = Thing & { region: Region; shard: number };

/** What a statement has left to others. bus/hints.ts tells the shards of it, and their sweeps find it without that. */
export interface OwedWork {
  owed: Placed<OwedAttempt>[];
  freed: Placed<FreedPermits>[];
}

/** An attempt of a job or of a delivery, for OwedWork. Where its shard is not known nobody can be told, and the list is empty. */
export function oweAttempt(
  kind: FlowKind,
  { projectNo, environment, region, shard }: Scope & { region: Region; shard: number | null },
  { id, attempt, dueAt, isGated }: Pick<OwedAttempt, "id" | "attempt" | "dueAt" | "isGated">,
): Placed<OwedAttempt>[] {
  if (shard === null) return [];
  const owed = { projectNo, flowClass: flowClassOf(kind, environment), region, shard, id, attempt, dueAt };
  return [isGated ? { ...owed, isGated } : owed];
}
