import { expect, test } from "bun:test";
import fc from "fast-check";
import {
  billingMonthOf,
  daysOfMonth,
  effectiveDefaultRegion,
  isBillingMonth,
  isRegionAllowed,
  limitsOf,
  monthEndsAt,
  monthRunsMax,
  monthStartsAt,
  overageRuns,
  PLAN_TERMS,
  retainedSince,
} from "./plan.ts";

const at = (text: string) => Date.parse(text);

test("the plans are those of the contract", () => {
  const rows = Object.entries(PLAN_TERMS).map(([plan, terms]) => [
    plan,
    terms.requestsPerMinute,
    terms.concurrency,
    terms.schedules,
    terms.runsIncluded,
    terms.retentionDays,
  ]);
  expect(rows).toEqual([
    ["hobby", 60, 10, 10, 10_000, 3],
    ["pro", 600, 100, 1_000, 250_000, 30],
    ["scale", 3_000, 500, 5_000, 5_000_000, 90],
    ["enterprise", 10_000, 2_000, 50_000, 50_000_000, 365],
  ]);
});

test("an override stands in place of the plan's own limit, and only of that one", () => {
  const none = { requestsPerMinuteOverride: null, concurrencyOverride: null, schedulesOverride: null };
  expect(limitsOf({ plan: "hobby", ...none })).toEqual({
    requestsPerMinute: 60,
    concurrency: 10,
    schedules: 10,
  });
  expect(limitsOf({ plan: "hobby", ...none, concurrencyOverride: 1 }).concurrency).toBe(1);
  expect(limitsOf({ plan: "pro", ...none, requestsPerMinuteOverride: 7 })).toEqual({
    requestsPerMinute: 7,
    concurrency: 100,
    schedules: 1_000,
  });
  expect(limitsOf({ plan: "pro", ...none, schedulesOverride: 0 }).schedules).toBe(0);
});

test("hobby is limited to us-east, and a default that it no longer allows counts as us-east", () => {
  expect(isRegionAllowed("hobby", "us-east")).toBe(true);
  expect(isRegionAllowed("hobby", "us-west")).toBe(false);
  expect(isRegionAllowed("pro", "ap-southeast")).toBe(true);
  expect(effectiveDefaultRegion("hobby", "eu-central")).toBe("us-east");
  expect(effectiveDefaultRegion("scale", "eu-central")).toBe("eu-central");
});

test("a hobby month has 10,000 runs; paid plans go on and pay", () => {
  expect(monthRunsMax("hobby")).toBe(10_000);
  expect(monthRunsMax("pro")).toBeNull();
  expect(overageRuns("hobby", 10_001)).toBe(0);
  expect(overageRuns("pro", 250_000)).toBe(0);
  expect(overageRuns("pro", 250_001)).toBe(1);
});

test("retention reaches back as many days as the plan says", () => {
  expect(retainedSince("hobby", at("2026-03-04T12:00:00Z"))).toBe(at("2026-03-01T12:00:00Z"));
});

test("a billing month is a UTC month", () => {
  expect(billingMonthOf(at("2026-11-30T23:59:59.999Z"))).toBe("2026-11");
  expect(billingMonthOf(at("2026-12-01T00:00:00Z"))).toBe("2026-12");
  expect(monthEndsAt("2026-12")).toBe(at("2027-01-01T00:00:00Z"));
  expect(monthEndsAt("2028-02")).toBe(at("2028-03-01T00:00:00Z"));
  for (const bad of ["2026-13", "2026-00", "2026-1", "202-11", "2026-11 ", "2026-11-01", ""]) {
    expect(isBillingMonth(bad)).toBe(false);
  }
  expect(isBillingMonth("2026-11")).toBe(true);
});

test("every instant lies in its month", () => {
  fc.assert(
    fc.property(fc.integer({ min: 0, max: at("2100-01-01T00:00:00Z") }), (now) => {
      const month = billingMonthOf(now);
      expect(now).toBeGreaterThanOrEqual(monthStartsAt(month));
      expect(now).toBeLessThan(monthEndsAt(month));
    }),
  );
});

test("a month is reported day by day up to today", () => {
  expect(daysOfMonth("2026-02", at("2026-11-21T00:00:00Z"))).toHaveLength(28);
  expect(daysOfMonth("2028-02", at("2028-11-21T00:00:00Z")).at(-1)).toBe("2028-02-29");
  expect(daysOfMonth("2026-11", at("2026-11-03T00:00:00Z"))).toEqual([
    "2026-11-01",
    "2026-11-02",
    "2026-11-03",
  ]);
  expect(daysOfMonth("2026-11", at("2026-11-02T23:59:59.999Z"))).toEqual(["2026-11-01", "2026-11-02"]);
  expect(daysOfMonth("2026-12", at("2026-11-30T00:00:00Z"))).toEqual([]);
});
