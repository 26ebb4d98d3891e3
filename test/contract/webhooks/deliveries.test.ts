import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Delivery, DeliveryListQuery, Page } from "../../../shared/client/index.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { addDelivery, type DeliveryWish, eventOf, newWebhook } from "./support.ts";

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
const list = (webhookId: string, query?: DeliveryListQuery) => webhooks().deliveries(webhookId, query);
const idsOf = ({ data }: Page<Delivery>) => data.map(({ id }) => id);

/** Adds a delivery in each state, the newest last. Answers them as lists must show them. */
async function addAll(webhookId: string) {
  const ids = {
    succeeded: await add(webhookId, { state: "succeeded", attempts: 2 }),
    failed: await add(webhookId, { state: "failed", attempts: 1 }),
    dropped: await add(webhookId, { state: "dropped" }),
    waiting: await add(webhookId, { state: "waiting", attempts: 1, region: 3 }),
    running: await add(webhookId, { state: "in progress", attempts: 1, region: 2 }),
  };
  return { ids, newestFirst: Object.values(ids).toReversed() };
}

describe("GET /v2/webhooks/{id}/deliveries", () => {
  test("answers an empty list for an endpoint without deliveries", async () => {
    expect(await list(await addWebhook())).toEqual({ data: [], next_cursor: null });
  });

  test("shows every delivery with all its attempts, newest first", async () => {
    const webhookId = await addWebhook();
    const { ids, newestFirst } = await addAll(webhookId);
    const { data } = await list(webhookId);
    expect(data.map(({ id }) => id)).toEqual(newestFirst);
    const [running, waiting, dropped, failed, succeeded] = data as [
      Delivery,
      Delivery,
      Delivery,
      Delivery,
      Delivery,
    ];
    const failure = { status: "failed", response_status: 500, error: "no", duration_ms: 7 };
    const common = { webhook_id: webhookId, event_type: "job.failed", created_at: expect.any(String) };
    const started_at = expect.stringMatching(/Z$/) as unknown as string;
    expect(succeeded).toEqual({
      ...common,
      ...eventOf(ids.succeeded),
      id: ids.succeeded,
      status: "succeeded",
      attempts: [
        { attempt: 1, ...failure, started_at },
        { attempt: 2, ...failure, status: "succeeded", started_at },
      ],
      next_attempt_at: null,
    } as Delivery);
    expect(failed).toMatchObject({ status: "failed", attempts: [{ attempt: 1 }], next_attempt_at: null });
    expect(dropped).toMatchObject({ status: "dropped", attempts: [], next_attempt_at: null });
    expect(waiting).toMatchObject({ status: "pending", attempts: [{ attempt: 1, ...failure }] });
    expect(Date.parse(waiting.next_attempt_at ?? "")).toBeGreaterThan(Date.now());
    expect(running).toMatchObject({ status: "pending", next_attempt_at: null });
    expect(running.attempts).toEqual([
      { attempt: 1, ...failure, started_at },
      { attempt: 2, status: "running", response_status: null, error: null, started_at, duration_ms: null },
    ] as Delivery["attempts"]);
    expect(data.map(({ created_at }) => created_at)).toEqual(
      data
        .map(({ created_at }) => created_at)
        .toSorted()
        .toReversed(),
    );
  });

  test("filters by status", async () => {
    const webhookId = await addWebhook();
    const { ids } = await addAll(webhookId);
    expect(idsOf(await list(webhookId, { status: "pending" }))).toEqual([ids.running, ids.waiting]);
    for (const status of ["succeeded", "failed", "dropped"] as const) {
      expect(idsOf(await list(webhookId, { status }))).toEqual([ids[status]]);
    }
  });

  test("shows what was owed before the endpoint was disabled as dropped, at once and after it is enabled again", async () => {
    const webhookId = await addWebhook();
    const { ids, newestFirst } = await addAll(webhookId);
    const droppedIds = [ids.running, ids.waiting, ids.dropped];
    const look = async () => {
      expect(idsOf(await list(webhookId))).toEqual(newestFirst);
      expect(idsOf(await list(webhookId, { status: "pending" }))).toEqual([]);
      const dropped = await list(webhookId, { status: "dropped" });
      expect(idsOf(dropped)).toEqual(droppedIds);
      expect(dropped.data.every(({ next_attempt_at }) => next_attempt_at === null)).toBe(true);
    };
    await webhooks().disable(webhookId);
    await look();
    await webhooks().enable(webhookId);
    await look();
    const next = await add(webhookId, { state: "waiting" });
    expect(idsOf(await list(webhookId, { status: "pending" }))).toEqual([next]);
    await webhooks().disable(webhookId);
    droppedIds.unshift(next);
    newestFirst.unshift(next);
    await look();
  });

  test("shows open deliveries of a disabled endpoint as dropped, even before the drop is written", async () => {
    const webhookId = await addWebhook();
    const id = await add(webhookId, { state: "waiting" });
    await gateway.query("UPDATE webhooks SET enabled = false WHERE id = $1", [idToUuid(webhookId)]);
    expect(idsOf(await list(webhookId, { status: "dropped" }))).toEqual([id]);
    expect(idsOf(await list(webhookId, { status: "pending" }))).toEqual([]);
  });

  test("lists all generations and tables in one order over all pages, each delivery once", async () => {
    const webhookId = await addWebhook();
    const made: string[] = [];
    for (let generation = 0; generation < 4; generation++) {
      for (const state of ["waiting", "failed", "dropped", "succeeded", "in progress"] as const) {
        made.push(await add(webhookId, { state, attempts: state === "dropped" ? 0 : 1 }));
      }
      if (generation < 3) {
        await webhooks().disable(webhookId);
        await webhooks().enable(webhookId);
      }
    }
    const seen: string[] = [];
    for await (const page of list(webhookId, { limit: 3 }).pages()) {
      seen.push(...idsOf(page));
      await add(webhookId, { state: "waiting" });
    }
    expect(seen).toEqual(made.toReversed());
    const dropped: string[] = [];
    for await (const { id } of list(webhookId, { limit: 2, status: "dropped" })) dropped.push(id);
    expect(dropped).toHaveLength(3 * 3 + 1);
    expect(dropped).toEqual(dropped.toSorted().toReversed());
  });

  test("shows deliveries of the one endpoint only", async () => {
    const [mine, other] = [await addWebhook(), await addWebhook()];
    const id = await add(mine, { state: "waiting" });
    await add(other, { state: "waiting" });
    await add(other, { state: "failed" });
    expect(idsOf(await list(mine))).toEqual([id]);
  });

  test("shows the last 30 days", async () => {
    const webhookId = await addWebhook();
    const shown = await add(webhookId, { state: "failed", age: 30 * DAY_MS - 60_000 });
    const open = await add(webhookId, { state: "waiting", age: 29 * DAY_MS });
    for (const state of ["failed", "succeeded", "waiting", "in progress"] as const)
      await add(webhookId, { state, age: 30 * DAY_MS + 60_000 });
    expect(idsOf(await list(webhookId))).toEqual([open, shown]);
  });

  test("ends a page of long errors early, and goes on with the next page", async () => {
    const webhookId = await addWebhook();
    const made: string[] = [];
    for (let n = 0; n < 60; n++)
      made.push(await add(webhookId, { state: "failed", attempts: 40, error: "é".repeat(2_048) }));
    const sizes: number[] = [];
    const seen: string[] = [];
    for await (const page of list(webhookId, { limit: 200 }).pages()) {
      sizes.push(page.data.length);
      seen.push(...idsOf(page));
      expect(Buffer.byteLength(JSON.stringify(page))).toBeLessThan(5 * 1_048_576);
    }
    expect(sizes.length).toBe(3);
    expect(seen).toEqual(made.toReversed());
  });

  test.each([
    ["limit=0", "limit"],
    ["limit=201", "limit"],
    ["status=running", "status"],
    ["status=", "status"],
    ["event_type=job.failed", "event_type"],
    ["cursor=abc", "cursor"],
  ])("refuses ?%s", async (query, param) => {
    const answer = await gateway.call("GET", `/v2/webhooks/${await addWebhook()}/deliveries?${query}`, {
      key: project.production,
    });
    readRefusal(answer, "invalid_request", param);
  });

  test("has cursors that belong to the one endpoint with its filter", async () => {
    const [mine, other] = [await addWebhook(), await addWebhook()];
    for (let n = 0; n < 3; n++) await add(mine, { state: "failed" });
    const { next_cursor: cursor } = await list(mine, { limit: 1, status: "failed" });
    const get = (path: string) => gateway.call("GET", `/v2/webhooks${path}`, { key: project.production });
    expect((await get(`/${mine}/deliveries?status=failed&cursor=${cursor}`)).status).toBe(200);
    for (const path of [
      `/${mine}/deliveries?cursor=${cursor}`,
      `/${mine}/deliveries?status=dropped&cursor=${cursor}`,
      `/${other}/deliveries?status=failed&cursor=${cursor}`,
      `?cursor=${cursor}`,
    ]) {
      readRefusal(await get(path), "invalid_request", "cursor");
    }
  });
});
