import type { EntryError, ErrorCode } from "../domain/errors.ts";
import type { RateLimit } from "./answer.ts";

/** The reason why a try brought no result. */
export type Failure =
  | { kind: "refused"; refusal: Refusal }
  | { kind: "timed_out"; timeoutMs: number }
  /** The connection failed before the answer was complete. */
  | { kind: "unanswered"; cause: unknown };

/** An answer other than a success. */
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
 * The codes known today, and any that a newer service adds. `unexpected_answer` is the client's own code for an answer that
 * the API did not write; mostly a proxy did.
 */
export type ApiErrorCode = ErrorCode | typeof UNEXPECTED_ANSWER | (string & Record<never, never>);

export const UNEXPECTED_ANSWER = "unexpected_answer";

/** The facts that all errors of a request tell, over all its tries. */
export interface Trail {
  idempotencyKey: string | null;
  isOutcomeUnknown: boolean;
}

/** Every error with which a call rejects, except that an abort rejects with the signal's own reason. */
export class JobwheelError extends Error {
  override name = "JobwheelError";
  /** The key with which the request was sent. For 24 hours it can be sent again with that key and happens once. */
  readonly idempotencyKey: string | null;
  /** True if the request may or may not have been carried out; false if it was not. */
  readonly isOutcomeUnknown: boolean;

  constructor(message: string, trail: Trail, options?: ErrorOptions) {
    super(message, options);
    this.idempotencyKey = trail.idempotencyKey;
    this.isOutcomeUnknown = trail.isOutcomeUnknown;
  }
}

/** The API refused the request. */
export class ApiError extends JobwheelError {
  override name = "ApiError";
  readonly code: ApiErrorCode;
  readonly status: number;
  readonly requestId: string | null;
  /** The path of the one input at fault, such as `retry_policy.max_attempts`. */
  readonly param: string | null;
  /** One for every bad entry of a batch, its `param` relative to the entry. */
  readonly details: readonly EntryError[];
  /** Given with both codes of status 429. */
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

/** No answer came, or only a part of one. `cause` is the runtime's own error. */
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
      const reason = rootOf(failure.cause);
      const said =
        reason instanceof Error && reason.message !== "" ? `: ${reason.message.replace(/\.$/, "")}` : "";
      return new ConnectionError(`The connection failed before an answer came${said}.`, trail, {
        cause: failure.cause,
      });
    }
  }
}

/** Node says `fetch failed`, and gives the reason as the cause of that error. */
function rootOf(error: unknown): unknown {
  return error instanceof Error && error.cause instanceof Error ? error.cause : error;
}
