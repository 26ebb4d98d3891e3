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
let runId: string;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  client = clientOf(gateway, project.production);
  job = await gateway.createJob(project);
  runId = (await gateway.attempt(project, job, 1, { status: "failed", leaves: "queued" })).runId;
});
afterAll(() => gateway.stop());

const get = (id: string, key = project.production) => gateway.call("GET", `/v2/runs/${id}`, { key });

describe("GET /v2/runs/{id}", () => {
  test("shows a run that has ended", async () => {
    expect(await client.runs.get(runId)).toEqual({
      id: runId,
      job_id: job.id,
      attempt: 1,
      status: "failed",
      response_status: 500,
      error: "it broke",
      started_at: expect.any(String),
      duration_ms: 12,
      next_retry_at: expect.any(String),
    });
  });

  test("shows a run in progress, without an outcome", async () => {
    const running = await gateway.createJob(project);
    const claimed = await gateway.claim(project, running, 1);
    expect(await client.runs.get(claimed.runId)).toMatchObject({
      job_id: running.id,
      status: "running",
      response_status: null,
      error: null,
      duration_ms: null,
      next_retry_at: null,
    });
  });

  test("answers 404 for a run of another environment or project, and for an unknown or malformed id", async () => {
    const stranger = await gateway.addProject();
    readRefusal(await get(runId, project.development), "resource_not_found");
    readRefusal(await get(runId, stranger.production), "resource_not_found");
    readRefusal(await get("run_00000000000000000000000000"), "resource_not_found");
    readRefusal(await get(job.id), "resource_not_found");
  });

  test("takes no query parameter", async () => {
    readRefusal(await get(`${runId}?a=1`), "invalid_request", "a");
  });
});
