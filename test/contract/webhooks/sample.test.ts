import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { HOME_REGION } from "../../../shared/domain/plan.ts";
import { until } from "../../runtime-contract/until.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newWebhook } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const webhooks = (key = project.production) => clientOf(gateway, key).webhooks;

describe("POST /v2/webhooks/{id}/test", () => {
  test("owes one attempt of a sample, due at once, and tells the worker of it", async () => {
    const startedAt = Date.now();
    const { id } = await webhooks().create(newWebhook());
    const { result: sample, answer } = await webhooks().test(id).withAnswer();
    expect(answer.status).toBe(200);
    expect(sample).toEqual({
      id: expect.stringMatching(/^dlv_[0-9a-z]{26}$/),
      webhook_id: id,
      event_id: expect.stringMatching(/^evt_[0-9a-z]{26}$/),
      event_type: "job.succeeded",
      job_id: null,
      status: "pending",
      attempts: [],
      next_attempt_at: expect.any(String),
      created_at: expect.any(String),
    });
    const dueAt = Date.parse(sample.next_attempt_at ?? "");
    expect(dueAt).toBeGreaterThanOrEqual(startedAt);
    expect(dueAt).toBeLessThanOrEqual(Date.now());
    expect(await webhooks().deliveries(id)).toEqual({ data: [sample], next_cursor: null });

    const ofSample = () => gateway.commands.find(({ owed }) => owed[0]?.id === sample.id);
    await until(() => ofSample() !== undefined);
    const command = ofSample();
    expect(command).toMatchObject({ region: HOME_REGION, projectNo: project.no });
    expect(command?.owed).toMatchObject([
      { projectNo: project.no, flowClass: "production webhooks", id: sample.id, attempt: 1 },
    ]);
    expect(Math.trunc(command?.owed[0]?.dueAt ?? 0)).toBe(dueAt);
    const rows = await gateway.query(
      `SELECT d.by_hand, d.attempt, d.generation, l.has_deliveries, l.shard
         FROM open_deliveries d JOIN lanes l USING (project_no, region, environment) WHERE d.project_no = $1`,
      [project.no],
    );
    expect(rows).toEqual([
      { by_hand: true, attempt: 1, generation: 0, has_deliveries: true, shard: command?.shard },
    ]);
  });

  test("uses the first event type that the endpoint subscribes to", async () => {
    const { id } = await webhooks().create(newWebhook({ events: ["job.failed"] }));
    const sample = await webhooks().test(id);
    expect(sample.event_type).toBe("job.failed");
    const events = await gateway.query(
      "SELECT type, run_status, response_status, job_id, api_version FROM events WHERE type = 1",
    );
    expect(events).toEqual([
      { type: 1, run_status: 2, response_status: 500, job_id: null, api_version: "2026-11-01" },
    ]);
  });

  test("works in an environment that never had a job, and in a lane that never had a delivery", async () => {
    const own = await gateway.addProject();
    const hasDeliveries = async () =>
      (
        await gateway.query<{ has_deliveries: boolean }>(
          "SELECT has_deliveries FROM lanes WHERE project_no = $1",
          [own.no],
        )
      ).map((row) => row.has_deliveries);
    const { id } = await webhooks(own.development).create(newWebhook());
    expect(await hasDeliveries()).toEqual([]);
    await webhooks(own.development).test(id);
    expect(await hasDeliveries()).toEqual([true]);
    await gateway.createJob(own);
    expect((await hasDeliveries()).toSorted()).toEqual([false, true]);
    await webhooks(own.production).test((await webhooks(own.production).create(newWebhook())).id);
    expect(await hasDeliveries()).toEqual([true, true]);
  });

  test("refuses a disabled endpoint without a trace", async () => {
    const { id } = await webhooks().create(newWebhook());
    await webhooks().disable(id);
    const before = await gateway.countRows();
    await refusalOf(webhooks().test(id), "invalid_request");
    expect(await gateway.countRows()).toEqual(before);
  });

  test("ignores a body and takes no query parameter", async () => {
    const { id } = await webhooks().create(newWebhook());
    const ask = (query: string) =>
      gateway.call("POST", `/v2/webhooks/${id}/test${query}`, { key: project.production, body: "no JSON" });
    readRefusal(await ask("?a=1"), "invalid_request", "a");
    expect((await ask("")).status).toBe(200);
  });
});
