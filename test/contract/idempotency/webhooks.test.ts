import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { WEBHOOK_ENDPOINTS_MAX } from "../../../shared/domain/plan.ts";
import { clientOf } from "../../support/client.ts";
import {
  type Answer,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { addDelivery, newWebhook } from "../webhooks/support.ts";

let gateway: TestGateway;
let mate: { port: number; stop(): Promise<void> };
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  mate = await gateway.startMate();
  project = await gateway.addProject();
});
afterAll(async () => {
  await mate.stop();
  await gateway.stop();
});

let lastKey = 0;
const newKey = () => `key ${++lastKey}`;
const webhooks = (owner = project) => clientOf(gateway, owner.production).webhooks;
const addWebhook = async (owner = project) => (await webhooks(owner).create(newWebhook())).id;

interface Wish {
  body?: object | string;
  key?: string;
  port?: number;
}
const post = (path: string, idempotencyKey: string, { body, key = project.production, port }: Wish = {}) =>
  gateway.call("POST", path, {
    key,
    headers: { "Idempotency-Key": idempotencyKey },
    ...(body === undefined ? {} : { body }),
    ...(port === undefined ? {} : { port }),
  });
const create = (key: string, wish: Wish = {}) => post("/v2/webhooks", key, { body: newWebhook(), ...wish });
const isReplayed = ({ headers }: Answer) => headers.get("idempotent-replayed") === "true";
const viewOf = ({ text }: Answer) => JSON.parse(text) as { id: string; secret: string };

/** Expects that the request, sent again through any gateway, gets the first answer and makes nothing. */
async function expectReplays(first: Answer, ask: (port: number) => Promise<Answer>): Promise<void> {
  expect([first.status < 300, isReplayed(first)]).toEqual([true, false]);
  const before = await gateway.countRows();
  for (const port of [gateway.port, mate.port]) {
    const again = await ask(port);
    expect({ status: again.status, text: again.text }).toEqual({ status: first.status, text: first.text });
    expect(isReplayed(again)).toBe(true);
  }
  expect(await gateway.countRows()).toEqual(before);
}

/** Expects that one of many requests at once takes effect, and that all get its answer. */
async function expectOne(ask: (port: number) => Promise<Answer>): Promise<void> {
  const answers = await Promise.all(
    Array.from({ length: 40 }, (_, n) => ask(n % 2 === 0 ? gateway.port : mate.port)),
  );
  expect(new Set(answers.map(({ status, text }) => `${status} ${text}`)).size).toBe(1);
  expect(answers.filter((answer) => !isReplayed(answer))).toHaveLength(1);
  expect(answers[0]?.status).toBeLessThan(300);
}

/** The answers that are kept for Idempotency-Keys, as bytes. */
async function keptAnswers(): Promise<Buffer[]> {
  const rows = await gateway.query<{ answer: Buffer | null }>("SELECT answer FROM idempotency_keys");
  return rows.flatMap(({ answer }) => answer ?? []);
}

