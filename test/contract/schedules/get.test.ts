import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Schedule } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import {
  type Answer,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { newSchedule } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
let schedule: Schedule;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  schedule = await clientOf(gateway, project.production).schedules.create(newSchedule());
});
afterAll(() => gateway.stop());

const get = (id: string, key = project.production) => gateway.call("GET", `/v2/schedules/${id}`, { key });

/** Everything that a client sees of a refusal, except what differs in every request. */
function bytesOf(answer: Answer): string {
  const { request_id } = readRefusal(answer, "resource_not_found");
  const headers = [...answer.headers].filter(
    ([name]) => !["request-id", "date", "ratelimit-remaining"].includes(name),
  );
  return JSON.stringify([headers, answer.text.replace(request_id, "")]);
}

describe("GET /v2/schedules/{id}", () => {
  test("shows the schedule as its creation did", async () => {
    expect(await clientOf(gateway, project.production).schedules.get(schedule.id)).toEqual(schedule);
  });

  test("takes no query parameter", async () => {
    readRefusal(await get(`${schedule.id}?a=1`), "invalid_request", "a");
  });

  test("is open to keys that may read, and closed to keys for jobs", async () => {
    const [reader, worker] = [
      await gateway.addKey(project, { scope: "read" }),
      await gateway.addKey(project, { scope: "jobs" }),
    ];
    for (const path of ["", "?limit=1", `/${schedule.id}`, `/${schedule.id}/firings`]) {
      expect((await gateway.call("GET", `/v2/schedules${path}`, { key: reader.key })).status).toBe(200);
      readRefusal(
        await gateway.call("GET", `/v2/schedules${path}`, { key: worker.key }),
        "insufficient_scope",
      );
    }
  });
});

describe("a schedule that is not the caller's", () => {
  const OPERATIONS: [method: string, suffix: string, body?: object][] = [
    ["GET", ""],
    ["PATCH", "", { paused: true }],
    ["PATCH", "", { cron: "no cron", unknown: 1 }],
    ["DELETE", ""],
    ["GET", "/firings"],
    ["POST", "/run"],
  ];

  test("looks to every operation like a missing one: the same bytes except the request id", async () => {
    const stranger = await gateway.addProject();
    const before = await gateway.countRows();
    const answers: Answer[] = [
      await gateway.call("GET", "/v2/nothing", { key: project.production }),
      await get("preview"),
      await get("%zz"),
      await get(`${schedule.id}/`),
    ];
    for (const [method, suffix, body] of OPERATIONS) {
      const call = (id: string, key: string) =>
        gateway.call(method, `/v2/schedules/${id}${suffix}`, {
          key,
          ...(body === undefined ? {} : { body }),
        });
      for (const key of [project.development, stranger.production])
        answers.push(await call(schedule.id, key));
      for (const id of [
        `sch_${"0".repeat(26)}`,
        schedule.id.toUpperCase(),
        schedule.id.replace("sch_", "job_"),
        "x",
      ]) {
        answers.push(await call(id, project.production));
      }
    }
    expect(answers).toHaveLength(4 + 6 * OPERATIONS.length);
    expect(new Set(answers.map(bytesOf)).size).toBe(1);
    expect(await gateway.countRows()).toEqual(before);
    expect(await clientOf(gateway, project.production).schedules.get(schedule.id)).toEqual(schedule);
  });
});
