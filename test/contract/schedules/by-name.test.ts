import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { RawJson, type Schedule, type SchedulePut, type Schedules } from "../../../shared/client/index.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import { PLAN_TERMS } from "../../../shared/domain/plan.ts";
import { until } from "../../runtime-contract/until.ts";
import { clientOf } from "../../support/client.ts";
import {
  parseRaw,
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

let lastName = 0;
const newName = () => `by name ${++lastName}`;
const pathOf = (name: string) => `/v2/schedules/by-name/${encodeURIComponent(name)}`;
/** A body whose next firing is beyond the test. */
const wish = (fields: Partial<SchedulePut> = {}): SchedulePut => ({
  cron: "0 0 1 1 *",
  target_url: TARGET_URL,
  ...fields,
});
const put = (name: string, body: object = wish(), key = project.production, headers = {}) =>
  gateway.call("PUT", pathOf(name), { key, body, headers });

/** A next firing that belongs to no timetable: it changes when the next firing is computed anew. */
const MARK = "2099-05-05T05:05:05.000Z";
const mark = (name: string) =>
  gateway.query("UPDATE schedules SET next_run_at = $1 WHERE name = $2", [MARK, name]);

describe("PUT /v2/schedules/by-name/{name}", () => {
  test("creates what a POST would create, and answers 201; GET shows the same", async () => {
    const name = newName();
    const { result, answer } = await schedules.put(name, wish()).withAnswer();
    expect(answer.status).toBe(201);
    const posted = await schedules.create({ ...newSchedule(), name: newName() });
    const { id, created_at } = result;
    expect(result).toEqual({ ...posted, id, name, created_at, next_run_at: nextNewYear() });
    for (const got of [schedules.get(id), schedules.getByName(name)]) {
      expect((await got.withAnswer()).answer.text).toBe(answer.text);
    }
  });

  test("the same again answers 200 and changes nothing, next_run_at included", async () => {
    const name = newName();
    const body = wish({
      timezone: "europe/berlin",
      payload: new RawJson('{"n": 1.50}'),
      retry_policy: { cap_seconds: 4 },
      overlap: "skip",
      spread_seconds: 60,
      tags: ["nightly", "a"],
      paused: false,
    });
    await schedules.put(name, body);
    await mark(name);
    const before = await gateway.countRows();
    const seen = await schedules.getByName(name);
    for (let twice = 0; twice < 2; twice++) {
      const { result, answer } = await schedules.put(name, body).withAnswer();
      expect([answer.status, result]).toEqual([200, { ...seen, next_run_at: MARK }]);
    }
    expect(await gateway.countRows()).toEqual(before);
  });

  test("changes what differs, keeps id and creation, and computes the next firing only for another timetable", async () => {
    const name = newName();
    const before = await schedules.put(name, wish());
    await mark(name);
    const other = await schedules
      .put(
        name,
        wish({ target_url: "https://example.com/2", overlap: "replace", payload: { a: 1 }, tags: ["a"] }),
      )
      .withAnswer();
    expect(other.answer.status).toBe(200);
    expect(other.result).toEqual({
      ...before,
      target_url: "https://example.com/2",
      overlap: "replace",
      payload: { a: 1 },
      tags: ["a"],
      next_run_at: MARK,
    });
    const moved = await schedules.put(name, wish({ cron: "0 0 2 1 *" }));
    expect(Object.keys(moved)).not.toContain("tags");
    expect(moved).toEqual({ ...before, cron: "0 0 2 1 *", next_run_at: expect.not.stringMatching(MARK) });
  });

  test("gives what is left out the default of a creation, but keeps a pause", async () => {
    const name = newName();
    const full = wish({
      timezone: "Asia/Tokyo",
      payload: { a: 1 },
      retry_policy: { max_attempts: 2 },
      overlap: "allow",
      spread_seconds: 0,
      tags: ["a"],
    });
    const before = await schedules.put(name, full);
    await schedules.pause(before.id);
    const after = await schedules.put(name, wish());
    expect(after).toEqual({
      ...{ id: before.id, name, created_at: before.created_at },
      ...{ cron: "0 0 1 1 *", timezone: "UTC", target_url: TARGET_URL, payload: {} },
      retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3_600 },
      ...{ paused: true, next_run_at: null },
    });
    expect(await schedules.put(name, wish({ paused: false }))).toMatchObject({ paused: false });
    expect(await schedules.put(name, wish({ paused: true }))).toMatchObject({ next_run_at: null });
    expect(await schedules.put(newName(), wish({ paused: true }))).toMatchObject({
      paused: true,
      next_run_at: null,
    });
  });

  test("20 equal ones at once over two gateways: one 201, and 19 times 200, for one schedule", async () => {
    const name = newName();
    const { port } = gateway;
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, n) =>
        clientOf(gateway, project.production, n % 2 === 0 ? port : mate.port)
          .schedules.put(name, wish())
          .withAnswer(),
      ),
    );
    expect(answers.map(({ answer }) => answer.status).sort()).toEqual([...Array(19).fill(200), 201]);
    expect(new Set(answers.map(({ answer }) => answer.text)).size).toBe(1);
    const [row] = await gateway.query<{ n: number }>(
      "SELECT count(*)::int AS n FROM audit_entries WHERE subject = $1",
      [answers[0]?.result.id ?? ""],
    );
    expect(row?.n).toBe(1);
  });

  test("is refused at the plan's limit where it would be one more active schedule, and else not", async () => {
    const own = await gateway.addProject("hobby");
    const mine = clientOf(gateway, own.production).schedules;
    await mine.put("paused", wish({ paused: true }));
    for (let n = 1; n < PLAN_TERMS.hobby.schedules; n++) await mine.create(newSchedule());
    const { id } = await mine.put("active", wish());
    const before = await gateway.countRows();
    const refused = (name: string, body: object) => put(name, body, own.production);
    readRefusal(await refused("one more", wish()), "plan_limit_exceeded");
    readRefusal(await refused("paused", wish({ paused: false })), "plan_limit_exceeded");
    readRefusal(await refused("one more", wish({ cron: "x" })), "invalid_cron_expression", "cron");
    expect(await gateway.countRows()).toEqual(before);
    expect(await mine.put("another", wish({ paused: true }))).toMatchObject({ paused: true });
    expect(await mine.put("active", wish({ payload: { a: 1 } }))).toMatchObject({ id, paused: false });
  });

  test("ignores an Idempotency-Key", async () => {
    const headers = { "Idempotency-Key": "once" };
    const [one, other] = [newName(), newName()];
    expect((await put(one, wish(), project.production, headers)).status).toBe(201);
    expect((await put(other, wish(), project.production, headers)).status).toBe(201);
    const again = await put(one, wish({ payload: { a: 1 } }), project.production, headers);
    expect([again.status, again.headers.get("idempotent-replayed")]).toEqual([200, null]);
  });

  test("tells the worker of a schedule that fires within seconds", async () => {
    const told = await actSoon(async (cronOfSoon) => {
      const own = await gateway.addProject();
      const mine = clientOf(gateway, own.production).schedules;
      const toldOfOwn = () => gateway.commands.filter(({ projectNo }) => projectNo === own.no).length;
      await mine.put("soon", wish());
      expect(toldOfOwn()).toBe(0);
      await mine.put("soon", wish({ cron: cronOfSoon() }));
      return toldOfOwn;
    });
    await until(() => told() > 0);
  });

  test("a name belongs to a project and environment, and a deleted schedule's is free", async () => {
    const name = newName();
    const { id } = await schedules.put(name, wish());
    const others = [project.development, (await gateway.addProject()).production];
    for (const key of others) {
      const theirs = clientOf(gateway, key).schedules;
      readRefusal(await gateway.call("GET", pathOf(name), { key }), "resource_not_found");
      expect((await theirs.put(name, wish()).withAnswer()).answer.status).toBe(201);
    }
    await schedules.delete(id);
    readRefusal(await gateway.call("GET", pathOf(name), { key: project.production }), "resource_not_found");
    expect((await put(name)).status).toBe(201);
  });
});

