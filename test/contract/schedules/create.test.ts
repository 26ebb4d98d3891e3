import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { type NewSchedule, RawJson } from "../../../shared/client/index.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { HOME_REGION } from "../../../shared/domain/plan.ts";
import { until } from "../../runtime-contract/until.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { actSoon, newSchedule, nextNewYear } from "./support.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
  project = await gateway.addProject();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const create = (wish: Partial<NewSchedule> = {}, key = project.production, port = gateway.port) =>
  clientOf(gateway, key, port).schedules.create(newSchedule(wish));
const post = (body: object | string, key = project.production) =>
  gateway.call("POST", "/v2/schedules", { key, body });

/** Expects the documented refusal, and no new row in any table. */
async function expectNoTrace(body: object | string, code: ErrorCode, param?: string, key?: string) {
  const before = await gateway.countRows();
  const error = readRefusal(await post(body, key), code, param);
  expect(await gateway.countRows()).toEqual(before);
  return error;
}

describe("POST /v2/schedules", () => {
  test("takes overlap and spread, and shows them where they were given, defaults too", async () => {
    const plain = await create();
    for (const name of ["overlap", "spread_seconds"]) expect(plain).not.toHaveProperty(name);
    expect(await create({ overlap: "replace" })).toMatchObject({ overlap: "replace" });
    const { result, answer } = await create({ overlap: "allow", spread_seconds: 0 }).withAnswer();
    expect(result).toMatchObject({ overlap: "allow", spread_seconds: 0 });
    const mine = clientOf(gateway, project.production).schedules;
    expect((await mine.get(result.id).withAnswer()).answer.text).toBe(answer.text);
    expect((await mine.list({ limit: 1 })).data[0]).toEqual(result);
    const wide = newSchedule({ cron: "*/30 * * * * *", spread_seconds: 16 });
    await expectNoTrace(wide, "invalid_request", "spread_seconds");
    await expectNoTrace({ ...newSchedule(), overlap: "queue" }, "invalid_request", "overlap");
  });

  test("creates an active schedule, with defaults filled in", async () => {
    const startedAt = Date.now();
    const { result: schedule, answer } = await create({ name: "nightly" }).withAnswer();
    expect(schedule).toEqual({
      id: expect.stringMatching(/^sch_[0-9a-z]{26}$/),
      name: "nightly",
      cron: "0 0 1 1 *",
      timezone: "UTC",
      target_url: TARGET_URL,
      payload: {},
      retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3_600 },
      paused: false,
      next_run_at: nextNewYear(),
      created_at: expect.any(String),
    });
    expect(answer.status).toBe(201);
    expect(Date.parse(schedule.created_at)).toBeGreaterThanOrEqual(startedAt);
    expect(Date.parse(schedule.created_at)).toBeLessThanOrEqual(Date.now());
  });

  test("keeps every given field, and shows the same fields afterwards", async () => {
    const fields = {
      name: "täglich ✓",
      cron: "0 30 2 ? * MON-FRI",
      timezone: "Europe/Berlin",
      target_url: "https://example.com:8443/hook?x=1",
      payload: { a: [1, { b: null }], ünïcode: "✓ \u0000" },
      retry_policy: { max_attempts: 25, base_seconds: 2, cap_seconds: 3 },
    };
    const { schedules } = clientOf(gateway, project.production);
    const { result, answer } = await schedules.create(fields).withAnswer();
    expect(result).toMatchObject(fields);
    expect((await schedules.get(result.id).withAnswer()).answer.text).toBe(answer.text);
    expect((await schedules.list()).data[0]).toEqual(result);
  });

  test("fills in the rest of a partial retry policy, as for a job", async () => {
    const policyOf = async (retry_policy: NewSchedule["retry_policy"]) =>
      (await create({ ...(retry_policy && { retry_policy }) })).retry_policy;
    expect(await policyOf({ max_attempts: 1 })).toEqual({
      max_attempts: 1,
      base_seconds: 10,
      cap_seconds: 3_600,
    });
    expect(await policyOf({ cap_seconds: 5 })).toEqual({ max_attempts: 5, base_seconds: 5, cap_seconds: 5 });
  });

  test("keeps the payload's text: the order of names, escapes, and numbers beyond double precision", async () => {
    const exact = '{"z":9007199254740993,"a":1.10,"s":"a b\\u00e9","2":0,"1":-0}';
    const { result, answer } = await create({ payload: new RawJson(exact) }).withAnswer();
    const { schedules } = clientOf(gateway, project.production);
    const texts = [
      answer.text,
      (await schedules.get(result.id).withAnswer()).answer.text,
      (await schedules.list({ limit: 1 }).withAnswer()).answer.text,
      (await schedules.update(result.id, { cron: "0 1 1 1 *" }).withAnswer()).answer.text,
      (await schedules.run(result.id).withAnswer()).answer.text,
    ];
    for (const text of texts) expect(text).toContain(`"payload":${exact}`);
  });

  test("takes a payload of exactly 256 KB", async () => {
    const payload = { x: "y".repeat(PAYLOAD_BYTES_MAX - 8) };
    expect(JSON.stringify(payload).length).toBe(PAYLOAD_BYTES_MAX);
    expect((await create({ payload })).payload).toEqual(payload);
  });

  test.each([
    [" \t0 0 1 1 *\n", undefined, "0 0 1 1 *", "UTC"],
    ["0   0\t1 1 *", "utc", "0   0\t1 1 *", "UTC"],
    ["@yearly", "US/Eastern", "@yearly", "US/Eastern"],
    ["0 0 1 JAN *", "eUROPE/bERLIN", "0 0 1 JAN *", "Europe/Berlin"],
    ["0 0 0 1 jan ?", "asia/calcutta", "0 0 0 1 jan ?", "Asia/Calcutta"],
    ["*/30 * * * * *", "Etc/GMT+5", "*/30 * * * * *", "Etc/GMT+5"],
  ])("shows %j in %j as %j in %j", async (cron, timezone, shownCron, shownTimezone) => {
    const schedule = await create({ cron, ...(timezone === undefined ? {} : { timezone }) });
    expect([schedule.cron, schedule.timezone]).toEqual([shownCron, shownTimezone]);
  });

  test("tells the worker of a schedule that fires within seconds, and of no others", async () => {
    const own = await actSoon(async (cronOfSoon) => {
      const { no, production } = await gateway.addProject();
      await create({}, production);
      await create({ cron: cronOfSoon() }, production);
      return { no };
    });
    const told = () => gateway.commands.filter(({ projectNo }) => projectNo === own.no);
    await until(() => told().length > 0);
    expect(told()).toMatchObject([{ region: HOME_REGION, owed: [] }]);
  });

  test("works for a hobby project that has used up its runs, and counts as none", async () => {
    const hobby = await gateway.addProject("hobby");
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    expect((await create({}, hobby.production)).next_run_at).toBe(nextNewYear());
  });
});

