import type { ErrorCode } from "../domain/errors.ts";
import type { Failure } from "./errors.ts";

export const BACKOFF_BASE_MS = 500;
export const BACKOFF_CAP_MS = 8_000;

/**
 * Whether the request may have been carried out although the try failed: without an answer, after any 5xx, and after a
 * success that cannot be read. A 408 without the service's own code comes from a proxy, which does not know either.
 */
export function leavesOutcomeUnknown(failure: Failure): boolean {
  if (failure.kind !== "refused") return true;
  const { status, code } = failure.refusal;
  const isByProxy = status === 408 && code !== REQUEST_TIMEOUT;
  return status >= 500 || isByProxy || (status >= 200 && status < 300);
}

/**
 * How long to wait before the next try; null if there should be none. `triesMade` is at least 1, `random` at least 0 and
 * below 1. Every request of the client may be sent again: creations have an idempotency key, a PATCH sets the same values,
 * cancel accepts a canceled job, and a deleted resource cannot be deleted again. A used-up quota is not waited for, since it
 * lasts until the month ends.
 */
export function retryWaitMs(failure: Failure, triesMade: number, random: number): number | null {
  if (!leavesOutcomeUnknown(failure) && !mayPass(failure)) return null;
  const toldSeconds = failure.kind === "refused" ? failure.refusal.retryAfterSeconds : null;
  // Many clients are told to wait the same seconds; the random backoff on top spreads them.
  return (
    (toldSeconds ?? 0) * 1_000 + random * Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** (triesMade - 1))
  );
}

const REQUEST_TIMEOUT: ErrorCode = "request_timeout";

/** Whether the service may accept a refused request another time. */
function mayPass(failure: Failure): boolean {
  if (failure.kind !== "refused") return false;
  const { status, code } = failure.refusal;
  return code === REQUEST_TIMEOUT || (status === 429 && code !== "quota_exceeded");
}
