import { ApiError } from "../../../shared/domain/errors.ts";

/** The request rate of an environment after a request, as the headers of the answer tell it. */
export interface RateStanding {
  limit: number;
  remaining: number;
  resetMs: number;
  /** Null if the request is accepted. */
  retryAfterMs: number | null;
}

export function rateLimitExceeded(): ApiError {
  return new ApiError(
    "rate_limit_exceeded",
    "The environment's requests of this minute are used up. Nothing was done, so it is safe to try again.",
  );
}

/** Only a refusal has `Retry-After`. Seconds are rounded up, so that a client that waits them is not too early. */
export function setRateHeaders(headers: Record<string, string>, standing: RateStanding): void {
  const { limit, remaining, resetMs, retryAfterMs } = standing;
  headers["RateLimit-Limit"] = String(limit);
  headers["RateLimit-Remaining"] = String(remaining);
  headers["RateLimit-Reset"] = String(wholeSeconds(resetMs));
  if (retryAfterMs !== null) headers["Retry-After"] = String(Math.max(1, wholeSeconds(retryAfterMs)));
}

function wholeSeconds(ms: number): number {
  return Math.ceil(ms / 1_000);
}
