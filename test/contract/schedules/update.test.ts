import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { RawJson, type Schedule, type Schedules, type ScheduleUpdate } from "../../../shared/client/index.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { HOME_REGION } from "../../../shared/domain/plan.ts";
import { until } from "../../runtime-contract/until.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { actSoon, newSchedule, nextNewYear, passInstant } from "./support.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
let project: TestProject;
let schedules: Schedules;

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
  project = await gateway.addProject();
  schedules = clientOf(gateway, project.production).schedules;
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

const patch = (id: string, body: object | string, key = project.production) =>
  gateway.call("PATCH", `/v2/schedules/${id}`, { key, body });
const create = (wish = {}) => schedules.create(newSchedule(wish));

/** A next firing that belongs to no timetable: it changes when the next firing is computed anew. */
const MARK = "2099-05-05T05:05:05.000Z";
async function createMarked(wish = {}): Promise<Schedule> {
  const { id, name } = await create(wish);
  await gateway.query("UPDATE schedules SET next_run_at = $1 WHERE name = $2", [MARK, name]);
  return schedules.get(id);
}

describe("PATCH /v2/schedules/{id}", () => {
  test("changes the given fields and keeps the rest, and GET shows the same", async () => {
    const before = await create({ payload: { a: 1 }, retry_policy: { max_attempts: 2 } });
    const steps: [ScheduleUpdate, Partial<Schedule>][] = [
      [{ timezone: "asia/tokyo" }, { timezone: "Asia/Tokyo" }],
      [{ cron: " 30 12 * JUL * " }, { cron: "30 12 * JUL *" }],
      [{ payload: { b: 2 } }, { payload: { b: 2 } }],
      [{ paused: true }, { paused: true, next_run_at: null }],
      [
        { timezone: "UTC", cron: "@yearly", payload: {}, paused: false },
        { ...before, cron: "@yearly", payload: {} },
      ],
    ];
    let expected: Schedule = before;
    for (const [change, outcome] of steps) {
      const { result, answer } = await schedules.update(before.id, change).withAnswer();
      expected = { ...expected, next_run_at: result.next_run_at, ...outcome };
      expect([answer.status, result]).toEqual([200, expected]);
      expect((await schedules.get(before.id).withAnswer()).answer.text).toBe(answer.text);
    }
  });

  test("changes name, target, policy, overlap and spread, for firings to come, and leaves the next one", async () => {
    const before = await createMarked({ retry_policy: { max_attempts: 2 } });
    const job = await schedules.run(before.id);
    const full = { max_attempts: 5, base_seconds: 4, cap_seconds: 4 };
    const steps: [ScheduleUpdate, Partial<Schedule>][] = [
      [{ name: "renamed" }, { name: "renamed" }],
      [{ target_url: "https://example.com/other" }, { target_url: "https://example.com/other" }],
      [{ retry_policy: { cap_seconds: 4 } }, { retry_policy: full }],
      [{ overlap: "skip" }, { overlap: "skip" }],
      [
        { overlap: "allow", spread_seconds: 0 },
        { overlap: "allow", spread_seconds: 0 },
      ],
      [{ spread_seconds: 3_600 }, { spread_seconds: 3_600 }],
    ];
    let expected: Schedule = before;
    for (const [change, outcome] of steps) {
      const { result, answer } = await schedules.update(before.id, change).withAnswer();
      expected = { ...expected, ...outcome };
      expect([answer.status, result]).toEqual([200, expected]);
      expect((await schedules.get(before.id).withAnswer()).answer.text).toBe(answer.text);
    }
    expect(await schedules.run(before.id)).toMatchObject({
      target_url: "https://example.com/other",
      retry_policy: full,
    });
    const jobs = clientOf(gateway, project.production).jobs;
    expect(await jobs.get(job.id)).toEqual(job);
    // The schedule's old name is free.
    await create({ name: before.name });
  });

  test("refuses a timetable that makes the spread too much, and names the spread", async () => {
    const { id } = await create({ cron: "0 * * * *", spread_seconds: 1_800 });
    readRefusal(await patch(id, { cron: "*/30 * * * *" }), "invalid_request", "spread_seconds");
    const both = await schedules.update(id, { cron: "*/30 * * * *", spread_seconds: 900 });
    expect(both).toMatchObject({ cron: "*/30 * * * *", spread_seconds: 900 });
  });

  test("takes a name that a schedule of the other environment has, and of many that want one name lets one", async () => {
    const name = "wanted";
    await clientOf(gateway, project.development).schedules.create(newSchedule({ name }));
    const made = await Promise.all(Array.from({ length: 8 }, () => create()));
    const answers = await Promise.all(made.map(({ id }) => patch(id, { name })));
    const statuses = answers.map(({ status }) => status).sort();
    expect(statuses).toEqual([200, ...Array(7).fill(409)]);
    const named = await Promise.all(made.map(({ id }) => schedules.get(id)));
    expect(named.map((schedule) => schedule.name === name)).toEqual(
      answers.map(({ status }) => status === 200),
    );
  });

  test("replaces the whole payload, and keeps its text", async () => {
    const { id } = await create({ payload: { a: 1, nested: { b: 2 } } });
    const exact = '{"nested":{"c":9007199254740993},"x":1.50}';
    const { answer } = await schedules.update(id, { payload: new RawJson(exact) }).withAnswer();
    expect(answer.text).toContain(`"payload":${exact}`);
    expect((await schedules.run(id).withAnswer()).answer.text).toContain(`"payload":${exact}`);
  });

  test.each<[string, ScheduleUpdate]>([
    ["nothing", {}],
    ["the payload", { payload: { b: 2 } }],
    ["the same expression", { cron: " 0 0 1 1 *" }],
    ["the same zone", { timezone: "utc" }],
    ["what is so already", { cron: "0 0 1 1 *", timezone: "UTC", paused: false }],
  ])("leaves the next firing as it is: %s", async (_, change) => {
    const { id } = await createMarked();
    expect(await schedules.update(id, change)).toMatchObject({ next_run_at: MARK, paused: false });
  });

  test.each<[string, ScheduleUpdate]>([
    ["another expression", { cron: "0 0 0 1 1 *" }],
    ["another zone", { timezone: "Etc/UTC" }],
  ])("computes the next firing anew: %s", async (_, change) => {
    const { id } = await createMarked();
    expect((await schedules.update(id, change)).next_run_at).toBe(nextNewYear());
  });

  test("pauses and resumes; a paused schedule has no next firing, whatever else is changed", async () => {
    const { id } = await create();
    for (const change of [
      { paused: true },
      { paused: true },
      { cron: "0 0 2 1 *" },
      { timezone: "Asia/Tokyo" },
    ]) {
      expect(await schedules.update(id, change)).toMatchObject({ paused: true, next_run_at: null });
    }
    await schedules.update(id, { cron: "0 0 1 1 *", timezone: "UTC" });
    for (let twice = 0; twice < 2; twice++) {
      expect(await schedules.resume(id)).toMatchObject({ paused: false, next_run_at: nextNewYear() });
    }
  });

  test("does not make up for firings that were missed while paused", async () => {
    const { id } = await create({ cron: "* * * * *" });
    await schedules.pause(id);
    await gateway.query("UPDATE timetables SET since = since - interval '1 day'");
    const startedAt = Date.now();
    const { next_run_at } = await schedules.resume(id);
    expect(Date.parse(next_run_at ?? "")).toBeGreaterThan(startedAt);
  });

  test("is recorded only if it changes something", async () => {
    const { id } = await create();
    const before = await gateway.countRows();
    const { name, target_url, retry_policy } = await schedules.get(id);
    const same = [{ name }, { target_url }, { retry_policy }, { retry_policy: {} }];
    for (const change of [{}, { paused: false }, { cron: "0 0 1 1 *" }, { payload: {} }, ...same]) {
      await schedules.update(id, change);
    }
    expect(await gateway.countRows()).toEqual(before);
  });

  test("tells the worker of a schedule that fires within seconds", async () => {
    const told = await actSoon(async (cronOfSoon) => {
      const own = await gateway.addProject();
      const mine = clientOf(gateway, own.production).schedules;
      const { id } = await mine.create(newSchedule());
      await mine.update(id, { payload: { a: 1 } });
      const toldOfOwn = () => gateway.commands.filter(({ projectNo }) => projectNo === own.no);
      expect(toldOfOwn()).toEqual([]);
      await mine.update(id, { cron: cronOfSoon() });
      return toldOfOwn;
    });
    await until(() => told().length > 0);
    expect(told()).toMatchObject([{ region: HOME_REGION, owed: [] }]);
  });

  test("takes effect for each of many requests at once over two gateways, one after the other", async () => {
    const { id } = await create({ cron: "@daily" });
    const changes: ScheduleUpdate[] = Array.from({ length: 60 }, (_, n) =>
      n % 2 === 0 ? { cron: `${n} 0 1 1 *` } : { payload: { n } },
    );
    const answers = await Promise.all(
      changes.map((change, n) =>
        clientOf(gateway, project.production, n % 4 < 2 ? gateway.port : mate.port).schedules.update(
          id,
          change,
        ),
      ),
    );
    answers.forEach((answer, n) => {
      expect(answer).toMatchObject(changes[n] as object);
    });
    const { cron, payload, next_run_at } = await schedules.get(id);
    expect(next_run_at).toBe(
      nextNewYear().replace("00:00:00", `00:${cron.split(" ")[0]?.padStart(2, "0")}:00`),
    );
    expect((payload.n as number) % 2).toBe(1);
    const [row] = await gateway.query<{ n: number }>(
      "SELECT count(*)::int AS n FROM audit_entries WHERE subject = $1 AND action = 'schedule.update'",
      [id],
    );
    expect(row?.n).toBe(60);
  });

  test("never plans a firing that passed while the request waited", async () => {
    const { id } = await create();
    // The request was decided before its turn came.
    const [instant, { next_run_at }] = await passInstant(gateway, project, (cron) =>
      schedules.update(id, { cron }),
    );
    expect(next_run_at).toBe(new Date(instant + 60_000).toISOString());
  });
});