describe("an Idempotency-Key of POST /v2/webhooks", () => {
  test("makes one endpoint, and is replayed with its full secret after the endpoint was changed, rotated and deleted", async () => {
    const [key, body] = [newKey(), newWebhook()];
    const first = await create(key, { body });
    const { id, secret } = viewOf(first);
    expect(secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
    const replays = () => expectReplays(first, (port) => create(key, { body, port }));
    await replays();
    await webhooks().update(id, { status: "disabled" });
    await webhooks().rotate(id);
    await replays();
    await webhooks().delete(id);
    await replays();
  });

  test("keeps its answer sealed", async () => {
    const first = await create(newKey());
    const { id, secret } = viewOf(first);
    const kept = await keptAnswers();
    expect(kept.length).toBeGreaterThan(0);
    for (const answer of kept) {
      for (const text of [secret, id, "whsec_"]) expect(answer.includes(text)).toBe(false);
    }
  });

  test("with another body is a conflict, whether that body is valid or not", async () => {
    const [key, body] = [newKey(), newWebhook()];
    await create(key, { body });
    const before = await gateway.countRows();
    for (const other of [{ ...body, description: "x" }, { ...body, url: "x" }, { ...body, events: [] }, {}]) {
      for (const port of [gateway.port, mate.port]) {
        readRefusal(await create(key, { body: other, port }), "idempotency_conflict", "Idempotency-Key");
      }
    }
    expect(await gateway.countRows()).toEqual(before);
  });

  test("is left free by every refused request, and is replayed although the environment allows no further endpoint", async () => {
    const own = await gateway.addProject();
    const wish = { key: own.production };
    const [key, late] = [newKey(), newKey()];
    readRefusal(await create(key, { ...wish, body: newWebhook({ url: "x" }) }), "invalid_request", "url");
    const first = await create(key, wish);
    for (let n = 1; n < WEBHOOK_ENDPOINTS_MAX; n++) await addWebhook(own);
    readRefusal(await create(late, wish), "plan_limit_exceeded");
    await expectReplays(first, (port) => create(key, { ...wish, port }));
    await webhooks(own).delete(viewOf(first).id);
    expect(isReplayed(await create(late, wish))).toBe(false);
  });

  test("on many requests at once over two gateways makes one endpoint", async () => {
    const own = await gateway.addProject();
    const key = newKey();
    await expectOne((port) => create(key, { key: own.production, port }));
    expect((await webhooks(own).list()).data).toHaveLength(1);
  });
});

describe("an Idempotency-Key of POST /v2/webhooks/{id}/rotate", () => {
  test("rotates once, and is replayed with the full secret after the endpoint was changed, rotated and deleted", async () => {
    const id = await addWebhook();
    const key = newKey();
    const rotate = (port = gateway.port) => post(`/v2/webhooks/${id}/rotate`, key, { port });
    const first = await rotate();
    await expectReplays(first, rotate);
    const { secret } = viewOf(first);
    expect((await webhooks().get(id)).secret).toBe(`whsec_****${secret.slice(-4)}`);
    await webhooks().update(id, { description: "x" });
    await webhooks().rotate(id);
    await expectReplays(first, rotate);
    await webhooks().delete(id);
    await expectReplays(first, rotate);
    for (const answer of await keptAnswers()) expect(answer.includes("whsec_")).toBe(false);
  });

  test("belongs to the endpoint in the path, and is left free by a refused request", async () => {
    const [one, other] = [await addWebhook(), await addWebhook()];
    const key = newKey();
    const rotate = (id: string, query = "") => post(`/v2/webhooks/${id}/rotate${query}`, key);
    readRefusal(await rotate(one, "?a=1"), "invalid_request", "a");
    const answers = [await rotate(one), await rotate(other)];
    expect(answers.map(isReplayed)).toEqual([false, false]);
  });

  test("on many requests at once over two gateways rotates once", async () => {
    const id = await addWebhook();
    const key = newKey();
    await expectOne((port) => post(`/v2/webhooks/${id}/rotate`, key, { port }));
  });
});

describe("an Idempotency-Key of POST /v2/webhooks/{id}/test", () => {
  test("owes one sample, and is replayed as it was after the sample was retried and the endpoint changed or deleted", async () => {
    const id = await addWebhook();
    const key = newKey();
    const ask = (port = gateway.port) => post(`/v2/webhooks/${id}/test`, key, { port });
    const first = await ask();
    await expectReplays(first, ask);
    await webhooks().retry(id, viewOf(first).id);
    await webhooks().update(id, { events: ["job.failed"], status: "disabled" });
    await expectReplays(first, ask);
    await webhooks().delete(id);
    await expectReplays(first, ask);
  });

  test("is left free by a disabled endpoint, and owes one sample on many requests at once", async () => {
    const id = await addWebhook();
    const key = newKey();
    const ask = (port: number) => post(`/v2/webhooks/${id}/test`, key, { port });
    await webhooks().disable(id);
    readRefusal(await ask(gateway.port), "invalid_request");
    await webhooks().enable(id);
    await expectOne(ask);
    expect((await webhooks().deliveries(id)).data).toHaveLength(1);
  });
});

describe("an Idempotency-Key of POST /v2/webhooks/{id}/deliveries/{delivery_id}/retry", () => {
  const retry = (webhookId: string, id: string, key: string, port = gateway.port) =>
    post(`/v2/webhooks/${webhookId}/deliveries/${id}/retry`, key, { port });

  test("retries once, and is replayed as it was after the delivery has gone on and the endpoint was deleted", async () => {
    const webhookId = await addWebhook();
    const id = await addDelivery(gateway, project, webhookId, { state: "failed", attempts: 2 });
    const key = newKey();
    const first = await retry(webhookId, id, key);
    const replays = () => expectReplays(first, (port) => retry(webhookId, id, key, port));
    await replays();
    await gateway.query("UPDATE open_deliveries SET node_id = 1, started_at = now(), due_at = NULL");
    await replays();
    readRefusal(await retry(webhookId, id, newKey()), "invalid_request");
    await webhooks().delete(webhookId);
    await replays();
  });

  test("belongs to the delivery in the path, and is left free by a refused request", async () => {
    const webhookId = await addWebhook();
    const [one, other] = [
      await addDelivery(gateway, project, webhookId, { state: "failed", attempts: 2 }),
      await addDelivery(gateway, project, webhookId, { state: "failed", attempts: 2 }),
    ];
    const key = newKey();
    await gateway.query("UPDATE webhooks SET enabled = false");
    readRefusal(await retry(webhookId, one, key), "invalid_request");
    await gateway.query("UPDATE webhooks SET enabled = true");
    const answers = [await retry(webhookId, one, key), await retry(webhookId, other, key)];
    expect(answers.map(isReplayed)).toEqual([false, false]);
    expect(answers.map((answer) => viewOf(answer).id)).toEqual([one, other]);
  });

  test("on many requests at once over two gateways retries once", async () => {
    const webhookId = await addWebhook();
    const id = await addDelivery(gateway, project, webhookId, { state: "succeeded", attempts: 1 });
    const key = newKey();
    await expectOne((port) => retry(webhookId, id, key, port));
    const [row] = await gateway.query<{ attempt: number }>(
      "SELECT attempt FROM open_deliveries WHERE attempt = 2",
    );
    expect(row).toEqual({ attempt: 2 });
  });
});
