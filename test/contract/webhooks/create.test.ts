import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { NewWebhook } from "../../../shared/client/index.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../../../shared/domain/plan.ts";
import { EVENT_TYPES } from "../../../shared/domain/webhook.ts";
import { clientOf, refusalOf } from "../../support/client.ts";
import { readRefusal, startTestGateway, type TestGateway, type TestProject } from "../../support/gateway.ts";
import { ENDPOINT_URL, newWebhook } from "./support.ts";

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

const webhooksOf = (key: string, port?: number) => clientOf(gateway, key, port).webhooks;
const create = (wish?: Partial<NewWebhook>, key = project.production, port?: number) =>
  webhooksOf(key, port).create(newWebhook(wish));

/** Expects the documented refusal, and no new row in any table. */
async function expectNoTrace(body: object | string, code: ErrorCode, param?: string) {
  const before = await gateway.countRows();
  const answer = await gateway.call("POST", "/v2/webhooks", { key: project.production, body });
  const error = readRefusal(answer, code, param);
  expect(await gateway.countRows()).toEqual(before);
  return error;
}

describe("POST /v2/webhooks", () => {
  test("creates an enabled endpoint, and shows its full secret only in this answer", async () => {
    const startedAt = Date.now();
    const { result: made, answer } = await create().withAnswer();
    expect(answer.status).toBe(201);
    expect(made).toEqual({
      id: expect.stringMatching(/^whk_[0-9a-z]{26}$/),
      url: ENDPOINT_URL,
      events: ["job.succeeded", "job.failed"],
      status: "enabled",
      description: null,
      created_at: expect.any(String),
      secret: expect.stringMatching(/^whsec_[A-Za-z0-9+/]{43}=$/),
    });
    expect(Date.parse(made.created_at)).toBeGreaterThanOrEqual(startedAt);
    const masked = { ...made, secret: `whsec_****${made.secret.slice(-4)}` };
    expect(await webhooksOf(project.production).get(made.id)).toEqual(masked);
    expect((await webhooksOf(project.production).list()).data[0]).toEqual(masked);
  });

  test("answers events as they were given, however many and in whichever order", async () => {
    const orders: NewWebhook["events"][] = [
      ["job.canceled"],
      ["job.canceled", "job.succeeded"],
      ["job.failed", "job.canceled"],
      [...EVENT_TYPES],
      [...EVENT_TYPES].reverse(),
    ];
    for (const events of orders) {
      const { id } = await create({ events });
      const webhooks = webhooksOf(project.production);
      expect((await webhooks.get(id)).events).toEqual(events);
      for (const next of orders) {
        expect((await webhooks.update(id, { events: next })).events).toEqual(next);
        expect((await webhooks.get(id)).events).toEqual(next);
      }
      await webhooks.delete(id);
    }
  });

  test("gives each endpoint a secret of its own, and stores none in plain text", async () => {
    const secrets = [(await create()).secret, (await create()).secret];
    expect(new Set(secrets).size).toBe(2);
    const rows = await gateway.query<{ row: string; sealed: Buffer }>(
      "SELECT w::text AS row, sealed_secret AS sealed FROM webhooks w",
    );
    for (const secret of secrets) {
      for (const { row, sealed } of rows) {
        expect(row).not.toContain(secret.slice(-20));
        expect(sealed.includes(Buffer.from(secret.slice("whsec_".length), "base64"))).toBe(false);
        expect(sealed.includes(secret)).toBe(false);
      }
    }
  });

  test.each<NewWebhook["events"][]>([
    [["job.succeeded", "job.failed"]],
    [["job.failed", "job.succeeded"]],
    [["job.failed"]],
    [["job.succeeded"]],
  ])("shows events in the given order: %j", async (events) => {
    const made = await create({ events });
    expect(made.events).toEqual(events);
    expect((await webhooksOf(project.production).get(made.id)).events).toEqual(events);
  });

  test("keeps a description of up to 200 characters as it is, blank or not", async () => {
    const description = `${"👩‍🚀".repeat(66)}ab`;
    expect([...description].length).toBe(200);
    expect((await create({ description })).description).toBe(description);
    for (const blank of ["", "   ", "\u00a0"]) {
      const { id, description: shown } = await create({ description: blank });
      expect(shown).toBe(blank);
      expect((await webhooksOf(project.production).get(id)).description).toBe(blank);
    }
    await expectNoTrace(newWebhook({ description: `${description}c` }), "invalid_request", "description");
  });

  test("accepts any port and path of a public host", async () => {
    const url = "https://example.com:8443/a?b=c#d";
    expect((await create({ url })).url).toBe(url);
    expect((await create({ url: `https://example.com/${"a".repeat(2_028)}` })).url).toHaveLength(2_048);
  });

  test("requires url and events", async () => {
    const { url, events } = newWebhook();
    await expectNoTrace({ events }, "invalid_request", "url");
    await expectNoTrace({ url }, "invalid_request", "events");
    await expectNoTrace({}, "invalid_request", "url");
  });

  test.each<[string, object, string]>([
    ["no https", { url: "http://example.com/" }, "url"],
    ["no URL", { url: "example.com" }, "url"],
    ["an empty URL", { url: "" }, "url"],
    ["credentials", { url: "https://a:b@example.com/" }, "url"],
    ["loopback", { url: "https://127.0.0.1/" }, "url"],
    ["the metadata service", { url: "https://169.254.169.254/" }, "url"],
    ["localhost", { url: "https://localhost/" }, "url"],
    ["a single label", { url: "https://internal/" }, "url"],
    ["too long a URL", { url: `https://example.com/${"a".repeat(2_029)}` }, "url"],
    ["url null", { url: null }, "url"],
    ["no events", { events: [] }, "events"],
    ["events null", { events: null }, "events"],
    ["a word for events", { events: "job.failed" }, "events"],
    ["an unknown event", { events: ["job.failed", "job.paused"] }, "events[1]"],
    ["an event in capitals", { events: ["JOB.FAILED"] }, "events[0]"],
    ["an event that is a number", { events: [1] }, "events[0]"],
    ["an event given twice", { events: ["job.failed", "job.failed"] }, "events[1]"],
    ["more events than there are", { events: [...EVENT_TYPES, "job.failed"] }, "events"],
    ["description null", { description: null }, "description"],
    ["a number for description", { description: 5 }, "description"],
    ["a line feed in description", { description: "a\nb" }, "description"],
    ["U+0000 in description", { description: "a\u0000" }, "description"],
    ["a secret of the client's own", { secret: "whsec_x" }, "secret"],
    ["status", { status: "enabled" }, "status"],
    ["an unknown field", { Url: ENDPOINT_URL }, "Url"],
  ])("refuses %s", async (_, wish, param) => {
    await expectNoTrace({ ...newWebhook(), ...wish }, "invalid_request", param);
  });

  test("refuses a body that is not a JSON object, and query parameters", async () => {
    for (const body of ["[]", "null", "7", '{"url"'])
      expect((await expectNoTrace(body, "invalid_request")).param).toBeUndefined();
    await expectNoTrace(
      `{"url":"${ENDPOINT_URL}","url":"${ENDPOINT_URL}","events":[]}`,
      "invalid_request",
      "url",
    );
    const answer = await gateway.call("POST", "/v2/webhooks?a=1", {
      key: project.production,
      body: newWebhook(),
    });
    readRefusal(answer, "invalid_request", "a");
  });

  test("is closed to keys that may only read or only work with jobs", async () => {
    for (const scope of ["read", "jobs"] as const) {
      const { key } = await gateway.addKey(project, { scope });
      await refusalOf(create({}, key), "insufficient_scope");
    }
  });
});

