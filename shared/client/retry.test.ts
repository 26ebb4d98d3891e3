import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import type { Failure } from "./errors.ts";
import { BACKOFF_BASE_MS, BACKOFF_CAP_MS, leavesOutcomeUnknown, retryWaitMs } from "./retry.ts";

const refused = (
  status: number,
  code = "unexpected_answer",
  retryAfterSeconds: number | null = null,
): Failure => ({
  kind: "refused",
  refusal: {
    code,
    status,
    retryAfterSeconds,
    message: "No.",
    requestId: null,
    param: null,
    details: [],
    rateLimit: null,
  },
});

const tries = fc.integer({ min: 1, max: 1_000 });
const chance = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

describe("the wait before another try", () => {
  test("is anything up to a bound that doubles with every try, and never longer than the cap", () => {
    fc.assert(
      fc.property(tries, chance, (triesMade, random) => {
        const waitMs = retryWaitMs({ kind: "unanswered", cause: null }, triesMade, random) ?? -1;
        expect(waitMs).toBeGreaterThanOrEqual(0);
        expect(waitMs).toBeLessThanOrEqual(BACKOFF_CAP_MS);
        expect(waitMs).toBeLessThanOrEqual(BACKOFF_BASE_MS * 2 ** (triesMade - 1));
        expect(waitMs).toBeCloseTo(
          random * Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** (triesMade - 1)),
          6,
        );
      }),
    );
  });

  test("is at least what a refused request was told, and at most a backoff more", () => {
    fc.assert(
      fc.property(
        tries,
        chance,
        fc.nat(100_000),
        fc.constantFrom(429, 503),
        (triesMade, random, seconds, status) => {
          const waitMs = retryWaitMs(refused(status, "any", seconds), triesMade, random);
          const spreadMs = (waitMs ?? -1) - seconds * 1_000;
          expect(spreadMs).toBeGreaterThanOrEqual(0);
          expect(spreadMs).toBeLessThanOrEqual(BACKOFF_CAP_MS);
        },
      ),
    );
  });

  test.each([
    [429, "rate_limit_exceeded", 250],
    [429, "unexpected_answer", 250],
    [500, "internal_error", 250],
    [503, "service_unavailable", 250],
    [502, "unexpected_answer", 250],
    [504, "unexpected_answer", 250],
    [599, "unexpected_answer", 250],
    [408, "unexpected_answer", 250],
    [408, "request_timeout", 250],
    [200, "unexpected_answer", 250],
    [429, "quota_exceeded", null],
    [429, "a_code_of_next_year", 250],
    [400, "invalid_request", null],
    [401, "unauthorized", null],
    [403, "plan_limit_exceeded", null],
    [404, "resource_not_found", null],
    [409, "idempotency_conflict", null],
    [413, "payload_too_large", null],
    [418, "a_code_of_next_year", null],
    [302, "unexpected_answer", null],
    [0, "unexpected_answer", null],
  ] as const)("after %i %s is %p", (status, code, waitMs) => {
    expect(retryWaitMs(refused(status, code), 1, 0.5)).toBe(waitMs);
  });
});

describe("the outcome", () => {
  test("is known after a refusal alone", () => {
    expect(leavesOutcomeUnknown({ kind: "unanswered", cause: null })).toBe(true);
    expect(leavesOutcomeUnknown({ kind: "timed_out", timeoutMs: 1 })).toBe(true);
    for (const status of [200, 201, 299, 408, 500, 503, 599]) {
      expect([status, leavesOutcomeUnknown(refused(status))]).toEqual([status, true]);
    }
    for (const status of [0, 302, 400, 404, 409, 429, 499]) {
      expect([status, leavesOutcomeUnknown(refused(status))]).toEqual([status, false]);
    }
    expect(leavesOutcomeUnknown(refused(408, "request_timeout"))).toBe(false);
  });
});
