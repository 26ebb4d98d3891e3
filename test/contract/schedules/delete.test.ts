import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { purgeExpired } from "../../../services/worker/duties/purge.ts";
import type { Schedules } from "../../../shared/client/index.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newSchedule } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
let schedules: Schedules;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  schedules = clientOf(gateway, project.production).schedules;
});
afterAll(() => gateway.stop());

describe("DELETE /v2/schedules/{id}", () => {
  test("answers once, and then every operation answers 404", async () => {
    const { id } = await schedules.create(newSchedule());
    const { result, answer } = await schedules.delete(id).withAnswer();
    expect([answer.status, result]).toEqual([200, { id, deleted: true }]);
    for (const call of [
      () => schedules.delete(id),
      () => schedules.get(id),
      () => schedules.pause(id),
      () => schedules.firings(id),
      () => schedules.run(id),
    ]) {
      await refusalOf(call(), "resource_not_found");
    }
    expect((await schedules.list()).data.map((schedule) => schedule.id)).not.toContain(id);
  });

  test("leaves nothing that could fire, whether it was paused or not", async () => {
    const [active, paused] = [await schedules.create(newSchedule()), await schedules.create(newSchedule())];
    await schedules.pause(paused.id);
    for (const { id } of [active, paused]) await schedules.delete(id);
    await purgeExpired(gateway.db, Date.now());
    for (const table of ["schedules", "timetables"]) {
      const rows = await gateway.query(`SELECT FROM ${table}`);
      expect(rows, table).toHaveLength((await schedules.list()).data.length);
    }
  });

  test("frees the name at once", async () => {
    const fields = newSchedule();
    const first = await schedules.create(fields);
    await schedules.delete(first.id);
    const second = await schedules.create(fields);
    expect(second.id).not.toBe(first.id);
    await schedules.delete(second.id);
  });

  test("leaves the schedule's jobs as they are", async () => {
    const { jobs } = clientOf(gateway, project.production);
    const { id } = await schedules.create(newSchedule({ payload: { kept: 1 } }));
    const job = await schedules.run(id);
    await schedules.delete(id);
    expect(await jobs.get(job.id)).toEqual(job);
    await gateway.attempt(project, job, 1, { status: "succeeded", leaves: "succeeded" });
    expect(await jobs.get(job.id)).toMatchObject({ status: "succeeded", payload: { kept: 1 } });
  });

  test("succeeds for one of many requests at once", async () => {
    const { id } = await schedules.create(newSchedule());
    const outcomes = await Promise.all(
      Array.from({ length: 20 }, () =>
        schedules.delete(id).then(
          () => "deleted",
          ({ code }) => code as string,
        ),
      ),
    );
    expect(outcomes.toSorted()).toEqual(["deleted", ...Array(19).fill("resource_not_found")]);
  });

  test("refuses a query parameter, and a key that may not write schedules", async () => {
    const { id } = await schedules.create(newSchedule());
    const call = (query: string, key: string) =>
      gateway.call("DELETE", `/v2/schedules/${id}${query}`, { key });
    readRefusal(await call("?force=1", project.production), "invalid_request", "force");
    for (const scope of ["read", "jobs"] as const) {
      const { key } = await gateway.addKey(project, { scope });
      readRefusal(await call("", key), "insufficient_scope");
    }
    expect((await schedules.get(id)).id).toBe(id);
  });
});
