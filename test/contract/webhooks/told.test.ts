import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { NewWebhook } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import { startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newWebhook } from "./support.ts";

/** Events that requests cause, as the API shows the deliveries that are owed for them. */

let gateway: TestGateway;
let project: TestProject;
beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const webhooks = () => clientOf(gateway, project.production).webhooks;
const add = async (...events: NewWebhook["events"]) => (await webhooks().create(newWebhook({ events }))).id;
const owedTo = async (id: string) => (await webhooks().deliveries(id)).data;

describe("an endpoint that asks for it", () => {
  test("is owed job.canceled by the request that cancels a job, and a worker is told of it", async () => {
    const [asking, other] = [await add("job.canceled"), await add("job.failed")];
    const { id } = await gateway.createJob(project);
    await clientOf(gateway, project.production).jobs.cancel(id);
    const [owed, ...more] = await owedTo(asking);
    expect([more, await owedTo(other)]).toEqual([[], []]);
    expect(owed).toMatchObject({ event_type: "job.canceled", job_id: id, status: "pending", attempts: [] });
    const told = gateway.commands.flatMap((command) => command.owed.map((attempt) => attempt.id));
    expect(told).toContain(owed?.id ?? "");
  });

  test("is owed webhook.disabled by the request that disables another one, and about no job", async () => {
    const [asking, disabled] = [await add("webhook.disabled"), await add("job.failed", "webhook.disabled")];
    await webhooks().disable(disabled);
    await webhooks().disable(disabled);
    expect(await owedTo(asking)).toMatchObject([
      { event_type: "webhook.disabled", job_id: null, status: "pending" },
    ]);
    expect(await owedTo(disabled)).toEqual([]);
    await webhooks().delete(disabled);
    expect((await owedTo(asking)).length).toBe(1);
  });

  test.each([
    "job.canceled",
    "schedule.firing_missed",
    "schedule.firing_skipped",
    "webhook.disabled",
    "quota.reached",
  ] as const)("is sent a sample of %s", async (type) => {
    const sample = await webhooks().test(await add(type));
    expect(sample).toMatchObject({ event_type: type, job_id: null, status: "pending" });
  });
});