describe("a name in a path", () => {
  const names = [
    "a/b",
    "50%",
    "%2F",
    "a?b",
    "a#b",
    "#",
    ".#",
    "ä 漢 🎉",
    "+",
    "run",
    "firings",
    "by-name",
    "...",
    ".a",
  ];
  test.each([...names, "sch_01arz3ndektsv4rrffq69g5fav", "x".repeat(100), "🎉".repeat(100)])(
    "is any name, percent-encoded: %s",
    async (name) => {
      const { result, answer } = await schedules.put(name, { ...wish(), payload: { name } }).withAnswer();
      expect([answer.status, result.name]).toEqual([201, name]);
      expect(await schedules.getByName(name)).toEqual(result);
      expect((await put(name, { ...wish({ payload: { name } }), name })).status).toBe(200);
      expect((await schedules.list({ limit: 1 })).data[0]).toEqual(result);
    },
  );

  const send = async (method: string, path: string) => {
    const body = method === "PUT" ? JSON.stringify(wish()) : "";
    const head = [
      `${method} ${path} HTTP/1.1`,
      "Host: test",
      `Authorization: Bearer ${project.production}`,
      "Content-Type: application/json",
      `Content-Length: ${body.length}`,
    ];
    return parseRaw(await gateway.send(`${head.join("\r\n")}\r\n\r\n${body}`));
  };
  test.each([".", "..", "%2e", "%2E%2e", "%5C", "a%5Cb", "", "%", "%zz", "%ff", "a/b"])(
    "has no path by name: %s",
    async (text) => {
      const before = await gateway.countRows();
      for (const method of ["GET", "PUT"]) {
        readRefusal(await send(method, `/v2/schedules/by-name/${text}`), "resource_not_found");
      }
      expect(await gateway.countRows()).toEqual(before);
    },
  );

  test.each(["%00", "a%00b", "%20", "x".repeat(101), "%0a"])(
    "that no schedule can have is not found, and a PUT of it is refused: %s",
    async (text) => {
      const before = await gateway.countRows();
      readRefusal(await send("GET", `/v2/schedules/by-name/${text}`), "resource_not_found");
      readRefusal(await send("PUT", `/v2/schedules/by-name/${text}`), "invalid_request", "name");
      expect(await gateway.countRows()).toEqual(before);
    },
  );
});

