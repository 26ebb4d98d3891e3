/** A refusal of a request, which the client is told. Any other error that is thrown is a bug. */
export class ApiError extends Error {
  readonly code: ErrorCode;
  /** The path of the one input at fault, such as `retry_policy.max_attempts`. */
  readonly param: string | undefined;
  /** For a batch, an error for every bad entry. */
  readonly details: readonly EntryError[] | undefined;

  constructor(code: ErrorCode, message: string, param?: string, details?: readonly EntryError[]) {
    super(message);
    this.name = "ApiError";
    this.code = code;
    this.param = param?.slice(0, PARAM_LENGTH_MAX).toWellFormed();
    this.details = details;
  }

  get status(): number {
    return STATUS_OF_CODE[this.code];
  }
}

/** A param can be the name of an unknown field, which can be as long as a body. */
export const PARAM_LENGTH_MAX = 256;

/** The refusal of one entry of a batch; `param` is relative to the entry. */
export interface EntryError {
  index: number;
  code: ErrorCode;
  message: string;
  param?: string;
}

/** Each code has one status. */
export const STATUS_OF_CODE = {
  invalid_request: 400,
  run_at_in_past: 400,
  invalid_cron_expression: 400,
  interval_too_short: 400,
  unauthorized: 401,
  plan_limit_exceeded: 403,
  insufficient_scope: 403,
  resource_not_found: 404,
  method_not_allowed: 405,
  request_timeout: 408,
  idempotency_conflict: 409,
  schedule_name_taken: 409,
  payload_too_large: 413,
  unsupported_media_type: 415,
  rate_limit_exceeded: 429,
  quota_exceeded: 429,
  internal_error: 500,
  service_unavailable: 503,
} as const satisfies Record<string, number>;

export type ErrorCode = keyof typeof STATUS_OF_CODE;

export function invalidRequest(message: string, param?: string): ApiError {
  return new ApiError("invalid_request", message, param);
}

/** All reasons have one message, so that no answer tells whether somebody else's resource exists. */
export function resourceNotFound(): ApiError {
  return new ApiError("resource_not_found", "There is no such resource.");
}

/** All reasons have one message, so that no answer tells how close a guessed key came. */
export function unauthorized(): ApiError {
  return new ApiError(
    "unauthorized",
    "A valid API key is required, in one header: Authorization: Bearer <API_KEY>.",
  );
}
