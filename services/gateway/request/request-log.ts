import { createComplaint } from "../../../shared/bus/complaint.ts";
import type { OperationId } from "../../../shared/contract/operations/all.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import type { Log } from "../../../shared/platform/log.ts";

export interface AnsweredRequest {
  requestId: string;
  /** Null for a path or a method that the API does not have. */
  operation: OperationId | null;
  status: number;
  /** That of a refusal. */
  code: ErrorCode | null;
  durationMs: number;
}

/** What the log says of requests, by the id that the client was shown. */
export interface RequestLog {
  answered(answered: AnsweredRequest): void;
  /** What was thrown is told to nobody else where the fault is ours. */
  refused(error: unknown, code: ErrorCode, requestId: string): void;
}

export function createRequestLog(log: Log): RequestLog {
  // An outage refuses thousands a second, all for the same reason.
  const complain = createComplaint(log, "request.not_served");
  return {
    // One line for each request is much, and most of what it says is in the metrics: whoever looks for one asks for it.
    answered: (answered) => log.debug(answered, "request.answered"),
    refused(error, code, requestId) {
      if (code === "internal_error") log.error({ err: error, requestId }, "request.failed");
      if (code === "service_unavailable") complain({ err: error, requestId });
    },
  };
}
