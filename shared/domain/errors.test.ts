import { expect, test } from "bun:test";
import { ApiError, PARAM_LENGTH_MAX, STATUS_OF_CODE } from "./errors.ts";

test("each code has the status of the contract", () => {
  expect(STATUS_OF_CODE).toEqual({
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
  });
  expect(new ApiError("quota_exceeded", "Spent.").status).toBe(429);
});

test("a long name of an unknown field is cut in the answer", () => {
  const error = new ApiError("invalid_request", "Unknown.", `${"x".repeat(PARAM_LENGTH_MAX - 1)}😀`);
  expect(error.param).toBe(`${"x".repeat(PARAM_LENGTH_MAX - 1)}\ufffd`);
});
