import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { RevealedWebhook, WebhookUpdate } from "../../../shared/client/index.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
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
const BOTH_ORDERS: RevealedWebhook["events"][] = [
  ["job.failed", "job.succeeded"],
  ["job.succeeded", "job.failed"],
];
const add = () => webhooks().create(newWebhook({ description: "Billing" }));
const maskedOf = (made: RevealedWebhook) => ({ ...made, secret: `whsec_****${made.secret.slice(-4)}` });

async function rowOf({ id }: { id: string }) {
  const [row] = await gateway.query<{
    generation: number;
    failing_since: Date | null;
    succeeded_at: Date | null;
    sealed_secret: Buffer;
  }>("SELECT generation, failing_since, succeeded_at, sealed_secret FROM webhooks WHERE id = $1", [
    idToUuid(id),
  ]);
  if (row === undefined) throw new Error(`there is no endpoint ${id}`);
  return row;
}

describe("PATCH /v2/webhooks/{id}", () => {
  test("changes the given fields and keeps the rest, the secret included", async () => {
    const made = await add();
    const before = maskedOf(made);
    const changes: WebhookUpdate[] = [
      { url: "https://example.com/other" },
      { events: ["job.failed"] },
      { description: "Ops" },
      { status: "disabled" },
      {},
    ];
    let expected = before;
    for (const change of changes) {
      expected = { ...expected, ...change } as typeof expected;
      expect(await webhooks().update(made.id, change)).toEqual(expected);
    }
    expect(await webhooks().get(made.id)).toEqual(expected);
  });

  test("replaces the whole list of events, and shows it in the given order", async () => {
    const { id } = await webhooks().create(newWebhook({ events: ["job.succeeded"] }));
    expect((await webhooks().update(id, { events: ["job.failed"] })).events).toEqual(["job.failed"]);
    for (const events of BOTH_ORDERS) {
      expect((await webhooks().update(id, { events })).events).toEqual(events);
      expect((await webhooks().get(id)).events).toEqual(events);
    }
  });

  test("takes effect for each of many requests at once over two gateways", async () => {
    const { id } = await add();
    const mate = await gateway.startMate();
    const changes: WebhookUpdate[] = Array.from({ length: 30 }, (_, n) =>
      n % 2 === 0 ? { url: `https://example.com/${n}` } : { description: `of ${n}` },
    );
    const answers = await Promise.all(
      changes.map((change, n) =>
        clientOf(gateway, project.production, n % 4 < 2 ? gateway.port : mate.port).webhooks.update(
          id,
          change,
        ),
      ),
    );
    await mate.stop();
    answers.forEach((answer, n) => {
      expect(answer).toMatchObject(changes[n] as object);
    });
  });

  test("clears the description by null, and keeps a blank one", async () => {
    const { id } = await add();
    expect((await webhooks().update(id, { description: null })).description).toBeNull();
    await webhooks().update(id, { description: "x" });
    expect((await webhooks().update(id, { description: " " })).description).toBe(" ");
    expect((await webhooks().get(id)).description).toBe(" ");
  });

  test("drops what is owed when it disables, and an enabled endpoint begins anew", async () => {
    const made = await add();
    const waiting = await addDelivery(gateway, project, made.id, { state: "waiting", attempts: 1 });
    const since = "UPDATE webhooks SET failing_since = now() - interval '40 h' WHERE id = $1";
    await gateway.query(since, [idToUuid(made.id)]);
    const { generation, sealed_secret } = await rowOf(made);
    expect(await webhooks().disable(made.id)).toMatchObject({ status: "disabled" });
    expect((await rowOf(made)).generation).toBe(generation + 1);
    const statusOf = async () =>
      (await webhooks().deliveries(made.id)).data.map(({ id, status }) => ({ id, status }));
    expect(await statusOf()).toEqual([{ id: waiting, status: "dropped" }]);
    expect(await webhooks().enable(made.id)).toEqual(maskedOf(made));
    expect(await rowOf(made)).toMatchObject({
      generation: generation + 1,
      failing_since: null,
      sealed_secret,
    });
    expect(await statusOf()).toEqual([{ id: waiting, status: "dropped" }]);
  });

  test("changes nothing when it disables a disabled endpoint or enables an enabled one", async () => {
    const made = await add();
    await gateway.query("UPDATE webhooks SET failing_since = now() WHERE id = $1", [idToUuid(made.id)]);
    const before = await rowOf(made);
    await webhooks().enable(made.id);
    expect(await rowOf(made)).toEqual(before);
    await webhooks().disable(made.id);
    const disabled = await rowOf(made);
    await webhooks().update(made.id, { status: "disabled", description: "still" });
    expect(await rowOf(made)).toEqual(disabled);
  });

  test.each<[string, object, string]>([
    ["no https", { url: "http://example.com/" }, "url"],
    ["a private address", { url: "https://10.0.0.1/" }, "url"],
    ["url null", { url: null }, "url"],
    ["no events", { events: [] }, "events"],
    ["an unknown event", { events: ["job.queued"] }, "events[0]"],
    ["an event given twice", { events: ["job.failed", "job.failed"] }, "events[1]"],
    ["events null", { events: null }, "events"],
    ["an unknown status", { status: "paused" }, "status"],
    ["status null", { status: null }, "status"],
    ["a number for description", { description: 1 }, "description"],
    ["too long a description", { description: "x".repeat(201) }, "description"],
    ["the secret", { secret: "whsec_x" }, "secret"],
    ["the id", { id: "whk_x" }, "id"],
  ])("refuses %s, and changes nothing", async (_, wish, param) => {
    const made = await add();
    const before = await rowOf(made);
    const changed = { description: "Other", ...wish };
    await refusalOf(webhooks().update(made.id, changed as WebhookUpdate), "invalid_request", param);
    expect(await webhooks().get(made.id)).toEqual(maskedOf(made));
    expect(await rowOf(made)).toEqual(before);
  });

  test("refuses a query parameter and a body that is not an object", async () => {
    const { id } = await add();
    const patch = (path: string, body: object | string) =>
      gateway.call("PATCH", `/v2/webhooks/${path}`, { key: project.production, body });
    readRefusal(await patch(`${id}?a=1`, {}), "invalid_request", "a");
    readRefusal(await patch(id, "[]"), "invalid_request");
    readRefusal(await patch(id, "x"), "invalid_request");
  });
});
