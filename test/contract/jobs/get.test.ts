import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Client } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import {
  type JobView,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;
let job: JobView;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  client = clientOf(gateway, project.production);
  job = await gateway.createJob(project, { payload: { a: 1 } });
});
afterAll(() => gateway.stop());

const get = (id: string, key = project.production) => gateway.call("GET", `/v2/jobs/${id}`, { key });

describe("GET /v2/jobs/{id}", () => {
  test("shows the job as its creation did", async () => {
    expect(await client.jobs.get(job.id)).toEqual(job);
  });

  test("shows a job's states through its attempts", async () => {
    const moved = await gateway.createJob(project);
    const { runId } = await gateway.claim(project, moved, 1);
    expect(runId).toStartWith("run_");
    expect(await client.jobs.get(moved.id)).toMatchObject({ status: "running", attempts: 1 });
    const other = await gateway.createJob(project);
    await gateway.attempt(project, other, 1, { status: "failed", leaves: "queued" });
    expect(await client.jobs.get(other.id)).toMatchObject({ status: "queued", attempts: 1 });
    await gateway.attempt(project, other, 2, { status: "succeeded", leaves: "succeeded" });
    expect(await client.jobs.get(other.id)).toMatchObject({ status: "succeeded", attempts: 2 });
  });

  test("answers every 404 with the same bytes except the request id, so that nobody learns of another's job", async () => {
    const stranger = await gateway.addProject();
    const answers = [
      await get("job_00000000000000000000000000"),
      await get(job.id, project.development),
      await get(job.id, stranger.production),
      await get("batch"),
      await get(job.id.toUpperCase()),
      await get("%zz"),
      await get(`${job.id}/`),
      await get(`${job.id}/runs`),
      await gateway.call("GET", "/v2/nothing", { key: project.production }),
    ];
    const bytes = answers.map((answer) => {
      const { request_id } = readRefusal(answer, "resource_not_found");
      const headers = [...answer.headers].filter(
        ([name]) => !["request-id", "date", "ratelimit-remaining"].includes(name),
      );
      return JSON.stringify([headers, answer.text.replace(request_id, "")]);
    });
    expect(new Set(bytes).size).toBe(1);
  });

  test("takes no query parameter", async () => {
    readRefusal(await get(`${job.id}?a=1`), "invalid_request", "a");
  });

  test("is open to keys with the scopes read and jobs", async () => {
    for (const scope of ["read", "jobs"] as const) {
      const { key } = await gateway.addKey(project, { scope });
      expect((await get(job.id, key)).status).toBe(200);
    }
  });
});
