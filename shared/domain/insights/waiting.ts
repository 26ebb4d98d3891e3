import type { ExplainedReason } from "../explain.ts";

/** How many attempts wait, and why: the rule of `waiting` in GET /v2/project/insights. The rule for one job is explain.ts. */

/** Up to so many attempts are counted one by one. A greater number is estimated. */
export const WAITING_COUNTED_MAX = 10_000;

/** The reasons for which a due attempt can wait. */
export type DueReason = Exclude<ExplainedReason, "due_time" | "backoff">;

/** Due attempts by what keeps them back. Each count may be an estimate. */
export interface DueCounts {
  /** Parked until their host takes more, is up, or has let the attempts before them start. */
  parked: number;
  /** Parked until their flow key lets them start. */
  parkedAtFlows: number;
  /** All others. */
  due: number;
}

/** The facts that can keep attempts of one region from being sent, and their counts. */
export interface RegionWaiting extends DueCounts {
  isHeld: boolean;
  hasWorker: boolean;
  hasDelivery: boolean;
  /** How many of them are retries by hand, whose runs were counted when they were asked for. Read only if no quota is left. */
  byHand: DueCounts;
  later: number;
}

export interface ProjectWaiting {
  isHeld: boolean;
  month: { runs: number; max: number | null };
  concurrency: number;
  permitsInUse: number;
  regions: readonly RegionWaiting[];
}

export interface WaitingFigures {
  due: number;
  byReason: Map<DueReason, number>;
  later: number;
}

/** Counts the attempts that wait by the first reason that applies, in the order of explain.ts. */
export function countWaiting(project: ProjectWaiting): WaitingFigures {
  const found = new Map<DueReason, number>();
  const note = (reason: DueReason, count: number) => found.set(reason, (found.get(reason) ?? 0) + count);
  const hasNoQuota = project.month.max !== null && project.month.runs >= project.month.max;
  const freeReason = project.permitsInUse >= project.concurrency ? "concurrency" : "turn";
  let later = 0;
  for (const region of project.regions) {
    later += region.later;
    const all = sumOf(region);
    if (project.isHeld || region.isHeld) {
      note("hold", all);
      continue;
    }
    const startable = hasNoQuota ? region.byHand : region;
    // The counts may be estimates, so the part may seem larger than the whole.
    note("quota", Math.max(0, all - sumOf(startable)));
    if (!region.hasWorker || !region.hasDelivery) note("no_worker", sumOf(startable));
    else {
      note("host", startable.parked);
      note("flow", startable.parkedAtFlows);
      note(freeReason, startable.due);
    }
  }
  const byReason = new Map([...found].filter(([, count]) => count > 0));
  return { due: [...byReason.values()].reduce((sum, count) => sum + count, 0), byReason, later };
}

const sumOf = ({ parked, parkedAtFlows, due }: DueCounts) => parked + parkedAtFlows + due;
