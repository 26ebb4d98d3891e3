import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Schedules } from "../../../shared/client/index.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import {
  type Answer,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { newSchedule } from "../schedules/support.ts";

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

let lastKey = 0;
const newKey = () => `key ${++lastKey}`;

interface Wish {
  body?: object | string;
  key?: string;
  port?: number;
}
const post = (path: string, idempotencyKey: string, { body, key = project.production, port }: Wish = {}) =>
  gateway.call("POST", path, {
    key,
    headers: { "Idempotency-Key": idempotencyKey },
    ...(body === undefined ? {} : { body }),
    ...(port === undefined ? {} : { port }),
  });
const create = (key: string, wish: Wish = {}) => post("/v2/schedules", key, { body: newSchedule(), ...wish });
const isReplayed = ({ headers }: Answer) => headers.get("idempotent-replayed") === "true";
const idOf = ({ text }: Answer) => JSON.parse(text).id as string;

/** Expects that the request, sent again through any gateway, gets the first answer and makes nothing. */
async function expectReplays(first: Answer, ask: (port: number) => Promise<Answer>): Promise<void> {
  expect([first.status < 300, isReplayed(first)]).toEqual([true, false]);
  const before = await gateway.countRows();
  for (const port of [gateway.port, mate.port]) {
    const again = await ask(port);
    expect({ status: again.status, text: again.text }).toEqual({ status: first.status, text: first.text });
    expect(isReplayed(again)).toBe(true);
  }
  expect(await gateway.countRows()).toEqual(before);
}

describe("an Idempotency-Key of POST /v2/schedules", () => {
  test("makes one schedule, and is replayed as it was made after the schedule was changed, paused and deleted", async () => {
    const [key, body] = [newKey(), newSchedule({ payload: { a: 1 } })];
    const first = await create(key, { body });
    const replays = () => expectReplays(first, (port) => create(key, { body, port }));
    await replays();
    await schedules.update(idOf(first), { payload: { b: 2 }, paused: true });
    await replays();
    await schedules.delete(idOf(first));
    await replays();
    await refusalOf(schedules.get(idOf(first)), "resource_not_found");
  });

  test("compares bodies by their JSON value, and numbers by their text", async () => {
    const key = newKey();
    const { name, cron, target_url } = newSchedule();
    const text = (payload: string) =>
      `{"name":"${name}","cron":"${cron}","target_url":"${target_url}","payload":${payload}}`;
    const first = await create(key, { body: text('{"a":1.0,"b":"é"}') });
    await expectReplays(first, (port) => create(key, { body: ` ${text('{"b":"\\u00e9", "a":1.0}')}`, port }));
    readRefusal(
      await create(key, { body: text('{"a":1,"b":"é"}') }),
      "idempotency_conflict",
      "Idempotency-Key",
    );
  });

  test("with another body is a conflict, whether that body is valid, invalid, or of a taken name", async () => {
    const [key, body] = [newKey(), newSchedule()];
    await create(key, { body });
    const before = await gateway.countRows();
    for (const other of [newSchedule(), { ...body, cron: "x" }, { ...body, timezone: "Asia/Tokyo" }, {}]) {
      for (const port of [gateway.port, mate.port]) {
        readRefusal(await create(key, { body: other, port }), "idempotency_conflict", "Idempotency-Key");
      }
    }
    expect(await gateway.countRows()).toEqual(before);
  });

  test("is left free by every refused request", async () => {
    const key = newKey();
    const taken = newSchedule();
    await schedules.create(taken);
    const hobby = await gateway.addProject("hobby");
    for (let n = 0; n < 10; n++) await clientOf(gateway, hobby.production).schedules.create(newSchedule());
    readRefusal(await create(key, { body: { ...taken, cron: "x" } }), "invalid_cron_expression", "cron");
    readRefusal(await create(key, { body: taken }), "schedule_name_taken", "name");
    readRefusal(await create(key, { key: hobby.production }), "plan_limit_exceeded");
    expect(isReplayed(await create(key))).toBe(false);
    await gateway.query("UPDATE projects SET plan = 'pro' WHERE no = $1", [hobby.no]);
    const fresh = await gateway.addKey(hobby, {});
    expect((await create(key, { key: fresh.key })).status).toBe(201);
  });

  test("is replayed although the plan allows no further schedule", async () => {
    const hobby = await gateway.addProject("hobby");
    const [key, body] = [newKey(), newSchedule()];
    const wish = { key: hobby.production, body };
    const first = await create(key, wish);
    for (let n = 0; n < 9; n++) await clientOf(gateway, hobby.production).schedules.create(newSchedule());
    await expectReplays(first, (port) => create(key, { ...wish, port }));
  });

  test("belongs to the environment and the route", async () => {
    const [key, body] = [newKey(), newSchedule()];
    const { cron } = body;
    const answers = [
      await create(key, { body }),
      await create(key, { body, key: project.development }),
      await post("/v2/schedules/preview", key, { body: { cron } }),
    ];
    answers.push(await post(`/v2/schedules/${idOf(answers[0] as Answer)}/run`, key));
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 200, 201]);
    expect(answers.map(isReplayed)).toEqual([false, false, false, false]);
  });

  test("is free again after 24 hours", async () => {
    const [key, body] = [newKey(), newSchedule()];
    const first = await create(key, { body });
    const old = (interval: string) =>
      gateway.query("UPDATE idempotency_keys SET created_at = now() - $1::interval WHERE answer = $2", [
        interval,
        Buffer.from(first.text),
      ]);
    await old("23 h 59 min");
    await expectReplays(first, (port) => create(key, { body, port }));
    await old("24 h 1 min");
    readRefusal(await create(key, { body }), "schedule_name_taken", "name");
    const second = await create(key);
    expect([second.status, isReplayed(second)]).toEqual([201, false]);
  });

  test("on many requests at once over two gateways makes one schedule, and all get its answer", async () => {
    for (let round = 0; round < 5; round++) {
      const own = await gateway.addProject("hobby");
      const [key, body] = [newKey(), newSchedule()];
      const answers = await Promise.all(
        Array.from({ length: 60 }, (_, n) =>
          create(key, { key: own.production, body, port: n % 2 === 0 ? gateway.port : mate.port }),
        ),
      );
      expect(answers.map(({ status }) => status)).toEqual(Array(60).fill(201));
      expect(new Set(answers.map(({ text }) => text)).size).toBe(1);
      expect(answers.filter((answer) => !isReplayed(answer))).toHaveLength(1);
      expect((await clientOf(gateway, own.production).schedules.list()).data).toHaveLength(1);
    }
  });
});

