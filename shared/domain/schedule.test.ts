import { describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createIdSource, SCHEDULE_PREFIX } from "./ids.ts";
import {
  CATCH_UP_MS,
  type Changeable,
  checkSpread,
  decideFiring,
  decideScheduleChange,
  expectedStretches,
  type PastTimetable,
  readTimetable,
  spreadMsOf,
} from "./schedule.ts";

const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const at = (text: string) => Date.parse(`2026-11-21T${text}Z`);
const iso = (ms: number | null) => (ms === null ? null : new Date(ms).toISOString());
const minutely = readTimetable("* * * * *", "UTC");
const hourly = readTimetable("0 * * * *", "UTC");

describe("what fires when a schedule's turn has come", () => {
  const decide = (timetable: typeof minutely, nextRunAt: number, now: number) => {
    const { firedFor, thenAt } = decideFiring(timetable, nextRunAt, now);
    return [iso(firedFor), iso(thenAt)];
  };

  test("in time: the instant itself, and then the next one", () => {
    expect(decide(minutely, at("10:00:00"), at("10:00:00.004"))).toEqual([
      "2026-11-21T10:00:00.000Z",
      "2026-11-21T10:01:00.000Z",
    ]);
  });

  test("by a clock that is behind: never before its time, and not twice", () => {
    expect(decide(minutely, at("10:00:00"), at("09:59:59.990"))).toEqual([
      "2026-11-21T10:00:00.000Z",
      "2026-11-21T10:01:00.000Z",
    ]);
  });

  test("after an outage: the latest one alone", () => {
    expect(decide(minutely, at("09:00:00"), at("10:00:30"))).toEqual([
      "2026-11-21T10:00:00.000Z",
      "2026-11-21T10:01:00.000Z",
    ]);
  });

  test("after an outage: the latest one only if it is at most 10 minutes late", () => {
    expect(decide(hourly, at("08:00:00"), at("10:10:00"))[0]).toBe("2026-11-21T10:00:00.000Z");
    expect(decide(hourly, at("08:00:00"), at("10:10:00.001"))).toEqual([null, "2026-11-21T11:00:00.000Z"]);
    expect(CATCH_UP_MS).toBe(10 * MINUTE_MS);
  });

  test("after an outage of years: in as few steps as after one of minutes", () => {
    expect(decide(minutely, Date.parse("2001-01-01T00:00:00Z"), at("10:00:30"))[0]).toBe(
      "2026-11-21T10:00:00.000Z",
    );
  });
});

describe("what an outage has cost a schedule", () => {
  const missed = (timetable: typeof minutely, nextRunAt: number, now: number) => {
    const stretch = decideFiring(timetable, nextRunAt, now).missed;
    return stretch && [iso(stretch.fromAt), iso(stretch.toAt), stretch.count];
  };

  test("is nothing where the next instant fires, be it late", () => {
    expect(missed(minutely, at("10:00:00"), at("10:00:00.004"))).toBeNull();
    expect(missed(minutely, at("10:00:00"), at("09:59:59.990"))).toBeNull();
    expect(missed(hourly, at("10:00:00"), at("10:09:59"))).toBeNull();
  });

  test("are the instants before the one that fires", () => {
    expect(missed(minutely, at("10:00:00"), at("10:01:00"))).toEqual([
      ...["2026-11-21T10:00:00.000Z", "2026-11-21T10:00:00.000Z", 1],
    ]);
    expect(missed(minutely, at("09:00:00"), at("10:00:30"))).toEqual([
      ...["2026-11-21T09:00:00.000Z", "2026-11-21T09:59:00.000Z", 60],
    ]);
  });

  test("are all of them where none fires", () => {
    expect(missed(hourly, at("08:00:00"), at("10:10:00.001"))).toEqual([
      ...["2026-11-21T08:00:00.000Z", "2026-11-21T10:00:00.000Z", 3],
    ]);
  });

  test("is known after years at once", () => {
    const halfMinutely = readTimetable("*/30 * * * * *", "UTC");
    expect(missed(halfMinutely, Date.parse("2001-01-01T00:00:00Z"), at("10:00:30"))?.[2]).toBe(
      (at("10:00:30") - Date.parse("2001-01-01T00:00:00Z")) / 30_000,
    );
  });
});