describe("POST /v2/schedules refuses without a trace", () => {
  const base = { name: "refused", cron: "0 0 1 1 *", target_url: TARGET_URL };
  const cases: [string, object | string, ErrorCode, string | undefined][] = [
    ["no name", { ...base, name: undefined }, "invalid_request", "name"],
    ["a null name", { ...base, name: null }, "invalid_request", "name"],
    ["an empty name", { ...base, name: "" }, "invalid_request", "name"],
    ["a blank name", { ...base, name: " \u2003" }, "invalid_request", "name"],
    ["a name of 101 characters", { ...base, name: "😀".repeat(101) }, "invalid_request", "name"],
    ["a name with a line feed", { ...base, name: "a\nb" }, "invalid_request", "name"],
    ["no cron", { ...base, cron: undefined }, "invalid_request", "cron"],
    ["a null cron", { ...base, cron: null }, "invalid_request", "cron"],
    ["a number as cron", { ...base, cron: 5 }, "invalid_request", "cron"],
    ["an empty cron", { ...base, cron: "" }, "invalid_cron_expression", "cron"],
    ["a blank cron", { ...base, cron: "  " }, "invalid_cron_expression", "cron"],
    ["four fields", { ...base, cron: "0 0 1 1" }, "invalid_cron_expression", "cron"],
    ["seven fields", { ...base, cron: "0 0 0 1 1 * 2030" }, "invalid_cron_expression", "cron"],
    ["a step of 60", { ...base, cron: "*/60 * * * *" }, "invalid_cron_expression", "cron"],
    ["30 February", { ...base, cron: "0 0 30 2 *" }, "invalid_cron_expression", "cron"],
    ["what never fires, and too often", { ...base, cron: "* * * 30 2 *" }, "invalid_cron_expression", "cron"],
    ["257 characters", { ...base, cron: `0 0 1 1 ${"1,".repeat(124)}1` }, "invalid_cron_expression", "cron"],
    ["@reboot", { ...base, cron: "@reboot" }, "invalid_cron_expression", "cron"],
    ["a zone in the expression", { ...base, cron: "TZ=UTC 0 0 1 1 *" }, "invalid_cron_expression", "cron"],
    ["every second", { ...base, cron: "* * * * * *" }, "interval_too_short", "cron"],
    ["29 s over a border", { ...base, cron: "0,31 * * * * *" }, "interval_too_short", "cron"],
    ["a null timezone", { ...base, timezone: null }, "invalid_request", "timezone"],
    ["a number as timezone", { ...base, timezone: 2 }, "invalid_request", "timezone"],
    ["an empty timezone", { ...base, timezone: "" }, "invalid_cron_expression", "timezone"],
    ["an unknown timezone", { ...base, timezone: "Mars/Base" }, "invalid_cron_expression", "timezone"],
    ["an abbreviation", { ...base, timezone: "PST" }, "invalid_cron_expression", "timezone"],
    ["an offset", { ...base, timezone: "+02:00" }, "invalid_cron_expression", "timezone"],
    ["no target", { ...base, target_url: undefined }, "invalid_request", "target_url"],
    ["an http target", { ...base, target_url: "http://example.com/" }, "invalid_request", "target_url"],
    ["a private target", { ...base, target_url: "https://10.0.0.1/" }, "invalid_request", "target_url"],
    ["a null payload", { ...base, payload: null }, "invalid_request", "payload"],
    ["an array as payload", { ...base, payload: [1] }, "invalid_request", "payload"],
    [
      "a payload over 256 KB",
      { ...base, payload: { x: "y".repeat(PAYLOAD_BYTES_MAX - 7) } },
      "payload_too_large",
      "payload",
    ],
    ["a body over 1 MiB", { ...base, x: "y".repeat(1_048_576) }, "payload_too_large", undefined],
    ["a null policy", { ...base, retry_policy: null }, "invalid_request", "retry_policy"],
    [
      "26 attempts",
      { ...base, retry_policy: { max_attempts: 26 } },
      "invalid_request",
      "retry_policy.max_attempts",
    ],
    [
      "a base over the cap",
      { ...base, retry_policy: { base_seconds: 20, cap_seconds: 10 } },
      "invalid_request",
      "retry_policy.base_seconds",
    ],
    ["what only a change has", { ...base, paused: true }, "invalid_request", "paused"],
    ["a region", { ...base, region: "us-east" }, "invalid_request", "region"],
    ["another spelling", { ...base, targetUrl: TARGET_URL }, "invalid_request", "targetUrl"],
    ["an array", [base], "invalid_request", undefined],
    [
      "a repeated member",
      `{"name":"a","name":"a","cron":"0 0 1 1 *","target_url":"${TARGET_URL}"}`,
      "invalid_request",
      "name",
    ],
  ];
  test.each(cases)("%s", async (_, body, code, param) => {
    const { message } = await expectNoTrace(body, code, param);
    if (param !== undefined) expect(message).toContain(param);
  });

  test("a query parameter", async () => {
    const answer = await gateway.call("POST", "/v2/schedules?x=1", { key: project.production, body: base });
    readRefusal(answer, "invalid_request", "x");
  });

  test("keys that may only read, or only work with jobs", async () => {
    for (const scope of ["read", "jobs"] as const) {
      const { key } = await gateway.addKey(project, { scope });
      await expectNoTrace(base, "insufficient_scope", undefined, key);
    }
  });
});