describe("an Idempotency-Key of POST /v2/schedules/preview", () => {
  const preview = (key: string, body: object, port?: number) =>
    post("/v2/schedules/preview", key, { body, ...(port === undefined ? {} : { port }) });

  test("is replayed with its first answer, whatever has changed since", async () => {
    const key = newKey();
    const first = await preview(key, { cron: "@daily" });
    await schedules.create(newSchedule());
    await expectReplays(first, (port) => preview(key, { cron: "@daily" }, port));
  });

  test("with another body is a conflict, even if its answer would be the same", async () => {
    const key = newKey();
    await preview(key, { cron: "@yearly" });
    for (const body of [{ cron: " @yearly" }, { cron: "@yearly", timezone: "UTC" }, { cron: "x" }, {}]) {
      for (const port of [gateway.port, mate.port]) {
        readRefusal(await preview(key, body, port), "idempotency_conflict", "Idempotency-Key");
      }
    }
  });

  test("is left free by a refused request, and belongs to one of many requests at once", async () => {
    const key = newKey();
    readRefusal(await preview(key, { cron: "x" }), "invalid_cron_expression", "cron");
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, n) =>
        preview(key, { cron: "@daily" }, n % 2 === 0 ? gateway.port : mate.port),
      ),
    );
    expect(new Set(answers.map(({ status, text }) => `${status} ${text}`)).size).toBe(1);
    expect(answers.filter((answer) => !isReplayed(answer))).toHaveLength(1);
  });
});

describe("an Idempotency-Key of POST /v2/schedules/{id}/run", () => {
  const run = (id: string, idempotencyKey: string, wish: Wish = {}) =>
    post(`/v2/schedules/${id}/run`, idempotencyKey, wish);
  const countJobs = async () => (await gateway.countRows()).jobs;

  test("makes one job, and is replayed as it was made after the job has ended and its schedule was changed or deleted", async () => {
    const { id } = await schedules.create(newSchedule({ payload: { a: 1 } }));
    const key = newKey();
    const first = await run(id, key);
    const replays = () => expectReplays(first, (port) => run(id, key, { port }));
    await replays();
    await gateway.attempt(project, JSON.parse(first.text), 1, { status: "failed", leaves: "failed" });
    await schedules.update(id, { payload: { b: 2 } });
    await replays();
    await schedules.delete(id);
    await replays();
    await refusalOf(schedules.run(id), "resource_not_found");
  });

  test("belongs to the schedule in the path, and is left free by a refused request", async () => {
    const hobby = await gateway.addProject("hobby");
    const mine = clientOf(gateway, hobby.production).schedules;
    const [one, other] = [await mine.create(newSchedule()), await mine.create(newSchedule())];
    const key = newKey();
    const spend = (runs: number) =>
      gateway.query("UPDATE flows SET month_runs = $2 WHERE project_no = $1", [hobby.no, runs]);
    await spend(10_000);
    readRefusal(await run(one.id, key, { key: hobby.production }), "quota_exceeded");
    await spend(0);
    const first = await run(one.id, key, { key: hobby.production });
    await spend(10_000);
    await expectReplays(first, (port) => run(one.id, key, { key: hobby.production, port }));
    await spend(0);
    expect(isReplayed(await run(other.id, key, { key: hobby.production }))).toBe(false);
    readRefusal(await run(one.id, key), "resource_not_found");
  });

  test("on many requests at once over two gateways makes one job", async () => {
    const { id } = await schedules.create(newSchedule());
    const before = (await countJobs()) ?? 0;
    const key = newKey();
    const answers = await Promise.all(
      Array.from({ length: 40 }, (_, n) => run(id, key, { port: n % 2 === 0 ? gateway.port : mate.port })),
    );
    expect(new Set(answers.map(({ status, text }) => `${status} ${text}`)).size).toBe(1);
    expect(answers.filter((answer) => !isReplayed(answer))).toHaveLength(1);
    expect(await countJobs()).toBe(before + 1);
  });
});
