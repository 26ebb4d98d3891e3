import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { clientOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { newWebhook } from "./support.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const webhooks = () => clientOf(gateway, project.production).webhooks;
const sealedOf = async (id: string) =>
  (
    await gateway.query<{ sealed_secret: Buffer; sealed_old_secret: Buffer | null; hours: number | null }>(
      `SELECT sealed_secret, sealed_old_secret, extract(epoch FROM old_secret_until - now())::float8 / 3600 AS hours
         FROM webhooks WHERE id = $1`,
      [idToUuid(id)],
    )
  )[0];

describe("POST /v2/webhooks/{id}/rotate", () => {
  test("shows a new full secret, and changes nothing else of the endpoint", async () => {
    const made = await webhooks().create(newWebhook());
    const { result: rotated, answer } = await webhooks().rotate(made.id).withAnswer();
    expect(answer.status).toBe(200);
    expect(rotated).toEqual({ ...made, secret: expect.stringMatching(/^whsec_[A-Za-z0-9+/]{43}=$/) });
    expect(rotated.secret).not.toBe(made.secret);
    const shown = await webhooks().get(made.id);
    expect(shown).toEqual({ ...made, secret: `whsec_****${rotated.secret.slice(-4)}` });
  });

  test("keeps the previous secret for 24 hours, and none before it", async () => {
    const { id } = await webhooks().create(newWebhook());
    const [first] = [await sealedOf(id)];
    expect(first).toMatchObject({ sealed_old_secret: null, hours: null });
    await webhooks().rotate(id);
    const second = await sealedOf(id);
    expect(second?.sealed_old_secret).toEqual(first?.sealed_secret as Buffer);
    expect(second?.hours).toBeCloseTo(24, 1);
    await webhooks().rotate(id);
    const third = await sealedOf(id);
    expect(third?.sealed_old_secret).toEqual(second?.sealed_secret as Buffer);
    expect(third?.sealed_secret).not.toEqual(second?.sealed_secret as Buffer);
  });

  test("works on a disabled endpoint, which stays disabled", async () => {
    const { id } = await webhooks().create(newWebhook());
    await webhooks().disable(id);
    expect(await webhooks().rotate(id)).toMatchObject({ status: "disabled" });
  });

  test("ignores a body and takes no query parameter", async () => {
    const { id } = await webhooks().create(newWebhook());
    const rotate = (query: string) =>
      gateway.call("POST", `/v2/webhooks/${id}/rotate${query}`, { key: project.production, body: "no JSON" });
    readRefusal(await rotate("?a=1"), "invalid_request", "a");
    expect((await rotate("")).status).toBe(200);
  });
});
