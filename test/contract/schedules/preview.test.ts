import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { SchedulePreview, Schedules } from "../../../shared/client/index.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newSchedule, nextNewYear } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
let schedules: Schedules;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  schedules = clientOf(gateway, project.production).schedules;
});
afterAll(() => gateway.stop());

const post = (body: object, key = project.production) =>
  gateway.call("POST", "/v2/schedules/preview", { key, body });

/** The local times of the firings, marked where a clock change moved one. */
const shown = ({ firings }: SchedulePreview) =>
  firings.map(({ local_time, moved_dst }) => `${local_time}${moved_dst ? " moved" : ""}`);

describe("POST /v2/schedules/preview", () => {
  test("is open to a key that may only read", async () => {
    const { key } = await gateway.addKey(project, { scope: "read" });
    expect((await post({ cron: "@daily" }, key)).status).toBe(200);
    expect((await post({ cron: "@daily", from: "2027-03-27t00:00:00+0200" }, key)).text).toContain(
      '"at":"2027-03-27T00:00:00.000Z"',
    );
  });

  test("echoes overlap and spread where they are given, judges them, and leaves the instants", async () => {
    const plain = await schedules.preview({ cron: "@yearly" });
    for (const name of ["overlap", "spread_seconds"]) expect(plain).not.toHaveProperty(name);
    const given = await schedules.preview({ cron: "@yearly", overlap: "allow", spread_seconds: 0 });
    expect(given).toEqual({ ...plain, overlap: "allow", spread_seconds: 0 });
    const spread = await schedules.preview({ cron: "@yearly", overlap: "replace", spread_seconds: 3_600 });
    expect(spread.firings).toEqual(plain.firings);
    readRefusal(await post({ cron: "@daily", overlap: "no" }), "invalid_request", "overlap");
    const wide = await post({ cron: "*/5 * * * *", spread_seconds: 151 });
    expect(readRefusal(wide, "invalid_request", "spread_seconds").message).toContain("300 s");
  });

  test("shows the next five firings from now on, and the other fields as a creation would store them", async () => {
    const preview = await schedules.preview({ cron: " @yearly ", timezone: "utc" });
    expect(preview).toMatchObject({ cron: "@yearly", timezone: "UTC", min_gap_seconds: 365 * 86_400 });
    expect(preview.firings).toHaveLength(5);
    expect(preview.firings[0]).toEqual({
      at: nextNewYear(),
      local_time: nextNewYear().replace(".000Z", "+00:00"),
      moved_dst: false,
    });
  });

  test.each([
    [
      "what the clocks skip is moved by the gap",
      { cron: "30 2 * * *", timezone: "Europe/Berlin", from: "2027-03-27T00:00:00Z", count: 3 },
      ["2027-03-27T02:30:00+01:00", "2027-03-28T03:30:00+02:00 moved", "2027-03-29T02:30:00+02:00"],
    ],
    [
      "what the clocks repeat fires the first time",
      { cron: "30 2 * * *", timezone: "Europe/Berlin", from: "2027-10-30T00:00:00+02:00", count: 3 },
      ["2027-10-30T02:30:00+02:00", "2027-10-31T02:30:00+02:00", "2027-11-01T02:30:00+01:00"],
    ],
    [
      "with a star for the hour it fires whenever the clocks show it",
      { cron: "30 * * * *", timezone: "Europe/Berlin", from: "2027-10-31T01:45:00+02:00", count: 3 },
      ["2027-10-31T02:30:00+02:00", "2027-10-31T02:30:00+01:00", "2027-10-31T03:30:00+01:00"],
    ],
    [
      "half an hour too",
      { cron: "15 2 * * *", timezone: "Australia/Lord_Howe", from: "2027-10-02T00:00:00Z", count: 2 },
      ["2027-10-03T02:45:00+11:00 moved", "2027-10-04T02:15:00+11:00"],
    ],
  ])("shows firings over clock changes: %s", async (_, timetable, expected) => {
    expect(shown(await schedules.preview(timetable))).toEqual(expected);
  });

  test("begins after `from`, also a past one, and shows as many firings as asked", async () => {
    const from = new Date("2020-02-29T23:59:30Z");
    const preview = await schedules.preview({ cron: "30,0 59,0 23,0 29,1 2,3 *", from, count: 2 });
    expect(preview.firings.map(({ at }) => at)).toEqual([
      "2020-03-01T00:00:00.000Z",
      "2020-03-01T00:00:30.000Z",
    ]);
    const { firings } = await schedules.preview({ cron: "*/30 * * * * *", from, count: 1_000 });
    expect(firings).toHaveLength(1_000);
    expect(firings[999]?.at).toBe(new Date(from.getTime() + 30_000_000).toISOString());
    expect((await schedules.preview({ cron: "@daily", from: "9999-12-30T00:00:00Z" })).firings).toHaveLength(
      1,
    );
  });

  test("shows what a schedule then does", async () => {
    for (const timetable of [
      { cron: "0 9 * * MON#1", timezone: "America/New_York" },
      { cron: "0 0 L * *", timezone: "Pacific/Apia" },
      { cron: "15 3 29 2 *" },
    ]) {
      const { firings } = await schedules.preview(timetable);
      const { next_run_at, id } = await schedules.create(newSchedule(timetable));
      expect(next_run_at).toBe(firings[0]?.at ?? "none");
      await schedules.delete(id);
    }
  });

  test.each([
    ["*/30 * * * * *", 30],
    ["* * * * *", 60],
    ["0 0 1 * *", 28 * 86_400],
    ["0 0,23 * * *", 3_600],
  ])("answers the smallest gap of %s", async (cron, seconds) => {
    expect((await schedules.preview({ cron })).min_gap_seconds).toBe(seconds);
  });

  test("answers whether the plan would allow one more schedule", async () => {
    const hobby = await gateway.addProject("hobby");
    const mine = clientOf(gateway, hobby.production).schedules;
    const planOf = async (key: string) =>
      (await clientOf(gateway, key).schedules.preview({ cron: "@daily" })).plan;
    for (let n = 0; n < 9; n++) await mine.create(newSchedule());
    expect(await planOf(hobby.development)).toEqual({ active_schedules: 9, limit: 10, allowed: true });
    const { id } = await mine.create(newSchedule());
    expect(await planOf(hobby.development)).toEqual({ active_schedules: 10, limit: 10, allowed: false });
    await mine.pause(id);
    expect(await planOf(hobby.production)).toMatchObject({ active_schedules: 9, allowed: true });
  });

  test("creates nothing", async () => {
    const before = await gateway.countRows();
    await schedules.preview({ cron: "@daily" });
    expect(await gateway.countRows()).toEqual(before);
  });
});