describe("PATCH /v2/schedules/{id} refuses and changes nothing", () => {
  let schedule: Schedule;
  beforeAll(async () => {
    schedule = await create();
    await create({ name: "taken" });
  });
  const cases: [string, object | string, ErrorCode, string | undefined][] = [
    ["a null cron", { cron: null }, "invalid_request", "cron"],
    ["a null timezone", { timezone: null }, "invalid_request", "timezone"],
    ["a null payload", { payload: null }, "invalid_request", "payload"],
    ["a null paused", { paused: null }, "invalid_request", "paused"],
    ["a word for paused", { paused: "true" }, "invalid_request", "paused"],
    ["a number for paused", { paused: 1 }, "invalid_request", "paused"],
    ["an array as payload", { payload: [] }, "invalid_request", "payload"],
    [
      "a payload over 256 KB",
      { payload: { x: "y".repeat(PAYLOAD_BYTES_MAX - 7) } },
      "payload_too_large",
      "payload",
    ],
    ["an empty cron", { cron: "" }, "invalid_cron_expression", "cron"],
    ["an unreadable cron", { cron: "every day" }, "invalid_cron_expression", "cron"],
    ["what never fires", { cron: "0 0 31 4 *" }, "invalid_cron_expression", "cron"],
    ["what fires too often", { cron: "*/29 * * * * *" }, "interval_too_short", "cron"],
    ["an unknown timezone", { timezone: "CEST" }, "invalid_cron_expression", "timezone"],
    ["an empty timezone", { timezone: "" }, "invalid_cron_expression", "timezone"],
    ["one good field and a bad one", { paused: true, cron: "x" }, "invalid_cron_expression", "cron"],
    ["a null name", { name: null }, "invalid_request", "name"],
    ["a blank name", { name: " " }, "invalid_request", "name"],
    ["a name of 101 characters", { name: "ä".repeat(101) }, "invalid_request", "name"],
    ["a name that is taken", { name: "taken" }, "schedule_name_taken", "name"],
    ["a null target", { target_url: null }, "invalid_request", "target_url"],
    ["a target by http", { target_url: "http://example.com/" }, "invalid_request", "target_url"],
    ["a null policy", { retry_policy: null }, "invalid_request", "retry_policy"],
    [
      "a policy beyond its bounds",
      { retry_policy: { max_attempts: 0 } },
      "invalid_request",
      "retry_policy.max_attempts",
    ],
    ["a null overlap", { overlap: null }, "invalid_request", "overlap"],
    ["an unknown overlap", { overlap: "queue" }, "invalid_request", "overlap"],
    ["a null spread", { spread_seconds: null }, "invalid_request", "spread_seconds"],
    ["a spread with a fraction", { spread_seconds: 1.5 }, "invalid_request", "spread_seconds"],
    ["a spread over an hour", { spread_seconds: 3_601 }, "invalid_request", "spread_seconds"],
    [
      "a spread over half of the gap that comes with it",
      { cron: "* * * * *", spread_seconds: 31 },
      "invalid_request",
      "spread_seconds",
    ],
    ["another next firing", { next_run_at: MARK }, "invalid_request", "next_run_at"],
    ["an array", [], "invalid_request", undefined],
    ["an empty body", "", "invalid_request", undefined],
  ];
  test.each(cases)("%s", async (_, body, code, param) => {
    const before = await gateway.countRows();
    const { message } = readRefusal(await patch(schedule.id, body), code, param);
    if (param !== undefined) expect(message).toContain(param);
    expect(await gateway.countRows()).toEqual(before);
    expect(await schedules.get(schedule.id)).toEqual(schedule);
  });

  test("a query parameter, and keys that may not write schedules", async () => {
    const call = (query: string, key: string) =>
      gateway.call("PATCH", `/v2/schedules/${schedule.id}${query}`, { key, body: { paused: true } });
    readRefusal(await call("?x=1", project.production), "invalid_request", "x");
    for (const scope of ["read", "jobs"] as const) {
      const { key } = await gateway.addKey(project, { scope });
      readRefusal(await call("", key), "insufficient_scope");
    }
    expect(await schedules.get(schedule.id)).toEqual(schedule);
  });
});
