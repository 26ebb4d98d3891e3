import { createComplaint } from "../../../shared/bus/complaint.ts";
import type { OperationId } from "../../../shared/contract/operations/all.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import type { Log } from "../../../shared/platform/log.ts";

export interface AnsweredRequest {
  requestId: string;
  /** Null for a path or a method that the API does not have. */
  operation: OperationId | null;
  status: number;
  /** The code of a refusal; null for any other answer. */
  code: ErrorCode | null;
  durationMs: number;
}

/** Logs requests, with the id that their clients are shown. */
export interface RequestLog {
  answered(answered: AnsweredRequest): void;
  /** Logs the error if the fault is the service's own, since the answer does not tell the error. */
  refused(error: unknown, code: ErrorCode, requestId: string): void;
}

export function createRequestLog(log: Log): RequestLog {
  // An outage refuses thousands a second, all for the same reason.
  const complain = createComplaint(log, "request.not_served");
  return {
    // Only at level debug: a line for each request is much, and the metrics tell most of it.
    answered: (answered) => log.debug(answered, "request.answered"),
    refused(error, code, requestId) {
      if (code === "internal_error") log.error({ err: error, requestId }, "request.failed");
      if (code === "service_unavailable") complain({ err: error, requestId });
    },
  };
}
