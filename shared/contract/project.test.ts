import { expect, test } from "bun:test";
import { Value } from "@sinclair/typebox/value";
import { ApiError } from "../domain/errors.ts";
import {
  Project,
  type ProjectFacts,
  readProjectUpdate,
  readUsageQuery,
  UsageReport,
  viewProject,
  viewUsage,
} from "./project.ts";

const now = Date.parse("2026-11-03T10:00:00Z");

function paramOf(act: () => unknown): string | undefined {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError && error.code === "invalid_request") return error.param;
    throw error;
  }
  throw new Error("It was not refused.");
}

test("a project object has exactly the documented fields, and the region that its plan allows", () => {
  const facts: ProjectFacts = {
    id: "prj_01arz3ndektsv4rrffq69g5fav",
    name: "Shop",
    plan: "hobby",
    defaultRegion: "us-west",
    apiVersion: "2026-11-01",
    createdAt: now,
    requestsPerMinuteOverride: null,
    concurrencyOverride: 20,
    schedulesOverride: null,
    parksFailingHosts: null,
  };
  const view = viewProject(facts, "production", 17);
  expect(Value.Check(Project, view)).toBe(true);
  expect(view).toEqual({
    id: facts.id,
    name: "Shop",
    plan: "hobby",
    default_region: "us-east",
    limits: { requests_per_minute: 60, concurrency: 20, schedules: 10 },
    usage: { runs_this_period: 17, runs_included: 10_000 },
    api_version: "2026-11-01",
    environment: "production",
    created_at: "2026-11-03T10:00:00.000Z",
  });
});

test("an update holds the given fields and no others", () => {
  expect(readProjectUpdate({}, "pro")).toEqual({});
  expect(readProjectUpdate({ name: "😀".repeat(80) }, "pro")).toEqual({ name: "😀".repeat(80) });
  expect(readProjectUpdate({ default_region: "us-west" }, "pro")).toEqual({ defaultRegion: "us-west" });
  expect(readProjectUpdate({ default_region: "us-east" }, "hobby")).toEqual({ defaultRegion: "us-east" });
  const bad: [unknown, string | undefined][] = [
    [{ name: "x".repeat(81) }, "name"],
    [{ name: " " }, "name"],
    [{ name: null }, "name"],
    [{ default_region: "mars" }, "default_region"],
    [{ default_region: null }, "default_region"],
    [{ plan: "scale" }, "plan"],
    [null, undefined],
    [[], undefined],
  ];
  for (const [value, param] of bad) expect(paramOf(() => readProjectUpdate(value, "pro"))).toBe(param);
  expect(paramOf(() => readProjectUpdate({ default_region: "us-west" }, "hobby"))).toBe("default_region");
});

test("usage is asked for by month, never a future one", () => {
  expect(readUsageQuery("", now)).toEqual({ period: "2026-11", region: null });
  expect(readUsageQuery("period=2026-11", now).period).toBe("2026-11");
  expect(readUsageQuery("period=1999-01&region=us-west", now)).toEqual({
    period: "1999-01",
    region: "us-west",
  });
  for (const period of ["2026-12", "2027-01", "2026-13", "2026-1", "november", ""]) {
    expect(paramOf(() => readUsageQuery(`period=${period}`, now))).toBe("period");
  }
});

test("a usage report has every day that has begun, zeros included", () => {
  const runsByDay = new Map([["2026-11-02", 7]]);
  const view = viewUsage({ period: "2026-11", plan: "pro", runsTotal: 250_007, runsByDay }, now);
  expect(Value.Check(UsageReport, view)).toBe(true);
  expect(view).toEqual({
    period: "2026-11",
    runs_total: 250_007,
    runs_included: 250_000,
    overage_runs: 7,
    by_day: [
      { date: "2026-11-01", runs: 0 },
      { date: "2026-11-02", runs: 7 },
      { date: "2026-11-03", runs: 0 },
    ],
  });
});
