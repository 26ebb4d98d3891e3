import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { Run } from "../../../shared/contract/run.ts";
import {
  type JobView,
  readAs,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let job: JobView;
let runId: string;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  job = await gateway.createJob(project);
  runId = (await gateway.attempt(project, job, 1, { status: "failed", leaves: "queued" })).runId;
});
afterAll(() => gateway.stop());

const get = (id: string, key = project.production) => gateway.call("GET", `/v2/runs/${id}`, { key });

describe("GET /v2/runs/{id}", () => {
  test("shows a run that has ended", async () => {
    expect(readAs(Run, await get(runId))).toEqual({
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

  test("shows a run in progress, with nothing of its outcome", async () => {
    const running = await gateway.createJob(project);
    const claimed = await gateway.claim(project, running, 1);
    expect(readAs(Run, await get(claimed.runId))).toMatchObject({
      job_id: running.id,
      status: "running",
      response_status: null,
      error: null,
      duration_ms: null,
      next_retry_at: null,
    });
  });

  test("finds no other environment's, other project's, unknown or malformed run", async () => {
    const stranger = await gateway.addProject();
    readRefusal(await get(runId, project.development), "resource_not_found");
    readRefusal(await get(runId, stranger.production), "resource_not_found");
    readRefusal(await get("run_00000000000000000000000000"), "resource_not_found");
    readRefusal(await get(job.id), "resource_not_found");
  });

  test("does not find a run outside the plan's retention window, judged by the present plan", async () => {
    const old = await gateway.createJob(project);
    const { runId: oldId } = await gateway.attempt(project, old, 1, { status: "failed", leaves: "failed" });
    await gateway.query(
      "UPDATE runs SET started_at = now() - interval '30 days 1 minute' WHERE attempt = 1 AND id IN (SELECT id FROM runs ORDER BY id DESC LIMIT 1)",
    );
    readRefusal(await get(oldId), "resource_not_found");
    readRefusal(
      await gateway.call("POST", `/v2/runs/${oldId}/retry`, { key: project.production }),
      "resource_not_found",
    );
    await gateway.query("UPDATE projects SET plan = 'scale' WHERE no = $1", [project.no]);
    // A key that no gateway has seen is looked up with the plan as it is now.
    const { key } = await gateway.addKey(project, {});
    expect(readAs(Run, await get(oldId, key)).status).toBe("failed");
    await gateway.query("UPDATE projects SET plan = 'pro' WHERE no = $1", [project.no]);
  });

  test("takes no query parameter", async () => {
    readRefusal(await get(`${runId}?a=1`), "invalid_request", "a");
  });
});
