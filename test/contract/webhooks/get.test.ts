import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Webhook } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import {
  type Answer,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { addDelivery, newWebhook } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;
let webhook: Webhook;
let deliveryId: string;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  const { webhooks } = clientOf(gateway, project.production);
  const { secret, ...made } = await webhooks.create(newWebhook({ description: "Billing" }));
  webhook = { ...made, secret: `whsec_****${secret.slice(-4)}` };
  deliveryId = await addDelivery(gateway, project, webhook.id, { state: "failed", attempts: 2 });
});
afterAll(() => gateway.stop());

const get = (id: string, key = project.production) => gateway.call("GET", `/v2/webhooks/${id}`, { key });

/** Everything that a client sees of a refusal, except what differs in every request. */
function bytesOf(answer: Answer): string {
  const { request_id } = readRefusal(answer, "resource_not_found");
  const headers = [...answer.headers].filter(
    ([name]) => !["request-id", "date", "ratelimit-remaining"].includes(name),
  );
  return JSON.stringify([headers, answer.text.replace(request_id, "")]);
}

describe("GET /v2/webhooks/{id}", () => {
  test("shows the endpoint as its creation did, with its secret masked", async () => {
    expect(await clientOf(gateway, project.production).webhooks.get(webhook.id)).toEqual(webhook);
  });

  test("takes no query parameter", async () => {
    readRefusal(await get(`${webhook.id}?a=1`), "invalid_request", "a");
  });

  test("is open to keys that may read, and closed to keys for jobs", async () => {
    const [reader, worker] = [
      await gateway.addKey(project, { scope: "read" }),
      await gateway.addKey(project, { scope: "jobs" }),
    ];
    for (const path of ["", "?limit=1", `/${webhook.id}`, `/${webhook.id}/deliveries`]) {
      expect((await gateway.call("GET", `/v2/webhooks${path}`, { key: reader.key })).status).toBe(200);
      readRefusal(
        await gateway.call("GET", `/v2/webhooks${path}`, { key: worker.key }),
        "insufficient_scope",
      );
    }
    for (const path of ["rotate", "test", `deliveries/${deliveryId}/retry`]) {
      for (const { key } of [reader, worker]) {
        readRefusal(
          await gateway.call("POST", `/v2/webhooks/${webhook.id}/${path}`, { key }),
          "insufficient_scope",
        );
      }
    }
  });
});

describe("an endpoint that is not the caller's", () => {
  const OPERATIONS: [method: string, suffix: string, body?: object][] = [
    ["GET", ""],
    ["PATCH", "", { status: "disabled" }],
    ["PATCH", "", { url: "no URL", unknown: 1 }],
    ["DELETE", ""],
    ["GET", "/deliveries"],
    ["POST", "/rotate"],
    ["POST", "/test"],
    ["POST", "/deliveries/DELIVERY/retry"],
  ];

  test("looks to every operation like a missing one: the same bytes except the request id", async () => {
    const stranger = await gateway.addProject();
    const other = await clientOf(gateway, project.production).webhooks.create(newWebhook());
    const before = await gateway.countRows();
    const call = (method: string, id: string, suffix: string, key: string, body?: object) =>
      gateway.call(method, `/v2/webhooks/${id}${suffix.replace("DELIVERY", deliveryId)}`, {
        key,
        ...(body === undefined ? {} : { body }),
      });
    const answers: Answer[] = [
      await gateway.call("GET", "/v2/nothing", { key: project.production }),
      await get("%zz"),
      await get(`${webhook.id}/`),
      await get(`${webhook.id}/deliveries/${deliveryId}`),
    ];
    for (const [method, suffix, body] of OPERATIONS) {
      for (const key of [project.development, stranger.production])
        answers.push(await call(method, webhook.id, suffix, key, body));
      const malformed = [webhook.id.toUpperCase(), webhook.id.replace("whk_", "sch_"), "x", "%zz"];
      for (const id of [`whk_${"0".repeat(26)}`, ...malformed]) {
        answers.push(await call(method, id, suffix, project.production, body));
      }
    }
    // A delivery is found under its own endpoint only.
    for (const id of [
      deliveryId.toUpperCase(),
      deliveryId.replace("dlv_", "evt_"),
      "x",
      "%zz",
      `dlv_${"0".repeat(26)}`,
    ])
      answers.push(await call("POST", webhook.id, `/deliveries/${id}/retry`, project.production));
    answers.push(await call("POST", other.id, `/deliveries/${deliveryId}/retry`, project.production));
    expect(answers).toHaveLength(4 + 7 * OPERATIONS.length + 6);
    expect(new Set(answers.map(bytesOf)).size).toBe(1);
    expect(await gateway.countRows()).toEqual(before);
    expect(await clientOf(gateway, project.production).webhooks.get(webhook.id)).toEqual(webhook);
  });
});