describe("a schedule's name", () => {
  test.each(["x", "😀".repeat(100), " padded ", "e\u0301", "NULL"])("may be %j", async (name) => {
    expect((await create({ name })).name).toBe(name);
  });

  test("is unique within its environment, and case matters", async () => {
    const stranger = await gateway.addProject();
    await create({ name: "report" });
    const refusal = await refusalOf(create({ name: "report" }), "schedule_name_taken", "name");
    expect(refusal.status).toBe(409);
    for (const key of [project.development, stranger.production]) await create({ name: "report" }, key);
    await create({ name: "Report" });
  });

  test("is checked after all fields, and a taken one leaves nothing behind", async () => {
    await create({ name: "taken" });
    const body = { name: "taken", cron: "0 0 1 1 *", target_url: TARGET_URL };
    await expectNoTrace(body, "schedule_name_taken", "name");
    await expectNoTrace({ ...body, cron: "x" }, "invalid_cron_expression", "cron");
    await expectNoTrace({ ...body, target_url: "http://x" }, "invalid_request", "target_url");
  });

  test("is given to one of many requests at once over two gateways", async () => {
    const codes = await Promise.all(
      Array.from({ length: 30 }, (_, n) =>
        create({ name: "one" }, project.production, n % 2 === 0 ? gateway.port : mate.port).then(
          () => "created",
          ({ code }) => code,
        ),
      ),
    );
    expect(codes.filter((code) => code === "created")).toHaveLength(1);
    expect(codes.filter((code) => code === "schedule_name_taken")).toHaveLength(29);
  });
});