describe("a change", () => {
  const schedule: Changeable = {
    name: "hourly",
    cron: "0 * * * *",
    timezone: "UTC",
    targetUrl: "https://target.example/hook",
    payload: "{}",
    retryPolicy: { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 },
    overlap: null,
    spreadSeconds: null,
    paused: false,
    tags: null,
    flow: null,
  };
  const now = at("10:30:00");
  const decide = (schedule: Changeable, change: Partial<Changeable>, activeCount = 1) =>
    decideScheduleChange({ ...schedule, activeCount }, change, { now, activeMax: 2 });

  test("of nothing that decides when it fires leaves the next firing as it is", () => {
    for (const change of [{}, { cron: " 0 * * * * " }, { timezone: "utc" }, { paused: false }]) {
      expect(decide(schedule, change)).toEqual({
        ...schedule,
        nextRunAt: undefined,
      });
    }
  });

  test("of the timetable begins anew from now", () => {
    expect(decide(schedule, { cron: "15 * * * *" }).nextRunAt).toBe(at("11:15:00"));
    expect(decide(schedule, { timezone: "asia/kolkata" })).toMatchObject({
      timezone: "Asia/Kolkata",
      nextRunAt: at("11:30:00"),
    });
  });

  test("pauses and resumes; a paused one may be changed and stays paused", () => {
    expect(decide(schedule, { paused: true })).toMatchObject({ nextRunAt: null });
    const paused = { ...schedule, paused: true };
    expect(decide(paused, { paused: false })).toMatchObject({
      nextRunAt: at("11:00:00"),
    });
    expect(decide(paused, { cron: "15 * * * *" })).toMatchObject({
      nextRunAt: null,
      paused: true,
    });
  });

  test("replaces the tags, and an empty list takes them away; left out they stay", () => {
    const tagged = { ...schedule, tags: ["a"] };
    expect(decide(tagged, {}).tags).toEqual(["a"]);
    expect(decide(tagged, { tags: ["b", "c"] })).toEqual({
      ...schedule,
      tags: ["b", "c"],
      nextRunAt: undefined,
    });
    expect(decide(tagged, { tags: [] }).tags).toBeNull();
    expect(() => decide(tagged, { tags: ["b", "b"] })).toThrow("tags[1] is given twice.");
    expect(() => decide(tagged, { tags: ["b c"] })).toThrow("tags[0] must be");
  });

  test("to a timetable that may not be is refused, by what the whole would be", () => {
    expect(() => decide(schedule, { cron: "0,10 * * * * *" })).toThrow("30 seconds");
    expect(() => decide(schedule, { timezone: "PST" })).toThrow("timezone");
  });

  test("of name, target, policy, overlap or spread leaves the next firing as it is", () => {
    const changes: Partial<Changeable>[] = [
      { name: "other" },
      { targetUrl: "https://other.example/" },
      { retryPolicy: { maxAttempts: 2, baseSeconds: 1, capSeconds: 1 } },
      { overlap: "skip" },
      { overlap: null },
      { spreadSeconds: 1_800 },
    ];
    for (const change of changes) {
      expect(decide(schedule, change)).toEqual({ ...schedule, ...change, nextRunAt: undefined });
    }
  });

  test("to a spread that is too much for the timetable is refused, whichever of the two it changes", () => {
    expect(() => decide(schedule, { spreadSeconds: 1_801 })).toThrow("half of the smallest gap");
    const spread = { ...schedule, spreadSeconds: 1_800 };
    expect(() => decide(spread, { cron: "*/30 * * * *" })).toThrow("half of the smallest gap");
    expect(decide(spread, { cron: "*/30 * * * *", spreadSeconds: 900 }).spreadSeconds).toBe(900);
  });

  test("to one active schedule too many is refused; one that is active may be changed, and paused", () => {
    const paused = { ...schedule, paused: true };
    expect(() => decide(paused, { paused: false }, 2)).toThrow("limit of 2 active schedules");
    expect(decide(paused, { paused: false }, 1).paused).toBe(false);
    expect(decide(paused, { cron: "15 * * * *" }, 2).paused).toBe(true);
    expect(decide(schedule, { cron: "15 * * * *" }, 2).nextRunAt).toBe(at("11:15:00"));
    expect(decide(schedule, { paused: true }, 3).paused).toBe(true);
  });
});

