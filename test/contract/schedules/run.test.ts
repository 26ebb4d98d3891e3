import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Schedules } from "../../../shared/client/index.ts";
import { until } from "../../runtime-contract/until.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
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

describe("POST /v2/schedules/{id}/run", () => {
  test("creates an ordinary job of the schedule, due at once", async () => {
    const fields = {
      payload: { report: 7 },
      retry_policy: { max_attempts: 3, base_seconds: 2, cap_seconds: 9 },
    };
    const { id } = await schedules.create(newSchedule(fields));
    const startedAt = Date.now();
    const { result: job, answer } = await schedules.run(id).withAnswer();
    expect(job).toEqual({
      id: expect.stringMatching(/^job_/),
      status: "queued",
      target_url: TARGET_URL,
      ...fields,
      region: "us-east",
      attempts: 0,
      run_at: job.created_at,
      created_at: expect.any(String),
    });
    expect(answer.status).toBe(201);
    expect(Date.parse(job.run_at)).toBeGreaterThanOrEqual(startedAt);
    const { jobs } = clientOf(gateway, project.production);
    expect(await jobs.get(job.id)).toEqual(job);
    expect((await jobs.list({ limit: 1 })).data).toMatchObject([{ id: job.id }]);
    const told = () => gateway.commands.flatMap(({ owed }) => owed.map(({ id }) => id));
    await until(() => told().includes(job.id));
  });

  test("names the schedule to its target, and is attempted like any other job", async () => {
    const { id } = await schedules.create(newSchedule());
    const job = await schedules.run(id);
    const [row] = await gateway.query<{ found: boolean }>(
      "SELECT j.schedule_id = s.id AS found FROM jobs j, schedules s WHERE j.schedule_id = s.id AND j.project_no = $1 AND j.run_at = $2",
      [project.no, job.run_at],
    );
    expect(row?.found).toBe(true);
    await gateway.attempt(project, job, 1, { status: "succeeded", leaves: "succeeded" });
    expect(await clientOf(gateway, project.production).jobs.get(job.id)).toMatchObject({
      status: "succeeded",
    });
  });

  test("stays outside the timetable: the next firing and the ledger stay, and a paused schedule can be run", async () => {
    const schedule = await schedules.create(newSchedule());
    await schedules.run(schedule.id);
    expect(await schedules.get(schedule.id)).toEqual(schedule);
    await schedules.pause(schedule.id);
    const [one, other] = [await schedules.run(schedule.id), await schedules.run(schedule.id)];
    expect(one.id).not.toBe(other.id);
    expect((await schedules.firings(schedule.id)).data).toEqual([]);
    expect((await schedules.get(schedule.id)).paused).toBe(true);
  });

  test("uses the schedule as it is now", async () => {
    const { id } = await schedules.create(newSchedule({ payload: { old: 1 } }));
    await schedules.update(id, { payload: { new: 2 } });
    expect((await schedules.run(id)).payload).toEqual({ new: 2 });
  });

  test("runs in the project's present default region, if its plan allows it", async () => {
    const own = await gateway.addProject();
    const client = clientOf(gateway, own.production);
    const { id } = await client.schedules.create(newSchedule());
    expect((await client.schedules.run(id)).region).toBe("us-east");
    await client.project.update({ default_region: "eu-central" });
    expect((await client.schedules.run(id)).region).toBe("eu-central");
    await gateway.query("UPDATE projects SET plan = 'hobby' WHERE no = $1", [own.no]);
    const { key } = await gateway.addKey(own, {});
    expect((await clientOf(gateway, key).schedules.run(id)).region).toBe("us-east");
  });

  test("ignores a body", async () => {
    const { id } = await schedules.create(newSchedule({ payload: { a: 1 } }));
    const path = `/v2/schedules/${id}/run`;
    for (const body of ['{"payload":{"b":2}}', "{"]) {
      const answer = await gateway.call("POST", path, { key: project.production, body });
      expect([answer.status, JSON.parse(answer.text).payload]).toEqual([201, { a: 1 }]);
    }
  });

  test("is refused without quota, names when there will be some, and creates nothing", async () => {
    const hobby = await gateway.addProject("hobby");
    const mine = clientOf(gateway, hobby.production).schedules;
    const { id } = await mine.create(newSchedule());
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    const before = await gateway.countRows();
    const refusal = await refusalOf(mine.run(id), "quota_exceeded");
    expect([refusal.status, refusal.retryAfterSeconds]).toEqual([429, expect.any(Number)]);
    expect(await gateway.countRows()).toEqual(before);
    await gateway.query("UPDATE flows SET month_runs = 9999 WHERE project_no = $1", [hobby.no]);
    expect((await mine.run(id)).status).toBe("queued");
  });

  test("refuses a query parameter, and a key that may not write schedules", async () => {
    const { id } = await schedules.create(newSchedule());
    const before = await gateway.countRows();
    const call = (query: string, key: string) =>
      gateway.call("POST", `/v2/schedules/${id}/run${query}`, { key });
    readRefusal(await call("?region=us-west", project.production), "invalid_request", "region");
    expect(await gateway.countRows()).toEqual(before);
    for (const scope of ["read", "jobs"] as const) {
      const { key } = await gateway.addKey(project, { scope });
      readRefusal(await call("", key), "insufficient_scope");
    }
  });
});
