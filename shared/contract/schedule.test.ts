import { expect, test } from "bun:test";
import { Value } from "@sinclair/typebox/value";
import { parseZone } from "../domain/cron/zone.ts";
import { ApiError } from "../domain/errors.ts";
import {
  Firing,
  readFiringListQuery,
  readSchedulePreview,
  SchedulePreview,
  viewFiring,
  viewPreview,
} from "./firing.ts";
import { listParts } from "./list.ts";
import {
  readNewSchedule,
  readScheduleListQuery,
  readSchedulePut,
  readScheduleUpdate,
  Schedule,
  type ScheduleFacts,
  ScheduleList,
  scheduleParts,
} from "./schedule.ts";
import { parseBody } from "./test-support.ts";

const targets = { allowInsecure: false, own: [] };
const bodyOf = (text: string) => parseBody(Buffer.from(text), "member");
const readNew = (text: string) => readNewSchedule(bodyOf(text), targets);
const readUpdate = (text: string) => readScheduleUpdate(bodyOf(text), targets);
const withField = (field: string) =>
  `{"name":"a","cron":"0 0 1 1 *","target_url":"https://example.com/hook",${field}}`;

function refusalOf(act: () => unknown): ApiError {
  try {
    act();
  } catch (error) {
    if (error instanceof ApiError) return error;
    throw error;
  }
  throw new Error("It was not refused.");
}

test("a full request is accepted as it is, and its timetable read", () => {
  const { timetable, ...accepted } =
    readNew(`{"name":"Täglich","cron":" 30 2 * * * ","timezone":"europe/berlin",
    "target_url":"https://example.com/hook","payload":{"n": 9007199254740993},
    "retry_policy":{"max_attempts":25,"base_seconds":2,"cap_seconds":3},"tags":["nightly"]}`);
  expect(accepted).toEqual({
    name: "Täglich",
    cron: "30 2 * * *",
    timezone: "Europe/Berlin",
    targetUrl: "https://example.com/hook",
    payload: '{"n":9007199254740993}',
    retryPolicy: { maxAttempts: 25, baseSeconds: 2, capSeconds: 3 },
    overlap: null,
    spreadSeconds: null,
    tags: ["nightly"],
    flow: null,
  });
  expect([timetable.expression, timetable.zone.name]).toEqual(["30 2 * * *", "Europe/Berlin"]);
});

test("a field that is left out has its default", () => {
  const { timetable, payload, retryPolicy } = readNew(withField('"retry_policy":{"cap_seconds":4}'));
  expect([timetable.zone.name, payload]).toEqual(["UTC", "{}"]);
  expect(retryPolicy).toEqual({ maxAttempts: 5, baseSeconds: 4, capSeconds: 4 });
});

test("a wrong type, null, or an unknown name is refused with its path", () => {
  const refused: [string, string | undefined][] = [
    ["[]", undefined],
    ["{}", "name"],
    [withField('"timezone":null'), "timezone"],
    [withField('"payload":"{}"'), "payload"],
    [withField('"retry_policy":{"retries":5}'), "retry_policy.retries"],
    [withField('"retry_policy":{"max_attempts":"5"}'), "retry_policy.max_attempts"],
    [withField('"run_at":"2030-01-01T00:00:00Z"'), "run_at"],
    [withField('"constructor":{}'), "constructor"],
  ];
  for (const [text, param] of refused) {
    const { code, param: at } = refusalOf(() => readNew(text));
    expect([text, code, at]).toEqual([text, "invalid_request", param]);
  }
});

test("a change holds the given fields, and an unknown field is refused", () => {
  expect(readUpdate("{}")).toEqual({});
  expect(readUpdate('{"payload":{"a": 1.0},"paused":false}')).toEqual({
    payload: '{"a":1.0}',
    paused: false,
  });
  expect(readUpdate('{"cron":"x","timezone":""}')).toEqual({ cron: "x", timezone: "" });
  expect(readUpdate('{"retry_policy":{"cap_seconds":4},"overlap":"skip","spread_seconds":0}')).toEqual({
    retryPolicy: { maxAttempts: 5, baseSeconds: 4, capSeconds: 4 },
    overlap: "skip",
    spreadSeconds: 0,
  });
  expect(readUpdate('{"flow":{"key":"a"}}')).toEqual({ flow: { key: "a" } });
  expect(readUpdate('{"flow":null}')).toEqual({ flow: null });
  const fields = [
    ...["name", "cron", "timezone", "target_url", "payload", "retry_policy"],
    ...["overlap", "spread_seconds", "paused", "tags"],
  ];
  for (const name of fields) expect(refusalOf(() => readUpdate(`{"${name}":null}`)).param).toBe(name);
  for (const name of ["id", "next_run_at", "created_at"]) {
    const { code, param, message } = refusalOf(() => readUpdate(`{"${name}":"x"}`));
    expect([code, param]).toEqual(["invalid_request", name]);
    expect(message).toContain(`Known are ${[...fields, "flow"].join(", ")}.`);
  }
});

