import { viewError } from "../../../shared/contract/error.ts";
import { ApiError } from "../../../shared/domain/errors.ts";
import { isDatabaseFault } from "../../../shared/store/database/database.ts";
import type { ReadyAnswer } from "./answer.ts";

/** The documented answer to a refused request. */
export function refuse(error: ApiError, requestId: string): ReadyAnswer {
  return {
    status: error.status,
    text: JSON.stringify(viewError(error, requestId)),
    headers: headersOf(error),
  };
}

/** The refusal that the client is told for anything thrown. internal_error stands for a bug, which the caller logs in full. */
export function toRefusal(error: unknown): ApiError {
  if (error instanceof ApiError) return error;
  if (isDatabaseFault(error)) {
    return new ApiError(
      "service_unavailable",
      "The service cannot reach its database. What was asked has happened entirely or not at all.",
    );
  }
  return new ApiError("internal_error", "An internal error occurred.");
}

export function methodNotAllowed(allow: string): ApiError {
  return new ApiError("method_not_allowed", `This path takes ${allow}.`);
}

/** The month's quota is used up. By the clock of Postgres, which has refused the run, it clears in `clearsInMs` milliseconds. */
export class QuotaExceeded extends ApiError {
  constructor(readonly clearsInMs: number) {
    super("quota_exceeded", "The project has used all runs that its plan includes this month.");
  }
}

function headersOf(error: ApiError): Record<string, string> {
  // Seconds are rounded up, so that a client that waits for them is never too early.
  if (error instanceof QuotaExceeded) return { "Retry-After": String(Math.ceil(error.clearsInMs / 1_000)) };
  switch (error.code) {
    case "unauthorized":
      return { "WWW-Authenticate": "Bearer" };
    case "request_timeout":
    case "payload_too_large":
      // The rest of the body would have to be received before the next request on this connection.
      return { Connection: "close" };
    default:
      return {};
  }
}