describe("a spread", () => {
  const ids = createIdSource((count) => randomBytes(count));
  const newIds = (count: number) => Array.from({ length: count }, () => ids.next(SCHEDULE_PREFIX, 0));

  test("is always the same for the same schedule, whole milliseconds, and at most what was asked", () => {
    for (const id of newIds(1_000)) {
      expect(spreadMsOf(id, null)).toBeNull();
      expect(spreadMsOf(id, 0)).toBe(0);
      const ms = spreadMsOf(id, 3_600) ?? -1;
      expect([Number.isInteger(ms), ms >= 0, ms <= 3_600_000]).toEqual([true, true, true]);
      expect(spreadMsOf(id, 3_600)).toBe(ms);
    }
  });

  test("parts the schedules of one instant evenly, although their ids are of one millisecond", () => {
    const [count, parts] = [10_000, 20];
    const perPart = new Array<number>(parts).fill(0);
    for (const id of newIds(count)) {
      const part = Math.floor(((spreadMsOf(id, 3_600) ?? 0) / 3_600_001) * parts);
      perPart[part] = (perPart[part] ?? 0) + 1;
    }
    // Ten standard deviations of a fair share.
    const share = count / parts;
    for (const found of perPart) expect(Math.abs(found - share)).toBeLessThan(10 * Math.sqrt(share));
  });

  test("is at most half of the smallest gap, whatever clock changes do to it", () => {
    const allows = (cron: string, seconds: number) => {
      try {
        checkSpread(seconds, readTimetable(cron, "Europe/Berlin"));
        return true;
      } catch (error) {
        expect(error).toMatchObject({ code: "invalid_request", param: "spread_seconds" });
        return false;
      }
    };
    for (const [cron, most] of [
      ["0,30 * * * * *", 15],
      ["0,15 * * * * *", 7],
      ["*/7 * * * *", 120],
      // In spring the clocks skip the first of these. It then fires at 03:30, one hour before the second.
      ["30 2,4 * * *", 3_600],
    ] as const) {
      expect([cron, allows(cron, most), allows(cron, most + 1)]).toEqual([cron, true, false]);
    }
  });
});

describe("the instants of a schedule's timetables", () => {
  const timetable = (since: string, wish: Partial<PastTimetable> = {}): PastTimetable => ({
    since: at(since),
    supersededAt: null,
    paused: false,
    cron: "0 * * * *",
    timezone: "UTC",
    ...wish,
  });
  const instantsOf = (timetables: PastTimetable[], fromAt: number, toAt: number) =>
    [...expectedStretches(timetables.toReversed(), fromAt, toAt)].flatMap(({ instants }) => [...instants]);
  const list = (timetables: PastTimetable[], from: string, to: string) =>
    instantsOf(timetables, at(from), at(to)).map(
      (instant) => `${new Date(instant.at).toISOString().slice(11, 16)}${instant.paused ? " paused" : ""}`,
    );

  test("are those after its creation, newest first, both ends of the window included", () => {
    expect(list([timetable("07:30:00")], "00:00:00", "10:00:00")).toEqual(["10:00", "09:00", "08:00"]);
    expect(list([timetable("00:30:00")], "08:00:00", "10:59:59")).toEqual(["10:00", "09:00", "08:00"]);
  });

  test("go over from one timetable to the next at the change", () => {
    const changed = timetable("09:30:00", { cron: "20,40 * * * *", supersededAt: at("10:00:00") });
    expect(list([timetable("07:30:00"), changed], "00:00:00", "10:30:00")).toEqual([
      "10:20",
      "09:40",
      "09:00",
      "08:00",
    ]);
  });

  test("are marked while it is paused, until it is resumed", () => {
    const paused = timetable("08:30:00", { paused: true, supersededAt: at("09:00:00") });
    const resumed = timetable("10:30:00");
    expect(list([timetable("07:30:00"), paused, resumed], "00:00:00", "11:00:00")).toEqual([
      "11:00",
      "10:00 paused",
      "09:00 paused",
      "08:00",
    ]);
  });

  test("that were due and overtaken by a change: skipped by a pause, unknown to another timetable", () => {
    const overtaken = { supersededAt: at("09:00:00") };
    const paused = timetable("09:00:00.500", { paused: true, ...overtaken });
    expect(list([timetable("07:30:00"), paused], "00:00:00", "09:59:00")).toEqual(["09:00 paused", "08:00"]);
    const changed = timetable("09:00:00.500", { cron: "20 * * * *", ...overtaken });
    expect(list([timetable("07:30:00"), changed], "00:00:00", "09:59:00")).toEqual(["09:20", "08:00"]);
  });

  test("that the clocks skip are shown where they fire", () => {
    const berlin: PastTimetable = {
      since: Date.parse("2026-03-28T00:00:00Z"),
      supersededAt: null,
      paused: false,
      cron: "30 2 * * *",
      timezone: "Europe/Berlin",
    };
    const end = Date.parse("2026-03-29T12:00:00Z");
    const instants = instantsOf([berlin], end - 36 * HOUR_MS, end);
    expect(instants.map(({ at, movedByClockChange }) => [iso(at), movedByClockChange])).toEqual([
      ["2026-03-29T01:30:00.000Z", true],
      ["2026-03-28T01:30:00.000Z", false],
    ]);
  });
});
