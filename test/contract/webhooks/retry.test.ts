import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { DELIVERY_PREFIX, idToUuid } from "../../../shared/domain/ids.ts";
import { DELIVERY_ATTEMPTS_MAX } from "../../../shared/domain/webhook.ts";
import { until } from "../../runtime-contract/until.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { addDelivery, type DeliveryWish, newWebhook } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const DAY_MS = 86_400_000;
const webhooks = () => clientOf(gateway, project.production).webhooks;
const addWebhook = async () => (await webhooks().create(newWebhook())).id;
const add = (webhookId: string, wish: DeliveryWish) => addDelivery(gateway, project, webhookId, wish);

async function openRow(id: string) {
  const rows = await gateway.query<{
    due_at: Date;
    attempt: number;
    by_hand: boolean;
    generation: number;
    region: number;
    first_started_at: Date | null;
  }>(
    "SELECT due_at, attempt, by_hand, generation, region, first_started_at FROM open_deliveries WHERE id = $1",
    [idToUuid(id)],
  );
  return rows[0];
}
const hasEnded = async (id: string) =>
  (await gateway.query("SELECT FROM ended_deliveries WHERE id = $1", [idToUuid(id)])).length === 1;

/** Waits for the message that tells the worker of the attempt. */
async function toldOf(id: string) {
  const find = () => gateway.commands.find(({ owed }) => owed.some((attempt) => attempt.id === id));
  await until(() => find() !== undefined);
  return find();
}

describe("POST /v2/webhooks/{id}/deliveries/{delivery_id}/retry", () => {
  test("makes the waiting attempt of a delivery due now, and later attempts follow as planned", async () => {
    const webhookId = await addWebhook();
    const id = await add(webhookId, { state: "waiting", attempts: 2, region: 2 });
    const before = await openRow(id);
    const startedAt = Date.now();
    const { result, answer } = await webhooks().retry(webhookId, id).withAnswer();
    expect(answer.status).toBe(200);
    expect(result).toMatchObject({ id, webhook_id: webhookId, status: "pending", attempts: { length: 2 } });
    const dueAt = Date.parse(result.next_attempt_at ?? "");
    expect(dueAt).toBeGreaterThanOrEqual(startedAt);
    expect(dueAt).toBeLessThanOrEqual(Date.now());
    expect(await openRow(id)).toEqual({ ...before, due_at: new Date(dueAt) } as never);
    expect((await webhooks().deliveries(webhookId)).data).toEqual([result]);
    const command = await toldOf(id);
    expect(command).toMatchObject({
      region: "eu-central",
      projectNo: project.no,
      owed: [{ projectNo: project.no, flowClass: "production webhooks", id, attempt: 3 }],
    });
  });

  test.each(["succeeded", "failed", "dropped"] as const)(
    "opens one that has %s again for exactly one more attempt",
    async (state) => {
      const webhookId = await addWebhook();
      await webhooks().disable(webhookId);
      await webhooks().enable(webhookId);
      const attempts = state === "dropped" ? 0 : 3;
      const id = await add(webhookId, { state, attempts, region: 1 });
      const result = await webhooks().retry(webhookId, id);
      expect(result).toMatchObject({ id, status: "pending", attempts: { length: attempts } });
      expect(await openRow(id)).toEqual({
        due_at: new Date(result.next_attempt_at ?? ""),
        attempt: attempts + 1,
        by_hand: true,
        generation: 1,
        region: 1,
        first_started_at: new Date(result.created_at),
      });
      expect(await hasEnded(id)).toBe(false);
      expect((await webhooks().deliveries(webhookId)).data).toEqual([result]);
      expect(await toldOf(id)).toMatchObject({ region: "us-west", owed: [{ attempt: attempts + 1 }] });
    },
  );

  test("opens a delivery again that was dropped when its endpoint was disabled and is still stored", async () => {
    const webhookId = await addWebhook();
    const id = await add(webhookId, { state: "waiting", attempts: 1 });
    await webhooks().disable(webhookId);
    await webhooks().enable(webhookId);
    expect(await webhooks().retry(webhookId, id)).toMatchObject({
      status: "pending",
      attempts: { length: 1 },
    });
    expect(await openRow(id)).toMatchObject({ attempt: 2, by_hand: true, generation: 1 });
  });

  test("can be repeated while the attempt waits", async () => {
    const webhookId = await addWebhook();
    const id = await add(webhookId, { state: "failed", attempts: 1 });
    await webhooks().retry(webhookId, id);
    await webhooks().retry(webhookId, id);
    expect(await openRow(id)).toMatchObject({ attempt: 2, by_hand: true });
  });

  test("refuses a delivery in progress, one of a disabled endpoint, and one with too many attempts", async () => {
    const webhookId = await addWebhook();
    const running = await add(webhookId, { state: "in progress", attempts: 1 });
    const often = await add(webhookId, { state: "failed", attempts: DELIVERY_ATTEMPTS_MAX });
    const failed = await add(webhookId, { state: "failed", attempts: 1 });
    const waiting = await add(webhookId, { state: "waiting", attempts: 1 });
    const before = [await gateway.countRows(), await openRow(waiting)];
    const messageOf = async (id: string) =>
      (await refusalOf(webhooks().retry(webhookId, id), "invalid_request")).message;
    expect(await messageOf(running)).toContain("in progress");
    expect(await messageOf(often)).toContain("100 attempts");
    await gateway.query("UPDATE webhooks SET enabled = false WHERE id = $1", [idToUuid(webhookId)]);
    for (const id of [running, often, failed, waiting]) expect(await messageOf(id)).toContain("disabled");
    expect([await gateway.countRows(), await openRow(waiting)]).toEqual(before as never);
  });

  test("answers 404 for a delivery older than 30 days", async () => {
    const webhookId = await addWebhook();
    const young = await add(webhookId, { state: "failed", attempts: 1, age: 30 * DAY_MS - 60_000 });
    const old = await add(webhookId, { state: "failed", attempts: 1, age: 30 * DAY_MS + 60_000 });
    await refusalOf(webhooks().retry(webhookId, old), "resource_not_found");
    expect(await webhooks().retry(webhookId, young)).toMatchObject({ id: young });
    await refusalOf(webhooks().retry(webhookId, DELIVERY_PREFIX + "0".repeat(26)), "resource_not_found");
  });

  test("ignores a body and takes no query parameter", async () => {
    const webhookId = await addWebhook();
    const id = await add(webhookId, { state: "waiting" });
    const ask = (query: string) =>
      gateway.call("POST", `/v2/webhooks/${webhookId}/deliveries/${id}/retry${query}`, {
        key: project.production,
        body: "no JSON",
      });
    readRefusal(await ask("?a=1"), "invalid_request", "a");
    expect((await ask("")).status).toBe(200);
  });
});
