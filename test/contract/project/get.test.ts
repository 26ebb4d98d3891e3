import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { KEY_SCOPES } from "../../../shared/domain/key.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject("pro", { requestRate: "of its plan" });
});
afterAll(() => gateway.stop());

const show = (key: string) => clientOf(gateway, key).project.get();

describe("GET /v2/project", () => {
  test("shows the project and the environment of the key", async () => {
    const shown = await show(project.production);
    expect(shown).toEqual({
      id: project.id,
      name: "Test",
      plan: "pro",
      default_region: "us-east",
      limits: { requests_per_minute: 600, concurrency: 100, schedules: 1000 },
      usage: { runs_this_period: 0, runs_included: 250_000 },
      api_version: "2026-11-01",
      environment: "production",
      created_at: expect.any(String) as unknown as string,
    });
    expect(await show(project.development)).toEqual({ ...shown, environment: "development" });
  });

  test("counts the runs that have started", async () => {
    const own = await gateway.addProject();
    await gateway.claim(own, await gateway.createJob(own), 1);
    await gateway.attempt(own, await gateway.createJob(own), 1, { status: "failed", leaves: "queued" });
    expect((await show(own.production)).usage.runs_this_period).toBe(2);
  });

  test("shows an operator's overrides, and the default region in effect", async () => {
    const own = await gateway.addProject("hobby");
    await gateway.query(
      "UPDATE projects SET requests_per_minute = 77, concurrency = 3, default_region = 2 WHERE no = $1",
      [own.no],
    );
    expect(await show(own.production)).toMatchObject({
      default_region: "us-east",
      limits: { requests_per_minute: 77, concurrency: 3, schedules: 10 },
      usage: { runs_included: 10_000 },
    });
  });

  test("takes no query parameter", async () => {
    const answer = await gateway.call("GET", "/v2/project?a=1", { key: project.production });
    readRefusal(answer, "invalid_request", "a");
  });

  test.each([...KEY_SCOPES])("shows its project to a key of scope %s", async (scope) => {
    const { key } = await gateway.addKey(project, { scope });
    expect((await show(key)).id).toBe(project.id);
  });
});