test("a PUT is a creation of the name in its path, and may say whether it is paused", () => {
  const put = (name: string, fields: string) =>
    readSchedulePut(
      name,
      bodyOf(`{"cron":"0 0 1 1 *","target_url":"https://example.com/hook"${fields}}`),
      targets,
    );
  expect(put("a/b", "")).toMatchObject({ schedule: { name: "a/b", payload: "{}" }, paused: undefined });
  expect(put("a", ',"name":"a","paused":true')).toMatchObject({ schedule: { name: "a" }, paused: true });
  expect(refusalOf(() => put("a", ',"name":"b"')).param).toBe("name");
  expect(refusalOf(() => put("a".repeat(101), "")).param).toBe("name");
  expect(refusalOf(() => put("a", ',"id":"b"')).param).toBe("id");
});

test("a spread is at most half of the smallest gap, wherever it is given", () => {
  const fields = (cron: string, seconds: number) =>
    `{"name":"a","cron":"${cron}","target_url":"https://example.com/hook","spread_seconds":${seconds}}`;
  const preview = (cron: string, seconds: number) =>
    readSchedulePreview({ cron, spread_seconds: seconds }, 0);
  for (const [cron, most] of [
    ["*/30 * * * * *", 15],
    ["* * * * *", 30],
    ["0 9,10 * * *", 1_800],
    ["@daily", 3_600],
  ] as const) {
    expect(readNew(fields(cron, most)).spreadSeconds).toBe(most);
    expect(preview(cron, most).spreadSeconds).toBe(most);
    for (const act of [() => readNew(fields(cron, most + 1)), () => preview(cron, most + 1)]) {
      const { code, param } = refusalOf(act);
      expect([cron, code, param]).toEqual([cron, "invalid_request", "spread_seconds"]);
    }
  }
  for (const wrong of ["-1", "1.5", '"5"', "null", "3601"]) {
    expect(refusalOf(() => readNew(withField(`"spread_seconds":${wrong}`))).param).toBe("spread_seconds");
  }
});

test("a preview begins now and shows five firings by default", () => {
  const now = Date.parse("2026-11-21T10:00:00Z");
  const read = (fields: object) => readSchedulePreview({ cron: "@daily", ...fields }, now);
  expect(read({})).toMatchObject({ from: now, count: 5 });
  expect(read({ from: "2020-01-01T00:00:00+01:00", count: 1_000 })).toMatchObject({
    from: Date.parse("2019-12-31T23:00:00Z"),
    count: 1_000,
  });
  for (const from of ["tomorrow", "2027-01-01", "2027-02-30T00:00:00Z", "2027-01-01T00:00:00"]) {
    expect(refusalOf(() => read({ from })).param).toBe("from");
  }
});

test("the query strings of the lists are read, and wrong ones refused", () => {
  expect(readScheduleListQuery("")).toEqual({ pageSize: 50, cursor: null, paused: null });
  expect(readScheduleListQuery("paused=false&limit=200&cursor=abc")).toEqual({
    pageSize: 200,
    cursor: "abc",
    paused: false,
  });
  expect(readScheduleListQuery("paused=true").paused).toBe(true);
  expect(readFiringListQuery("limit=1")).toEqual({ pageSize: 1, cursor: null });
  for (const query of ["paused=0", "paused=", "paused=true&paused=true"]) {
    expect(refusalOf(() => readScheduleListQuery(query)).param).toBe("paused");
  }
  expect(refusalOf(() => readFiringListQuery("paused=true")).param).toBe("paused");
});

const facts: ScheduleFacts = {
  id: "sch_01arz3ndektsv4rrffq69g5fav",
  name: 'the "quoted" one',
  cron: "30 2 * * *",
  timezone: "Europe/Berlin",
  targetUrl: "https://example.com/hook",
  payload: '{"z":9007199254740993,"a":1.10}',
  retryPolicy: { maxAttempts: 5, baseSeconds: 10, capSeconds: 3_600 },
  overlap: null,
  spreadSeconds: null,
  paused: false,
  nextRunAt: Date.parse("2026-11-22T01:30:00Z"),
  createdAt: Date.parse("2026-11-21T10:00:00.007Z"),
  tags: null,
  flow: null,
};

