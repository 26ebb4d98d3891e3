import { expect, test } from "bun:test";
import fc from "fast-check";
import { parseRetryAfterMs, retryCeilingMs, retryDelayMs } from "./backoff.ts";

const policy = { maxAttempts: 25, baseSeconds: 10, capSeconds: 3_600 };
const lowest = () => 0;
const highest = () => 1 - Number.EPSILON / 2;

test("the ceiling doubles with each attempt up to the cap", () => {
  const ceilings = [1, 2, 3, 8, 9, 10, 25].map((attempt) => retryCeilingMs(policy, attempt) / 1_000);
  expect(ceilings).toEqual([10, 20, 40, 1_280, 2_560, 3_600, 3_600]);
});

test("the jitter reaches both ends of its range and never goes beyond", () => {
  expect(retryDelayMs(policy, 1, null, lowest)).toBe(0);
  expect(retryDelayMs(policy, 1, null, highest)).toBe(10_000);
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 86_400 }),
      fc.integer({ min: 1, max: 86_400 }),
      fc.integer({ min: 1, max: 60 }),
      fc.option(fc.integer({ min: 0, max: 1e13 })),
      fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true }),
      (baseSeconds, capSeconds, attempt, retryAfterMs, chance) => {
        const tried = { maxAttempts: 25, baseSeconds, capSeconds };
        const delayMs = retryDelayMs(tried, attempt, retryAfterMs, () => chance);
        expect(Number.isInteger(delayMs)).toBe(true);
        expect(delayMs).toBeGreaterThanOrEqual(Math.min(retryAfterMs ?? 0, capSeconds * 1_000));
        expect(delayMs).toBeLessThanOrEqual(capSeconds * 1_000);
        if (retryAfterMs === null) expect(delayMs).toBeLessThanOrEqual(retryCeilingMs(tried, attempt));
      },
    ),
  );
});

test("Retry-After counts where it is longer, and only up to the cap", () => {
  expect(retryDelayMs(policy, 1, 60_000, highest)).toBe(60_000);
  expect(retryDelayMs(policy, 1, 5_000, highest)).toBe(10_000);
  expect(retryDelayMs(policy, 1, 3_600_001, lowest)).toBe(3_600_000);
  expect(retryDelayMs(policy, 1, Number.POSITIVE_INFINITY, lowest)).toBe(3_600_000);
});

test("Retry-After is read as seconds or as a date in any of the three forms of RFC 9110", () => {
  const now = Date.parse("1994-11-06T08:49:30Z");
  const golden: [string, number | null][] = [
    ["0", 0],
    ["120", 120_000],
    [" 7 ", 7_000],
    ["Sun, 06 Nov 1994 08:49:37 GMT", 7_000],
    ["Sunday, 06-Nov-94 08:49:37 GMT", 7_000],
    ["Sun Nov  6 08:49:37 1994", 7_000],
    ["Sun, 06 Nov 1994 08:49:00 GMT", 0],
    // 2045 would be more than 50 years ahead, so the year is 1945.
    ["Sunday, 06-Nov-45 08:49:37 GMT", 0],
    ["-1", null],
    ["1.5", null],
    ["", null],
    ["soon", null],
    ["99999999999", 99_999_999_999_000],
    ["9".repeat(400), Number.POSITIVE_INFINITY],
    ["1994-11-06T08:49:37Z", null],
    ["Sun, 06 Nov 1994 25:49:37 GMT", null],
    ["Sun, 06 Nov 1994 08:49:37 CET", null],
  ];
  for (const [header, waitMs] of golden)
    expect([header, parseRetryAfterMs(header, now)]).toEqual([header, waitMs]);
  const in2026 = Date.parse("2026-11-06T08:49:30Z");
  expect(parseRetryAfterMs("Friday, 06-Nov-26 08:49:37 GMT", in2026)).toBe(7_000);
  expect(parseRetryAfterMs("Sunday, 06-Nov-94 08:49:37 GMT", in2026)).toBe(0);
});