describe("the limit of endpoints", () => {
  test("is 50 in each environment, disabled ones included, and is checked after all fields", async () => {
    const own = await gateway.addProject("hobby");
    for (let n = 0; n < WEBHOOK_ENDPOINTS_MAX; n++) await create({}, own.production);
    await gateway.query("UPDATE webhooks SET enabled = false WHERE project_no = $1", [own.no]);
    const refusal = await refusalOf(create({}, own.production), "plan_limit_exceeded");
    expect([refusal.status, refusal.message]).toEqual([403, expect.stringContaining("50 webhook endpoints")]);
    await refusalOf(create({ url: "x" }, own.production), "invalid_request", "url");
    await create({}, own.development);
    const [oldest] = (await webhooksOf(own.production).list()).data;
    await webhooksOf(own.production).delete(oldest?.id ?? "");
    await create({}, own.production);
    await refusalOf(create({}, own.production), "plan_limit_exceeded");
  });

  test("is exact when many endpoints are created at once over two gateways", async () => {
    const own = await gateway.addProject("scale");
    const outcomes = await Promise.all(
      Array.from({ length: WEBHOOK_ENDPOINTS_MAX + 20 }, (_, n) =>
        create({}, own.production, n % 2 === 0 ? gateway.port : mate.port).then(
          () => "created",
          ({ code }) => code as string,
        ),
      ),
    );
    expect(outcomes.toSorted()).toEqual([
      ...Array<string>(WEBHOOK_ENDPOINTS_MAX).fill("created"),
      ...Array<string>(20).fill("plan_limit_exceeded"),
    ]);
    expect((await webhooksOf(own.production).list({ limit: 200 })).data).toHaveLength(WEBHOOK_ENDPOINTS_MAX);
  });
});