test("a schedule object has exactly the documented fields, and its payload as it was written", () => {
  const text = scheduleParts(facts).join("");
  expect(text).toContain('"payload":{"z":9007199254740993,"a":1.10}');
  const view = JSON.parse(text);
  expect(Value.Check(Schedule, view)).toBe(true);
  expect(view).toMatchObject({
    name: 'the "quoted" one',
    retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3_600 },
    next_run_at: "2026-11-22T01:30:00.000Z",
    created_at: "2026-11-21T10:00:00.007Z",
  });
  expect("tags" in view).toBe(false);
  const tagged = JSON.parse(scheduleParts({ ...facts, tags: ["a"] }).join(""));
  expect(tagged).toEqual({ ...view, tags: ["a"] });
  expect(Value.Check(Schedule, tagged)).toBe(true);
  const list = JSON.parse(
    listParts([[text], scheduleParts({ ...facts, paused: true, nextRunAt: null })], null).join(""),
  );
  expect(Value.Check(ScheduleList, list)).toBe(true);
  expect(list.data[1]).toEqual({ ...view, paused: true, next_run_at: null });
  expect(JSON.parse(listParts([], "next").join(""))).toEqual({ data: [], next_cursor: "next" });
});

test("overlap and spread are shown where they were given, defaults too, and else not", () => {
  const viewOf = (wish: Partial<ScheduleFacts>) => JSON.parse(scheduleParts({ ...facts, ...wish }).join(""));
  for (const name of ["overlap", "spread_seconds"]) expect(viewOf({})).not.toHaveProperty(name);
  const given = viewOf({ overlap: "allow", spreadSeconds: 0 });
  expect(given).toEqual({ ...viewOf({}), overlap: "allow", spread_seconds: 0 });
  expect(Value.Check(Schedule, given)).toBe(true);
});

test("an instant is shown in UTC and in the local time of its zone", () => {
  const at = Date.parse("2027-03-28T01:30:00Z");
  const facts = {
    at,
    zone: parseZone("Europe/Berlin"),
    status: "skipped_quota" as const,
    jobId: null,
    movedByClockChange: true,
  };
  const view = viewFiring({ ...facts, dueAt: null, replaced: null });
  expect(Value.Check(Firing, view)).toBe(true);
  expect(view).toEqual({
    at: "2027-03-28T01:30:00.000Z",
    local_time: "2027-03-28T03:30:00+02:00",
    status: "skipped_quota",
    job_id: null,
    moved_dst: true,
  });
  const spread = viewFiring({ ...facts, dueAt: at + 1_234, replaced: 0 });
  expect(Value.Check(Firing, spread)).toBe(true);
  expect(spread).toEqual({ ...view, due_at: "2027-03-28T01:30:01.234Z", replaced: 0 });
});

test("a preview tells whether one more schedule would be accepted", () => {
  const { timetable } = readNew(withField('"timezone":"Asia/Kolkata"'));
  const asked = { timetable, from: 0, count: 1, overlap: null, spreadSeconds: null };
  const plan = (active: number) => viewPreview(asked, [], { active, limit: 10 }).plan;
  expect(plan(9)).toEqual({ active_schedules: 9, limit: 10, allowed: true });
  // A change to a smaller plan can leave more than the limit.
  expect([10, 11].map((active) => plan(active).allowed)).toEqual([false, false]);
  const firings = [{ at: Date.parse("2026-12-31T18:30:00Z"), movedByClockChange: false }];
  const view = viewPreview(asked, firings, { active: 0, limit: 10 });
  expect(Value.Check(SchedulePreview, view)).toBe(true);
  expect(view).toMatchObject({
    cron: "0 0 1 1 *",
    timezone: "Asia/Kolkata",
    firings: [{ local_time: "2027-01-01T00:00:00+05:30" }],
    min_gap_seconds: 365 * 86_400,
  });
  const given = viewPreview({ ...asked, overlap: "skip", spreadSeconds: 5 }, firings, {
    active: 0,
    limit: 10,
  });
  expect(Value.Check(SchedulePreview, given)).toBe(true);
  expect(given).toEqual({ ...view, overlap: "skip", spread_seconds: 5 });
});
