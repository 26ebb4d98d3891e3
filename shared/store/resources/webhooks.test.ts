import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { openTestDatabase } from "../../../test/support/database.ts";
import { createIdSource, idToUuid, REQUEST_PREFIX, WEBHOOK_PREFIX } from "../../domain/ids.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../../domain/plan.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import type { EndpointFields } from "../../domain/webhook.ts";
import type { Database } from "../database/database.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { changeWebhook, createWebhook, deleteWebhook, findWebhook, type WebhookRow } from "./webhooks.ts";

let store: TestStore;
/** The database as another process reaches it. */
let other: Database;

beforeAll(async () => {
  store = await startStore();
  other = openTestDatabase(store.url, 8, "silent");
});
afterAll(async () => {
  await other.close();
  await store.stop();
});

const ids = createIdSource(randomBytes);
const cause = () => ({ requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 1 });
const scopeOf = (projectNo: ProjectNo) => ({ projectNo, environment: "production" as const });

function newWebhook(projectNo: ProjectNo, wish: Partial<WebhookRow> = {}): WebhookRow {
  return {
    id: ids.next(WEBHOOK_PREFIX, Date.now()),
    ...scopeOf(projectNo),
    url: "https://example.com/events",
    events: ["job.succeeded", "job.failed"],
    status: "enabled",
    description: null,
    sealedSecret: randomBytes(60),
    ...wish,
  };
}

async function addWebhook(projectNo: ProjectNo, wish?: Partial<WebhookRow>): Promise<string> {
  const webhook = newWebhook(projectNo, wish);
  expect(await createWebhook(store.db, webhook, cause(), null)).toBe("created");
  return webhook.id;
}

const change = (projectNo: ProjectNo, id: string, fields: Partial<EndpointFields>, db = store.db) =>
  changeWebhook(db, scopeOf(projectNo), id, (webhook) => ({ ...webhook, ...fields }), cause(), 0);

async function subscriptionsOf(projectNo: ProjectNo): Promise<number | undefined> {
  const rows = await store.query<{ subscriptions: number }>(
    "SELECT subscriptions FROM flows WHERE project_no = $1",
    [projectNo],
  );
  return rows[0]?.subscriptions;
}

async function rowOf(id: string) {
  const [row] = await store.query<{ generation: number; enabled: boolean }>(
    "SELECT generation, enabled FROM webhooks WHERE id = $1",
    [idToUuid(id)],
  );
  return row;
}

/** Begins a transaction that holds the locks of a claim. The answer ends it. */
async function claimUnderWay(projectNo: ProjectNo, id: string): Promise<() => Promise<unknown>> {
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("SELECT FROM flows WHERE project_no = $1 FOR NO KEY UPDATE", [projectNo]);
  await session.query("SELECT FROM webhooks WHERE id = $1 FOR SHARE", [idToUuid(id)]);
  return () => session.query("COMMIT");
}

const isPending = async (promise: Promise<unknown>) =>
  (await Promise.race([promise, Promise.resolve("pending")])) === "pending";

describe("the endpoints of an environment", () => {
  test("are 50 and no more, however many are made at once by two processes", async () => {
    const projectNo = await store.addProject();
    const made = Array.from({ length: WEBHOOK_ENDPOINTS_MAX + 14 }, (_, n) =>
      createWebhook(n % 2 === 0 ? store.db : other, newWebhook(projectNo), cause(), null),
    );
    const development = newWebhook(projectNo, { environment: "development" });
    expect(await createWebhook(store.db, development, cause(), null)).toBe("created");
    const outcomes = await Promise.all(made);
    expect(outcomes.filter((outcome) => outcome === "created")).toHaveLength(WEBHOOK_ENDPOINTS_MAX);
    const [row] = await store.query<{ count: number }>(
      "SELECT count(*)::int AS count FROM webhooks WHERE project_no = $1 AND environment = 1",
      [projectNo],
    );
    expect(row?.count).toBe(WEBHOOK_ENDPOINTS_MAX);
  });

  test("are counted anew for a creation that had to wait", async () => {
    const projectNo = await store.addProject();
    for (let n = 1; n < WEBHOOK_ENDPOINTS_MAX; n++) await addWebhook(projectNo);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM projects WHERE no = $1 FOR NO KEY UPDATE", [projectNo]);
    const both = [store.db, other].map((db) => createWebhook(db, newWebhook(projectNo), cause(), null));
    await store.untilBlocked(2);
    await session.query("COMMIT");
    expect((await Promise.all(both)).toSorted()).toEqual(["created", "limit_exceeded"]);
  });
});