describe("POST /v2/schedules/preview refuses", () => {
  const cases: [object, ErrorCode, string][] = [
    [{}, "invalid_request", "cron"],
    [{ cron: null }, "invalid_request", "cron"],
    [{ cron: "" }, "invalid_cron_expression", "cron"],
    [{ cron: "0 0 30 2 *" }, "invalid_cron_expression", "cron"],
    [{ cron: "0,10 * * * * *" }, "interval_too_short", "cron"],
    [{ cron: "@daily", timezone: null }, "invalid_request", "timezone"],
    [{ cron: "@daily", timezone: "PST" }, "invalid_cron_expression", "timezone"],
    [{ cron: "@daily", from: null }, "invalid_request", "from"],
    [{ cron: "@daily", from: "2027-01-01" }, "invalid_request", "from"],
    [{ cron: "@daily", from: "2027-01-01T00:00:00" }, "invalid_request", "from"],
    [{ cron: "@daily", from: 1_800_000_000 }, "invalid_request", "from"],
    [{ cron: "@daily", count: 0 }, "invalid_request", "count"],
    [{ cron: "@daily", count: 1_001 }, "invalid_request", "count"],
    [{ cron: "@daily", count: 1.5 }, "invalid_request", "count"],
    [{ cron: "@daily", count: "5" }, "invalid_request", "count"],
    [{ cron: "@daily", name: "x" }, "invalid_request", "name"],
    [{ cron: "@daily", payload: {} }, "invalid_request", "payload"],
  ];
  test.each(cases)("%j", async (body, code, param) => {
    readRefusal(await post(body), code, param);
  });

  test("a key that may only work with jobs", async () => {
    const { key } = await gateway.addKey(project, { scope: "jobs" });
    readRefusal(await post({ cron: "@daily" }, key), "insufficient_scope");
  });
});
