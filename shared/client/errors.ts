import type { EntryError, ErrorCode } from "../domain/errors.ts";
import type { RateLimit } from "./answer.ts";

/** Why a try brought no result. */
export type Failure =
  | { kind: "refused"; refusal: Refusal }
  | { kind: "timed_out"; timeoutMs: number }
  /** The connection failed before the answer was complete. */
  | { kind: "unanswered"; cause: unknown };

/** An answer that is no success. */
export interface Refusal {
  code: ApiErrorCode;
  message: string;
  status: number;
  requestId: string | null;
  param: string | null;
  details: readonly EntryError[];
  retryAfterSeconds: number | null;
  rateLimit: RateLimit | null;
}

/**
 * The codes that are known today, and whatever a newer service adds. `unexpected_answer` is the client's own, for an
 * answer that is not the API's: that of a proxy, mostly.
 */
export type ApiErrorCode = ErrorCode | typeof UNEXPECTED_ANSWER | (string & Record<never, never>);

export const UNEXPECTED_ANSWER = "unexpected_answer";

/** What became clear over all tries of one request. */
export interface Trail {
  idempotencyKey: string | null;
  isOutcomeUnknown: boolean;
}

/** Everything that a call rejects with, but for an abort, which rejects with the signal's own reason. */
export class JobwheelError extends Error {
  override name = "JobwheelError";
  /** With which it was sent. With the same key it can be asked again, and happens once, for 24 hours. */
  readonly idempotencyKey: string | null;
  /** True if nobody can tell whether what was asked has happened. It has not, where this is false. */
  readonly isOutcomeUnknown: boolean;

  constructor(message: string, trail: Trail, options?: ErrorOptions) {
    super(message, options);
    this.idempotencyKey = trail.idempotencyKey;
    this.isOutcomeUnknown = trail.isOutcomeUnknown;
  }
}

/** The API answered, and refused. */
export class ApiError extends JobwheelError {
  override name = "ApiError";
  readonly code: ApiErrorCode;
  readonly status: number;
  readonly requestId: string | null;
  /** The path of the one input at fault, such as `retry_policy.max_attempts`. */
  readonly param: string | null;
  /** One for every bad entry of a batch, its `param` relative to the entry. */
  readonly details: readonly EntryError[];
  /** Of the two codes of status 429. */
  readonly retryAfterSeconds: number | null;
  readonly rateLimit: RateLimit | null;

  constructor(refusal: Refusal, trail: Trail) {
    super(refusal.message, trail);
    this.code = refusal.code;
    this.status = refusal.status;
    this.requestId = refusal.requestId;
    this.param = refusal.param;
    this.details = refusal.details;
    this.retryAfterSeconds = refusal.retryAfterSeconds;
    this.rateLimit = refusal.rateLimit;
  }
}

/** No answer came, or only a part of one. `cause` holds what the runtime says about it. */
export class ConnectionError extends JobwheelError {
  override name = "ConnectionError";
}

/** No answer came in time. */
export class TimeoutError extends ConnectionError {
  override name = "TimeoutError";
}

export function errorOf(failure: Failure, trail: Trail): JobwheelError {
  switch (failure.kind) {
    case "refused":
      return new ApiError(failure.refusal, trail);
    case "timed_out":
      return new TimeoutError(`No answer came within ${Math.round(failure.timeoutMs)} ms.`, trail);
    case "unanswered": {
      const said = failure.cause instanceof Error ? ` ${failure.cause.message}` : "";
      return new ConnectionError(`The connection failed before an answer came.${said}`, trail, {
        cause: failure.cause,
      });
    }
  }
}
