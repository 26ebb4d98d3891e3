import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Page, RevealedWebhook, Webhook, WebhookListQuery } from "../../../shared/client/index.ts";
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

const webhooksOf = (owner: TestProject) => clientOf(gateway, owner.production).webhooks;
const list = (owner: TestProject, query?: WebhookListQuery) => webhooksOf(owner).list(query);
const get = (query: string, key = project.production) => gateway.call("GET", `/v2/webhooks${query}`, { key });
const idsOf = ({ data }: Page<Webhook>) => data.map(({ id }) => id);

/** Creates endpoints. Answers them in the order of their creation. */
async function addWebhooks(owner: TestProject, count: number): Promise<RevealedWebhook[]> {
  const made: RevealedWebhook[] = [];
  for (let n = 0; n < count; n++) made.push(await webhooksOf(owner).create(newWebhook()));
  return made;
}

describe("GET /v2/webhooks", () => {
  test("answers an empty list in an environment without endpoints", async () => {
    expect(await list(project)).toEqual({ data: [], next_cursor: null });
  });

  test("answers the endpoints of the one environment, newest first, with masked secrets", async () => {
    const own = await gateway.addProject();
    const made = await addWebhooks(own, 3);
    await clientOf(gateway, own.development).webhooks.create(newWebhook());
    const masked = made.map((webhook) => ({ ...webhook, secret: `whsec_****${webhook.secret.slice(-4)}` }));
    const { result, answer } = await list(own).withAnswer();
    expect(result).toEqual({ data: masked.toReversed(), next_cursor: null });
    for (const { secret } of made) expect(answer.text).not.toContain(secret.slice(0, -4));
  });

  test("shows the enabled ones, the disabled ones, or all", async () => {
    const own = await gateway.addProject();
    const [first, second, third] = (await addWebhooks(own, 3)).map(({ id }) => id) as [
      string,
      string,
      string,
    ];
    await webhooksOf(own).disable(second);
    expect(idsOf(await list(own))).toEqual([third, second, first]);
    expect(idsOf(await list(own, { status: "disabled" }))).toEqual([second]);
    expect(idsOf(await list(own, { status: "enabled" }))).toEqual([third, first]);
  });

  test("shows each endpoint that stays exactly once over all pages while others are added, disabled and deleted", async () => {
    const own = await gateway.addProject();
    const made = await addWebhooks(own, 16);
    const gone = made.filter((_, index) => index % 4 === 0);
    const seen: string[] = [];
    for await (const page of list(own, { limit: 3 }).pages()) {
      expect(page.data.length).toBeLessThanOrEqual(3);
      seen.push(...idsOf(page));
      const victim = gone.shift();
      if (victim !== undefined) await webhooksOf(own).delete(victim.id);
      await addWebhooks(own, 1);
      await webhooksOf(own).disable(made[1]?.id ?? "");
    }
    expect(new Set(seen).size).toBe(seen.length);
    const stayed = made.filter((_, index) => index % 4 !== 0).map(({ id }) => id);
    expect(seen.filter((id) => stayed.includes(id))).toEqual(stayed.toReversed());
  });

  test.each([
    ["limit=0", "limit"],
    ["limit=201", "limit"],
    ["status=", "status"],
    ["status=Enabled", "status"],
    ["status=enabled&status=enabled", "status"],
    ["events=job.failed", "events"],
    ["cursor=abc", "cursor"],
  ])("refuses ?%s", async (query, param) => {
    readRefusal(await get(`?${query}`), "invalid_request", param);
  });

  test("has cursors that belong to the one list with its filter", async () => {
    const own = await gateway.addProject();
    const stranger = await gateway.addProject();
    const made = await addWebhooks(own, 3);
    const cursor = (await list(own, { limit: 1, status: "enabled" })).next_cursor ?? "";
    expect(idsOf(await list(own, { limit: 1, status: "enabled", cursor }))).toEqual([made[1]?.id ?? ""]);
    const refused = [
      await get(`?cursor=${cursor}`, own.production),
      await get(`?status=disabled&cursor=${cursor}`, own.production),
      await get(`?status=enabled&cursor=${cursor}`, own.development),
      await get(`?status=enabled&cursor=${cursor}`, stranger.production),
      await get(`/${made[0]?.id}/deliveries?cursor=${cursor}`, own.production),
    ];
    for (const answer of refused) readRefusal(answer, "invalid_request", "cursor");
  });
});
