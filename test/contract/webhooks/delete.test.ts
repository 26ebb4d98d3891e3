import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { addDelivery, newWebhook } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const webhooks = () => clientOf(gateway, project.production).webhooks;

describe("DELETE /v2/webhooks/{id}", () => {
  test("removes the endpoint, disabled or not, with its deliveries", async () => {
    for (const isEnabled of [true, false]) {
      const { id } = await webhooks().create(newWebhook());
      const deliveryId = await addDelivery(gateway, project, id, { state: "failed", attempts: 1 });
      if (!isEnabled) await webhooks().disable(id);
      expect(await webhooks().delete(id)).toEqual({ id, deleted: true });
      for (const call of [
        () => webhooks().get(id),
        () => webhooks().delete(id),
        () => webhooks().update(id, { status: "enabled" }),
        () => webhooks().rotate(id),
        () => webhooks().test(id),
        () => webhooks().deliveries(id),
        () => webhooks().retry(id, deliveryId),
      ]) {
        await refusalOf(call(), "resource_not_found");
      }
    }
    expect((await webhooks().list()).data).toEqual([]);
  });

  test("ignores a body and takes no query parameter", async () => {
    const { id } = await webhooks().create(newWebhook());
    const remove = (query: string) =>
      gateway.call("DELETE", `/v2/webhooks/${id}${query}`, { key: project.production, body: "no JSON" });
    readRefusal(await remove("?a=1"), "invalid_request", "a");
    expect((await remove("")).status).toBe(200);
  });
});
