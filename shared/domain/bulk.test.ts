import { describe, expect, test } from "bun:test";
import {
  BULK_STATUSES,
  type BulkAction,
  type BulkFilter,
  checkInstants,
  decideAbort,
  isBulkOver,
  PAGES_PER_SECOND,
  PER_SECOND_BOUNDS,
  pagesOf,
  readSelection,
} from "./bulk.ts";
import { ApiError } from "./errors.ts";

function paramOf(act: () => unknown): string | undefined {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError && error.code === "invalid_request") return error.param;
    throw error;
  }
  return "nothing was refused";
}

const SCHEDULE = "sch_01arz3ndektsv4rrffq69g5fav";
const NOTHING = {
  ...{
    status: null,
    region: null,
    tag: null,
    schedule: { kind: "any" },
    createdAfter: null,
    createdBefore: null,
  },
  ...{ targetHost: null, errorContains: null, responseStatus: null },
};

describe("a filter", () => {
  test("of all jobs has no bounds", () => {
    expect(readSelection("cancel", { all: true })).toEqual({ action: "cancel", ...NOTHING } as never);
    expect(readSelection("retry", { all: true })).toEqual({ action: "retry", ...NOTHING } as never);
  });

  test("cuts instants to the millisecond, and spells a host as targets' hosts are", () => {
    const filter: BulkFilter = {
      created_after: "2026-01-01T00:00:00.1239+01:00",
      created_before: "2026-01-02T00:00:00Z",
      target_host: "API.Example.COM.",
    };
    expect(readSelection("cancel", filter)).toMatchObject({
      createdAfter: Date.UTC(2025, 11, 31, 23, 0, 0, 123),
      createdBefore: Date.UTC(2026, 0, 2),
      targetHost: "api.example.com",
    });
  });

  test("by a schedule that cannot be one means no job, and for a backfill it is refused", () => {
    expect(readSelection("cancel", { schedule_id: "x" })).toMatchObject({ schedule: { kind: "none" } });
    const backfill = { schedule_id: "x", from: "2026-01-01T00:00:00Z", to: "2026-01-02T00:00:00Z" };
    expect(paramOf(() => readSelection("backfill", backfill))).toBe("filter.schedule_id");
  });

  test.each<[BulkAction, BulkFilter, string]>([
    ["cancel", {}, "filter"],
    ["retry", {}, "filter"],
    ["backfill", {}, "filter.schedule_id"],
    ["cancel", { all: false }, "filter.all"],
    ["cancel", { all: true, status: "queued" }, "filter.all"],
    ["cancel", { all: false, status: "queued" }, "filter.all"],
    ["backfill", { all: true }, "filter.all"],
    ["cancel", { error_contains: "a" }, "filter.error_contains"],
    ["cancel", { response_status: 500 }, "filter.response_status"],
    ["retry", { from: "2026-01-01T00:00:00Z" }, "filter.from"],
    ["backfill", { schedule_id: SCHEDULE, tag: "a" }, "filter.tag"],
    ["backfill", { schedule_id: SCHEDULE, from: "2026-01-01T00:00:00Z" }, "filter.to"],
    ["backfill", { schedule_id: SCHEDULE, to: "2026-01-01T00:00:00Z" }, "filter.from"],
    ["cancel", { status: "failed" }, "filter.status"],
    ["cancel", { status: "canceled" }, "filter.status"],
    ["retry", { status: "running" }, "filter.status"],
  ])("to %s by %p is refused for %s", (action, filter, param) => {
    expect(paramOf(() => readSelection(action, filter))).toBe(param);
  });

  test("takes a status that its action takes", () => {
    expect(readSelection("retry", { status: "failed" })).toMatchObject({ status: "failed" });
    for (const status of ["queued", "running"] as const)
      expect(readSelection("cancel", { status })).toMatchObject({ status });
  });
});

test("instants end before they begin, or in the future: neither is taken", () => {
  const range = (fromAt: number, toAt: number) => ({
    action: "backfill" as const,
    scheduleId: SCHEDULE,
    fromAt,
    toAt,
  });
  expect(paramOf(() => checkInstants(range(5, 5), 10))).toBe("filter.from");
  expect(paramOf(() => checkInstants(range(5, 11), 10))).toBe("filter.to");
  checkInstants(range(5, 10), 10);
});

test("only what is not over can be aborted", () => {
  const over = BULK_STATUSES.filter(isBulkOver);
  expect(over).toEqual(["counted", "done", "aborted"]);
  for (const status of BULK_STATUSES) {
    if (over.includes(status)) expect(() => decideAbort({ status })).toThrow(ApiError);
    else decideAbort({ status });
  }
});

test("the pages of a second hold a second's members and no page more, and there are many only if they have ten members", () => {
  for (let perSecond = PER_SECOND_BOUNDS.min; perSecond <= PER_SECOND_BOUNDS.max; perSecond++) {
    const { membersMax, everyMs } = pagesOf(perSecond);
    const pages = Math.round(1_000 / everyMs);
    expect(membersMax * pages).toBeGreaterThanOrEqual(perSecond);
    expect((membersMax - 1) * pages).toBeLessThan(perSecond);
    expect(pages).toBeGreaterThanOrEqual(PAGES_PER_SECOND.min);
    expect(pages).toBeLessThanOrEqual(PAGES_PER_SECOND.max);
    if (pages > PAGES_PER_SECOND.min) expect(membersMax).toBeGreaterThanOrEqual(10);
  }
  expect(pagesOf(50)).toEqual({ membersMax: 5, everyMs: 100 });
  expect(pagesOf(1_000)).toEqual({ membersMax: 40, everyMs: 40 });
});