describe("what a project's flow says of its subscriptions", () => {
  test("has one bit for each environment and event that an endpoint has ever wanted", async () => {
    const projectNo = await store.addProject();
    expect(await subscriptionsOf(projectNo)).toBe(0);
    const failed = await addWebhook(projectNo, { events: ["job.failed"] });
    expect(await subscriptionsOf(projectNo)).toBe(0b1000);
    const both = await addWebhook(projectNo);
    expect(await subscriptionsOf(projectNo)).toBe(0b1100);
    await addWebhook(projectNo, { environment: "development", events: ["job.succeeded"] });
    expect(await subscriptionsOf(projectNo)).toBe(0b1101);
    await change(projectNo, both, { status: "disabled" });
    await change(projectNo, failed, { events: ["job.succeeded"] });
    await deleteWebhook(store.db, scopeOf(projectNo), both, cause());
    expect(await subscriptionsOf(projectNo)).toBe(0b1101);
  });

  test("lacks nothing that any endpoint wants, whatever two processes change at once", async () => {
    const projectNo = await store.addProject();
    const made = await Promise.all(Array.from({ length: 8 }, () => addWebhook(projectNo)));
    for (let round = 0; round < 10; round++) {
      await Promise.all(
        made.map((id, n) =>
          change(
            projectNo,
            id,
            {
              status: Math.random() < 0.2 ? "enabled" : "disabled",
              events: Math.random() < 0.5 ? ["job.failed"] : ["job.succeeded"],
            },
            n % 2 === 0 ? store.db : other,
          ),
        ),
      );
      const [row] = await store.query<{ wanted: number }>(
        `SELECT coalesce(bit_or(events << (2 * environment)), 0) AS wanted FROM webhooks
          WHERE project_no = $1 AND enabled`,
        [projectNo],
      );
      const wanted = row?.wanted ?? 0;
      expect(((await subscriptionsOf(projectNo)) ?? 0) & wanted).toBe(wanted);
    }
  });

  test("is left alone by a creation that is refused", async () => {
    const projectNo = await store.addProject();
    for (let n = 0; n < WEBHOOK_ENDPOINTS_MAX; n++) await addWebhook(projectNo, { events: ["job.failed"] });
    expect(await createWebhook(store.db, newWebhook(projectNo), cause(), null)).toBe("limit_exceeded");
    expect(await subscriptionsOf(projectNo)).toBe(0b1000);
  });

  test("is the same for a project of another number", async () => {
    const [projectNo, stranger] = [await store.addProject(), await store.addProject()];
    await addWebhook(projectNo);
    expect([await subscriptionsOf(projectNo), await subscriptionsOf(stranger)]).toEqual([0b1100, 0]);
  });
});

describe("a claim under way", () => {
  test("is waited for by a disabling, after which no other finds what was owed before", async () => {
    const projectNo = await store.addProject();
    const id = await addWebhook(projectNo);
    const end = await claimUnderWay(projectNo, id);
    const disabled = change(projectNo, id, { status: "disabled" });
    await store.untilBlocked();
    expect(await isPending(disabled)).toBe(true);
    expect(await rowOf(id)).toEqual({ generation: 0, enabled: true });
    await end();
    expect(await disabled).toMatchObject({ status: "disabled" });
    expect(await rowOf(id)).toEqual({ generation: 1, enabled: false });
  });

  test("is waited for by a deletion", async () => {
    const projectNo = await store.addProject();
    const id = await addWebhook(projectNo);
    const end = await claimUnderWay(projectNo, id);
    const deleted = deleteWebhook(store.db, scopeOf(projectNo), id, cause());
    await store.untilBlocked();
    expect(await rowOf(id)).toBeDefined();
    await end();
    expect(await deleted).toBe(true);
    expect(await rowOf(id)).toBeUndefined();
  });
});

describe("changes of one endpoint at once", () => {
  test("are decided one after the other: each disabling of an enabled endpoint counts once", async () => {
    const projectNo = await store.addProject();
    const id = await addWebhook(projectNo);
    await Promise.all(
      Array.from({ length: 10 }, (_, n) =>
        change(projectNo, id, { status: "disabled" }, n % 2 === 0 ? store.db : other),
      ),
    );
    expect(await rowOf(id)).toEqual({ generation: 1, enabled: false });
  });

  test("lose nothing of each other", async () => {
    const projectNo = await store.addProject();
    const id = await addWebhook(projectNo);
    await Promise.all([
      change(projectNo, id, { url: "https://example.com/other" }),
      change(projectNo, id, { description: "Billing" }, other),
      change(projectNo, id, { events: ["job.failed"] }),
      change(projectNo, id, { status: "disabled" }, other),
    ]);
    expect(await findWebhook(store.db, scopeOf(projectNo), id)).toMatchObject({
      url: "https://example.com/other",
      description: "Billing",
      events: ["job.failed"],
      status: "disabled",
    });
  });

  test("see a disabling that came while they waited", async () => {
    const projectNo = await store.addProject();
    const id = await addWebhook(projectNo);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("UPDATE webhooks SET enabled = false, generation = generation + 1 WHERE id = $1", [
      idToUuid(id),
    ]);
    const disabled = change(projectNo, id, { status: "disabled", description: "x" });
    await store.untilBlocked();
    await session.query("COMMIT");
    await disabled;
    expect(await rowOf(id)).toEqual({ generation: 1, enabled: false });
  });
});
