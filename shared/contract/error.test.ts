import { expect, test } from "bun:test";
import { Value } from "@sinclair/typebox/value";
import { ApiError } from "../domain/errors.ts";
import { ErrorBody, viewError } from "./error.ts";

test("an error body leaves out fields without a value", () => {
  const plain = viewError(new ApiError("rate_limit_exceeded", "Too fast."), "req_01arz3ndektsv4rrffq69g5fav");
  expect(plain).toEqual({
    error: {
      code: "rate_limit_exceeded",
      message: "Too fast.",
      request_id: "req_01arz3ndektsv4rrffq69g5fav",
    },
  });
  expect(Value.Check(ErrorBody, plain)).toBe(true);
  const details = [{ index: 3, code: "run_at_in_past" as const, message: "Past.", param: "run_at" }];
  const batch = viewError(
    new ApiError("invalid_request", "One is bad.", "jobs", details),
    "req_01arz3ndektsv4rrffq69g5fav",
  );
  expect(batch.error).toEqual({
    code: "invalid_request",
    message: "One is bad.",
    request_id: "req_01arz3ndektsv4rrffq69g5fav",
    param: "jobs",
    details,
  });
  expect(Value.Check(ErrorBody, batch)).toBe(true);
});
