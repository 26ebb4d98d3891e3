import { SHARE_PAUSE_MS } from "../../../shared/bus/messages.ts";
import type { WaitReason } from "../../../shared/domain/wait.ts";
import { CALLED_MS } from "../../../shared/store/queue/permits.ts";

/**
 * Why an attempt was put off if the answer does not say it: a permit is kept for another class for CALLED_MS, and a delivery
 * node that has no room at a host asks for more.
 */
export const putOffReason = (waitMs: number): WaitReason => (waitMs <= CALLED_MS ? "concurrency" : "host");

/**
 * Why a claim was blocked until then. A block as short as a share's pause says that delivery nodes are full, which is no limit
 * of the project's; two clocks differ by less than half of it. A quota's block ends with a month.
 */
export function blockReason(untilAt: number, now: number): WaitReason | null {
  if (untilAt <= now + 2 * SHARE_PAUSE_MS) return null;
  const end = new Date(untilAt);
  return untilAt === Date.UTC(end.getUTCFullYear(), end.getUTCMonth()) ? "quota" : "hold";
}
