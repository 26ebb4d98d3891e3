import type { ErrorCode } from "../domain/errors.ts";
import type { Failure } from "./errors.ts";

/** Which failures are tried again, and after which wait. */

export const BACKOFF_BASE_MS = 500;
export const BACKOFF_CAP_MS = 8_000;

/**
 * Whether what was asked may have happened although the try failed: without an answer, after any 5xx, and after a
 * success that cannot be read. A 408 without the service's own code is a proxy's, which knows no more than we do.
 */
export function leavesOutcomeUnknown(failure: Failure): boolean {
  if (failure.kind !== "refused") return true;
  const { status, code } = failure.refusal;
  const isByProxy = status === 408 && code !== REQUEST_TIMEOUT;
  return status >= 500 || isByProxy || (status >= 200 && status < 300);
}

/**
 * How long to wait before the next try, null if there should be none. `triesMade` is at least 1, `random` at least 0 and
 * below 1. Every request of the client may be sent again: creations have an idempotency key, a PATCH sets the same
 * values, a cancel takes a canceled job for its own, and what is gone cannot be deleted again. A spent quota does not come
 * back while one waits.
 */
export function retryWaitMs(failure: Failure, triesMade: number, random: number): number | null {
  if (!leavesOutcomeUnknown(failure) && !mayPass(failure)) return null;
  const toldSeconds = failure.kind === "refused" ? failure.refusal.retryAfterSeconds : null;
  // Many clients are told the same second; the backoff spreads them behind it.
  return (
    (toldSeconds ?? 0) * 1_000 + random * Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** (triesMade - 1))
  );
}

const REQUEST_TIMEOUT: ErrorCode = "request_timeout";

/** Whether the same request, of which nothing was done, may be taken another time. */
function mayPass(failure: Failure): boolean {
  if (failure.kind !== "refused") return false;
  const { status, code } = failure.refusal;
  return code === REQUEST_TIMEOUT || (status === 429 && code !== "quota_exceeded");
}