describe("PUT /v2/schedules/by-name/{name} refuses and changes nothing", () => {
  let schedule: Schedule;
  beforeAll(async () => {
    schedule = await schedules.put("refusing", wish());
  });
  const cases: [string, object | string, ErrorCode, string | undefined][] = [
    ["another name", wish({ name: "other" } as object), "invalid_request", "name"],
    ["a null name", { ...wish(), name: null }, "invalid_request", "name"],
    ["no cron", { target_url: TARGET_URL }, "invalid_request", "cron"],
    ["no target", { cron: "@daily" }, "invalid_request", "target_url"],
    ["an unknown field", { ...wish(), id: "sch_1" }, "invalid_request", "id"],
    ["a null paused", { ...wish(), paused: null }, "invalid_request", "paused"],
    ["no tag in its tags", wish({ tags: [] }), "invalid_request", "tags"],
    ["a tag twice", wish({ tags: ["a", "a"] }), "invalid_request", "tags[1]"],
    ["an unknown overlap", { ...wish(), overlap: "Skip" }, "invalid_request", "overlap"],
    ["a negative spread", wish({ spread_seconds: -1 }), "invalid_request", "spread_seconds"],
    ["too much spread", wish({ cron: "* * * * *", spread_seconds: 31 }), "invalid_request", "spread_seconds"],
    ["an unreadable cron", wish({ cron: "x" }), "invalid_cron_expression", "cron"],
    ["what fires too often", wish({ cron: "* * * * * *" }), "interval_too_short", "cron"],
    ["a target by http", wish({ target_url: "http://example.com/" }), "invalid_request", "target_url"],
    ["an array", [], "invalid_request", undefined],
    ["an empty body", "", "invalid_request", undefined],
  ];
  test.each(cases)("%s", async (_, body, code, param) => {
    const before = await gateway.countRows();
    for (const name of ["refusing", "missing"]) {
      const key = project.production;
      readRefusal(await gateway.call("PUT", pathOf(name), { key, body }), code, param);
    }
    expect(await gateway.countRows()).toEqual(before);
    expect(await schedules.getByName("refusing")).toEqual(schedule);
  });

  test("a query parameter, and keys that may not write schedules; a read key may read", async () => {
    const call = (method: string, query: string, key: string) =>
      gateway.call(method, `${pathOf("refusing")}${query}`, {
        key,
        ...(method === "PUT" ? { body: wish() } : {}),
      });
    for (const method of ["GET", "PUT"]) {
      readRefusal(await call(method, "?x=1", project.production), "invalid_request", "x");
    }
    const { key: jobsKey } = await gateway.addKey(project, { scope: "jobs" });
    const { key: readKey } = await gateway.addKey(project, { scope: "read" });
    readRefusal(await call("PUT", "", jobsKey), "insufficient_scope");
    readRefusal(await call("GET", "", jobsKey), "insufficient_scope");
    readRefusal(await call("PUT", "", readKey), "insufficient_scope");
    expect((await call("GET", "", readKey)).status).toBe(200);
    expect(await schedules.getByName("refusing")).toEqual(schedule);
  });
});
