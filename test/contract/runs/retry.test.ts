import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Client } from "../../../shared/client/index.ts";
import { Run } from "../../../shared/contract/run.ts";
import { clientOf } from "../../support/client.ts";
import {
  readAs,
  readRefusal,
  startTestGateway,
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

const retry = (id: string, key = project.production) => gateway.call("POST", `/v2/runs/${id}/retry`, { key });

describe("POST /v2/runs/{id}/retry", () => {
  test.each(["failed", "timed_out"] as const)("reopens a failed job whose run is %s", async (status) => {
    const job = await gateway.createJob(project, { retry_policy: { max_attempts: 1 } });
    const { runId } = await gateway.attempt(project, job, 1, { status, leaves: "failed" });
    const run = readAs(Run, await retry(runId), 201);
    expect(run).toEqual({
      id: expect.stringMatching(/^run_/) as unknown as string,
      job_id: job.id,
      attempt: 2,
      status: "running",
      response_status: null,
      error: null,
      started_at: expect.any(String) as unknown as string,
      duration_ms: null,
      next_retry_at: null,
    });
    expect(await client.runs.get(run.id)).toEqual(run);
    expect(await client.jobs.get(job.id)).toMatchObject({ status: "running", attempts: 2 });
  });

  test("tells the worker of the attempt", async () => {
    const job = await gateway.createJob(project, { region: "us-west" });
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    const run = readAs(Run, await retry(runId), 201);
    const told = () =>
      gateway.commands.find(({ owed }) => owed.some((o) => o.id === job.id && o.attempt === 2));
    for (let turn = 0; turn < 1_000 && told() === undefined; turn++) await new Promise(setImmediate);
    expect(told()).toMatchObject({ region: "us-west", projectNo: project.no });
    expect(Math.abs((told()?.owed[0]?.dueAt ?? 0) - Date.parse(run.started_at))).toBeLessThan(2);
  });

  test("replaces a pending automatic retry", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "queued" });
    expect((await client.runs.get(runId)).next_retry_at).not.toBeNull();
    expect(readAs(Run, await retry(runId), 201).attempt).toBe(2);
    expect((await client.runs.get(runId)).next_retry_at).toBeNull();
    expect((await client.jobs.get(job.id)).attempts).toBe(2);
  });

  test("refuses a run that succeeded or is still running", async () => {
    const done = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, done, 1, { status: "succeeded", leaves: "succeeded" });
    const running = await gateway.claim(project, await gateway.createJob(project), 1);
    const before = await gateway.countRows();
    expect(readRefusal(await retry(runId), "invalid_request").message).toContain("succeeded");
    expect(readRefusal(await retry(running.runId), "invalid_request").message).toContain("running");
    expect(await gateway.countRows()).toEqual(before);
  });

  test("refuses a failed run whose job is running, has succeeded or was canceled", async () => {
    const failedOnce = async () => {
      const job = await gateway.createJob(project);
      return { job, ...(await gateway.attempt(project, job, 1, { status: "failed", leaves: "queued" })) };
    };
    const running = await failedOnce();
    await gateway.claim(project, running.job, 2);
    expect(readRefusal(await retry(running.runId), "invalid_request").message).toContain("running");
    const succeeded = await failedOnce();
    await gateway.attempt(project, succeeded.job, 2, { status: "succeeded", leaves: "succeeded" });
    expect(readRefusal(await retry(succeeded.runId), "invalid_request").message).toContain("succeeded");
    const canceled = await failedOnce();
    await client.jobs.cancel(canceled.job.id);
    expect(readRefusal(await retry(canceled.runId), "invalid_request").message).toContain("canceled");
  });

  test("refuses the attempt after 32,767, and none before", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    await gateway.query("UPDATE ended_jobs SET attempts = 32766 WHERE project_no = $1", [project.no]);
    await gateway.query("UPDATE runs SET attempt = 32766 WHERE project_no = $1", [project.no]);
    const last = readAs(Run, await retry(runId), 201);
    expect(last.attempt).toBe(32_767);
    await gateway.attempt(project, job, 32_767, { status: "failed", leaves: "failed" });
    const before = await gateway.countRows();
    for (const id of [runId, last.id]) {
      expect(readRefusal(await retry(id), "invalid_request").message).toBe(
        "A job has at most 32767 attempts.",
      );
    }
    expect(await gateway.countRows()).toEqual(before);
    expect((await client.jobs.get(job.id)).attempts).toBe(32_767);
  });

  test("begins an attempt for exactly one of many requests at once", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    const answers = await Promise.all(Array.from({ length: 8 }, () => retry(runId)));
    expect(answers.map(({ status }) => status).sort()).toEqual([201, ...Array(7).fill(400)]);
    expect((await client.jobs.get(job.id)).attempts).toBe(2);
  });

  test("counts as a run of the month, and is refused when the quota is spent", async () => {
    const hobby = await gateway.addProject("hobby");
    const job = await gateway.createJob(hobby);
    const { runId } = await gateway.attempt(hobby, job, 1, { status: "failed", leaves: "failed" });
    await gateway.query("UPDATE flows SET month_runs = 9999 WHERE project_no = $1", [hobby.no]);
    const again = readAs(Run, await retry(runId, hobby.production), 201);
    await gateway.attempt(hobby, job, 2, { status: "failed", leaves: "failed" });
    const before = await gateway.countRows();
    const answer = await retry(again.id, hobby.production);
    readRefusal(answer, "quota_exceeded");
    expect(Number(answer.headers.get("retry-after"))).toBeGreaterThan(0);
    expect(await gateway.countRows()).toEqual(before);
  });

  test("answers 404 for a run of another environment or project, and for an unknown or malformed id", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    const stranger = await gateway.addProject();
    readRefusal(await retry(runId, project.development), "resource_not_found");
    readRefusal(await retry(runId, stranger.production), "resource_not_found");
    readRefusal(await retry("run_00000000000000000000000000"), "resource_not_found");
    readRefusal(await retry("nonsense"), "resource_not_found");
    expect((await client.jobs.get(job.id)).status).toBe("failed");
  });

  test("refuses a key that may only read, a query parameter and a malformed Idempotency-Key", async () => {
    const job = await gateway.createJob(project);
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    const { key } = await gateway.addKey(project, { scope: "read" });
    readRefusal(await retry(runId, key), "insufficient_scope");
    readRefusal(
      await gateway.call("POST", `/v2/runs/${runId}/retry?a=1`, { key: project.production }),
      "invalid_request",
      "a",
    );
    readRefusal(
      await gateway.call("POST", `/v2/runs/${runId}/retry`, {
        key: project.production,
        headers: { "Idempotency-Key": "x".repeat(256) },
      }),
      "invalid_request",
      "Idempotency-Key",
    );
    expect((await client.jobs.get(job.id)).status).toBe("failed");
  });
});
