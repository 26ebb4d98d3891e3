import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Client } from "../../../shared/client/index.ts";
import { CanceledJob } from "../../../shared/contract/job.ts";
import { clientOf } from "../../support/client.ts";
import {
  readAs,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  client = clientOf(gateway, project.production);
});
afterAll(() => gateway.stop());

const cancel = (id: string, key = project.production) => gateway.call("DELETE", `/v2/jobs/${id}`, { key });

describe("DELETE /v2/jobs/{id}", () => {
  test("cancels a queued job and answers exactly the documented fields", async () => {
    const job = await gateway.createJob(project, { run_at: "2035-01-01T00:00:00Z" });
    expect(readAs(CanceledJob, await cancel(job.id))).toEqual({
      id: job.id,
      status: "canceled",
      target_url: TARGET_URL,
      region: "us-east",
      attempts: 0,
      created_at: job.created_at,
      run_at: "2035-01-01T00:00:00.000Z",
    });
    expect((await client.jobs.get(job.id)).status).toBe("canceled");
  });

  test("answers canceled at once for a running job, and its run keeps its true result", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.claim(project, job, 1);
    expect(readAs(CanceledJob, await cancel(job.id))).toMatchObject({ status: "canceled", attempts: 1 });
    expect((await client.runs.get(runId)).status).toBe("running");
    expect((await client.jobs.get(job.id)).status).toBe("canceled");
  });

  test("cancels a job between two attempts, and its run plans no retry any more", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "queued" });
    expect((await client.runs.get(runId)).next_retry_at).not.toBeNull();
    expect(readAs(CanceledJob, await cancel(job.id))).toMatchObject({ status: "canceled", attempts: 1 });
    expect((await client.runs.get(runId)).next_retry_at).toBeNull();
  });

  test("ends the unsent run of a manual retry as failed", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    const run = await client.runs.retry(runId);
    readAs(CanceledJob, await cancel(job.id));
    expect(await client.runs.get(run.id)).toMatchObject({
      status: "failed",
      error: "canceled before it was sent",
    });
  });

  test.each(["succeeded", "failed"] as const)("refuses a job that has %s", async (status) => {
    const job = await gateway.createJob(project);
    await gateway.attempt(project, job, 1, { status, leaves: status });
    const before = await gateway.countRows();
    const { message } = readRefusal(await cancel(job.id), "invalid_request");
    expect(message).toContain(status);
    expect(await gateway.countRows()).toEqual(before);
    expect((await client.jobs.get(job.id)).status).toBe(status);
  });

  test("refuses a job that is canceled already", async () => {
    const job = await gateway.createJob(project);
    await cancel(job.id);
    readRefusal(await cancel(job.id), "invalid_request");
  });

  test("succeeds for exactly one of many requests at once", async () => {
    const job = await gateway.createJob(project);
    const answers = await Promise.all(Array.from({ length: 8 }, () => cancel(job.id)));
    expect(answers.map(({ status }) => status).sort()).toEqual([200, ...Array(7).fill(400)]);
  });

  test("answers 404 for a job of another environment or project, and for an unknown or malformed id", async () => {
    const job = await gateway.createJob(project);
    const stranger = await gateway.addProject();
    readRefusal(await cancel(job.id, project.development), "resource_not_found");
    readRefusal(await cancel(job.id, stranger.production), "resource_not_found");
    readRefusal(await cancel("job_00000000000000000000000000"), "resource_not_found");
    readRefusal(await cancel("nonsense"), "resource_not_found");
    expect((await client.jobs.get(job.id)).status).toBe("queued");
  });

  test("refuses a key that may only read, and a query parameter", async () => {
    const job = await gateway.createJob(project);
    const { key } = await gateway.addKey(project, { scope: "read" });
    readRefusal(await cancel(job.id, key), "insufficient_scope");
    readRefusal(await cancel(`${job.id}?force=true`), "invalid_request", "force");
    expect((await client.jobs.get(job.id)).status).toBe("queued");
  });

  test("ignores a body, whatever it holds", async () => {
    const job = await gateway.createJob(project);
    const answer = await gateway.call("DELETE", `/v2/jobs/${job.id}`, {
      key: project.production,
      body: "not json",
      headers: { "Content-Type": "text/plain" },
    });
    expect(answer.status).toBe(200);
  });
});
