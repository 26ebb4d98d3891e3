import type { ExplainedReason } from "../explain.ts";

/** How many attempts wait, and why: the rule of `waiting` in GET /v2/project/insights. The rule for one job is explain.ts. */

/** Up to so many attempts are counted one by one. A greater number is estimated. */
export const WAITING_COUNTED_MAX = 10_000;

/** The reasons for which a due attempt can wait. */
export type DueReason = Exclude<ExplainedReason, "due_time" | "backoff">;

/** The facts that can keep attempts of one region from being sent, and their counts. Each count may be an estimate. */
export interface RegionWaiting {
  isHeld: boolean;
  hasWorker: boolean;
  hasDelivery: boolean;
  /** Due attempts that are parked until their host takes more, is up, or has let the attempts before them start. */
  parked: number;
  /** Due attempts that are parked until their flow key lets them start. */
  parkedAtFlows: number;
  /** All other due attempts. `byHand` of them are retries by hand, whose runs were counted when they were asked for. */
  due: number;
  byHand: number;
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
    const { parked, parkedAtFlows, due, byHand } = region;
    const all = parked + parkedAtFlows + due;
    later += region.later;
    if (project.isHeld || region.isHeld) note("hold", all);
    else if (hasNoQuota) {
      note("quota", all - byHand);
      note(region.hasWorker && region.hasDelivery ? freeReason : "no_worker", byHand);
    } else if (!region.hasWorker || !region.hasDelivery) note("no_worker", all);
    else {
      note("host", parked);
      note("flow", parkedAtFlows);
      note(freeReason, due);
    }
  }
  const byReason = new Map([...found].filter(([, count]) => count > 0));
  return { due: [...byReason.values()].reduce((sum, count) => sum + count, 0), byReason, later };
}
