import type { ExplainedReason } from "../explain.ts";

/** How much waits, and why: the rule of `waiting` in GET /v2/project/insights. It tells of many jobs what explain.ts tells of one. */

/** So many attempts are counted one by one. Of more there is an estimate. */
export const WAITING_COUNTED_MAX = 10_000;

/** Why an attempt that is due can wait. */
export type DueReason = Exclude<ExplainedReason, "due_time" | "backoff">;

/** What keeps attempts of one region from being sent, and how many there are. Each may be an estimate. */
export interface RegionWaiting {
  isHeld: boolean;
  hasWorker: boolean;
  hasDelivery: boolean;
  /** Due and set aside until their host takes more, is up, or has let start what is before them. */
  parked: number;
  /** Due and set aside until their flow key lets them start. */
  parkedAtFlows: number;
  /** Due otherwise; `byHand` of them were asked for by hand, and their runs were counted then. */
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

/** Counts what waits by the first reason that applies, in the order of explain.ts. */
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
