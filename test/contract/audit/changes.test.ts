import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { OPERATIONS, type OperationId } from "../../../shared/contract/operations/all.ts";
import { type AuditEntry, listAudit } from "../../../shared/store/resources/audit.ts";
import { clientOf } from "../../support/client.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../../support/gateway.ts";

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());

/** The path of this URL is a secret: everybody who knows the URL can write there. */
const SECRET_URL = "https://hooks.example.com/T0/B0/xoxb";

async function changesOf(project: TestProject): Promise<AuditEntry[]> {
  const entries = await listAudit(gateway.db, { projectNo: project.no, beforeId: null, limit: 1_000 });
  return entries.filter(({ by }) => by.kind === "key");
}

/** A project with one resource of each kind for the changes to begin from. Every change is in its production environment. */
async function prepare() {
  const project = await gateway.addProject();
  const queued = await gateway.createJob(project);
  const failed = await gateway.createJob(project, { retry_policy: { max_attempts: 1 } });
  const { runId } = await gateway.attempt(project, failed, 1, { status: "failed", leaves: "failed" });
  const { schedules, webhooks, keys, bulk, hosts } = clientOf(gateway, project.production);
  const { id: scheduleId } = await schedules.create({ name: "old", cron: "@daily", target_url: TARGET_URL });
  const { id: webhookId } = await webhooks.create({ url: SECRET_URL, events: ["job.failed"] });
  const { id: deliveryId } = await webhooks.test(webhookId);
  const { id: keyId } = await keys.create({ scope: "read" });
  const { id: bulkId } = await bulk.create({ action: "cancel", filter: { tag: "none" } });
  await hosts.park("parked.example.com");
  const before = await changesOf(project);
  return { project, queued, failed, runId, scheduleId, webhookId, deliveryId, keyId, bulkId, before };
}

type Prepared = Awaited<ReturnType<typeof prepare>>;

interface Change {
  body?: object;
  action: AuditEntry["action"];
  subject: (from: Prepared, answer: { id: string }, requestId: string) => string;
  detail?: (answer: { id: string }, from: Prepared) => object;
}

/** The changes by the operations that make them; each job of a batch is one change. */
const CHANGES: Partial<Record<OperationId, Change>> = {
  createJob: {
    body: { target_url: TARGET_URL },
    action: "job.create",
    subject: (_from, { id }) => id,
  },
  cancelJob: { action: "job.cancel", subject: ({ queued }) => queued.id },
  retryRun: {
    action: "run.retry",
    subject: ({ runId }) => runId,
    detail: ({ id }) => ({ run_id: id }),
  },
  createBulk: {
    body: { action: "retry", filter: { response_status: 503 }, per_second: 7 },
    action: "bulk.create",
    subject: (_from, { id }) => id,
    detail: () => ({ action: "retry", filter: { response_status: 503 }, dry_run: false, per_second: 7 }),
  },
  abortBulk: { action: "bulk.abort", subject: ({ bulkId }) => bulkId },
  updateFlow: {
    body: { concurrency: 2, rate: null },
    action: "flow.update",
    subject: () => "customer:1",
    detail: () => ({ concurrency: 2, rate: null }),
  },
  parkHost: { action: "host.park", subject: () => "example.com" },
  openHost: { action: "host.open", subject: () => "parked.example.com" },
  createSchedule: {
    body: { name: "new", cron: "@daily", target_url: TARGET_URL },
    action: "schedule.create",
    subject: (_from, { id }) => id,
  },
  updateSchedule: {
    body: { timezone: "asia/tokyo", paused: true },
    action: "schedule.update",
    subject: ({ scheduleId }) => scheduleId,
    detail: () => ({ cron: "@daily", timezone: "Asia/Tokyo", paused: true }),
  },
  putSchedule: {
    body: {
      cron: "@daily",
      target_url: "https://other.example.com/path",
      overlap: "skip",
      spread_seconds: 60,
    },
    action: "schedule.update",
    subject: ({ scheduleId }) => scheduleId,
    detail: () => ({
      ...{ cron: "@daily", timezone: "UTC", paused: false, target_origin: "https://other.example.com" },
      ...{ overlap: "skip", spread_seconds: 60 },
    }),
  },
  deleteSchedule: { action: "schedule.delete", subject: ({ scheduleId }) => scheduleId },
  runSchedule: { action: "job.create", subject: (_from, { id }) => id },
  createWebhook: {
    body: { url: SECRET_URL, events: ["job.failed", "job.succeeded"], description: "Billing" },
    action: "webhook.create",
    subject: (_from, { id }) => id,
    detail: () => ({
      origin: "https://hooks.example.com",
      events: ["job.failed", "job.succeeded"],
      status: "enabled",
    }),
  },
  updateWebhook: {
    body: { url: "https://other.example.com/path", status: "disabled" },
    action: "webhook.update",
    subject: ({ webhookId }) => webhookId,
    detail: () => ({ origin: "https://other.example.com", events: ["job.failed"], status: "disabled" }),
  },
  deleteWebhook: { action: "webhook.delete", subject: ({ webhookId }) => webhookId },
  rotateWebhookSecret: { action: "webhook.rotate", subject: ({ webhookId }) => webhookId },
  testWebhook: {
    action: "webhook.test",
    subject: ({ webhookId }) => webhookId,
    detail: ({ id }) => ({ delivery_id: id }),
  },
  retryDelivery: {
    action: "delivery.retry",
    subject: ({ deliveryId }) => deliveryId,
    detail: (_, { webhookId }) => ({ webhook_id: webhookId }),
  },
  createKey: {
    body: { name: "deployments", scope: "jobs" },
    action: "key.create",
    subject: (_from, { id }) => id,
    detail: () => ({ name: "deployments", scope: "jobs", expires_at: null }),
  },
  rotateKey: {
    body: { overlap_hours: 3 },
    action: "key.rotate",
    subject: ({ keyId }) => keyId,
    detail: ({ id }) => ({ successor: id, overlap_hours: 3 }),
  },
  deleteKey: { action: "key.revoke", subject: ({ keyId }) => keyId },
  rotateSigningSecret: {
    action: "secret.rotate",
    subject: (_from, _answer, requestId) => requestId.replace("req_", "sec_"),
    detail: () => ({ overlap_hours: 24 }),
  },
  updateProject: {
    body: { name: "Renamed" },
    action: "project.update",
    subject: ({ project }) => project.id,
    detail: () => ({ name: "Renamed" }),
  },
};
/** A test below covers batches, and a preview changes nothing. */
const OTHERS: OperationId[] = ["createJobBatch", "previewSchedule"];

describe("the audit record of a change by a key names who, what, when and the request's id", () => {
  const cases = Object.entries(CHANGES) as [OperationId, Change][];
  test.each(cases)("%s", async (operation, { body, action, subject, detail }) => {
    const from = await prepare();
    const since = Date.now();
    const { method, path } = OPERATIONS[operation];
    const ids = {
      job_id: from.queued.id,
      run_id: from.runId,
      schedule_id: from.scheduleId,
      webhook_id: from.webhookId,
      delivery_id: from.deliveryId,
      key_id: from.keyId,
      bulk_id: from.bulkId,
      name: "old",
      key: "customer:1",
      host: operation === "openHost" ? "parked.example.com" : "EXAMPLE.com",
    };
    const filled = path.replaceAll(/\{(\w+)\}/g, (_, name: keyof typeof ids) => ids[name]);
    const answer = await gateway.call(method, filled, {
      key: from.project.production,
      ...(body === undefined ? {} : { body }),
    });
    expect(answer.status).toBeLessThan(300);
    const view = JSON.parse(answer.text) as { id: string };
    const [entry, ...earlier] = await changesOf(from.project);
    expect(earlier).toEqual(from.before);
    expect(entry).toMatchObject({
      requestId: answer.headers.get("request-id") ?? "",
      action,
      subject: subject(from, view, answer.headers.get("request-id") ?? ""),
      projectId: from.project.id,
      environment: action === "project.update" ? null : "production",
      detail: detail?.(view, from) ?? null,
    } as object);
    expect(entry?.by.kind).toBe("key");
    expect(Math.abs((entry?.at ?? 0) - since)).toBeLessThan(60_000);
  });

  test("is expected above for every operation that changes something", () => {
    const all = Object.keys(OPERATIONS) as OperationId[];
    const changing = all.filter((id) => OPERATIONS[id].method !== "GET");
    expect([...Object.keys(CHANGES), ...OTHERS].sort()).toEqual(changing.sort());
  });

  test("of a batch names the one request for each job", async () => {
    const project = await gateway.addProject();
    const answer = await gateway.call("POST", "/v2/jobs/batch", {
      key: project.development,
      body: { jobs: Array.from({ length: 3 }, () => ({ target_url: TARGET_URL })) },
    });
    const ids = (JSON.parse(answer.text) as { data: { id: string }[] }).data.map(({ id }) => id);
    const entries = await changesOf(project);
    expect(entries.map(({ subject }) => subject)).toEqual(ids.toReversed());
    for (const entry of entries) {
      expect(entry).toMatchObject({
        action: "job.create",
        requestId: answer.headers.get("request-id") ?? "",
        environment: "development",
      });
    }
  });

  test("names the key that was used", async () => {
    const project = await gateway.addProject();
    const other = await gateway.addKey(project, { environment: "production" });
    await gateway.call("POST", "/v2/jobs", { key: other.key, body: { target_url: TARGET_URL } });
    await gateway.call("POST", "/v2/jobs", { key: project.production, body: { target_url: TARGET_URL } });
    const [second, first] = await changesOf(project);
    expect(first?.by).toEqual({ kind: "key", id: other.id, name: null });
    expect(second?.by).toMatchObject({ kind: "key" });
    expect(second?.by).not.toEqual(first?.by as object);
  });
});

describe("the audit record has no entry", () => {
  test("of a refusal, a replay or a read", async () => {
    const { project, failed, scheduleId, webhookId, deliveryId, keyId, before } = await prepare();
    const call = (method: string, path: string, body?: object, headers: Record<string, string> = {}) =>
      gateway.call(method, path, {
        key: project.production,
        headers,
        ...(body === undefined ? {} : { body }),
      });
    const headers = { "Idempotency-Key": "once" };
    await call("POST", "/v2/jobs", { target_url: TARGET_URL }, headers);
    const after = await changesOf(project);
    expect(after.length).toBe(before.length + 1);

    expect((await call("POST", "/v2/jobs", { target_url: TARGET_URL }, headers)).status).toBe(201);
    expect((await call("POST", "/v2/jobs", { target_url: "http://x" })).status).toBe(400);
    expect((await call("DELETE", `/v2/jobs/${failed.id}`)).status).toBe(400);
    expect((await call("PATCH", "/v2/project", { name: " " })).status).toBe(400);
    const schedule = { name: "old", cron: "@daily", target_url: TARGET_URL };
    expect((await call("POST", "/v2/schedules", schedule)).status).toBe(409);
    expect((await call("POST", "/v2/schedules/preview", { cron: "@daily" })).status).toBe(200);
    expect((await call("PATCH", `/v2/schedules/${scheduleId}`, { cron: "x" })).status).toBe(400);
    expect((await call("PATCH", `/v2/schedules/${scheduleId}`, { paused: false })).status).toBe(200);
    expect((await call("PUT", "/v2/schedules/by-name/old", schedule)).status).toBe(200);
    expect((await call("PUT", "/v2/schedules/by-name/other", schedule)).status).toBe(400);
    expect((await call("DELETE", `/v2/schedules/${scheduleId}x`)).status).toBe(404);
    expect((await call("POST", "/v2/webhooks", { url: "http://x", events: [] })).status).toBe(400);
    expect((await call("PATCH", `/v2/webhooks/${webhookId}`, { events: ["job.failed"] })).status).toBe(200);
    expect((await call("PATCH", `/v2/webhooks/${webhookId}`, { url: "x" })).status).toBe(400);
    expect((await call("POST", `/v2/webhooks/${webhookId}x/rotate`)).status).toBe(404);
    expect((await call("POST", `/v2/webhooks/${webhookId}/deliveries/${deliveryId}x/retry`)).status).toBe(
      404,
    );
    expect((await call("POST", "/v2/keys", { scope: "none" })).status).toBe(400);
    expect((await call("POST", `/v2/keys/${keyId}x/rotate`)).status).toBe(404);
    expect((await call("DELETE", `/v2/keys/${keyId}x`)).status).toBe(404);
    expect((await call("GET", "/v2/keys")).status).toBe(200);
    expect((await call("GET", "/v2/jobs")).status).toBe(200);
    expect(await changesOf(project)).toEqual(after);
  });
});

describe("the audit record", () => {
  test("lists each entry once over all pages, jobs and other changes together", async () => {
    const { project, queued } = await prepare();
    await gateway.call("DELETE", `/v2/jobs/${queued.id}`, { key: project.production });
    for (let made = 0; made < 5; made++) await gateway.createJob(project);
    const all = await listAudit(gateway.db, { projectNo: project.no, beforeId: null, limit: 1_000 });
    expect(all.map(({ action }) => action)).toEqual([
      ...Array.from({ length: 5 }, () => "job.create"),
      "job.cancel",
      "host.park",
      "bulk.create",
      "key.create",
      "webhook.test",
      "webhook.create",
      "schedule.create",
      "job.create",
      "job.create",
      "project.change",
      "project.create",
    ] as AuditEntry["action"][]);
    const walked: AuditEntry[] = [];
    for (let beforeId: string | null = null; ; ) {
      const page = await listAudit(gateway.db, { projectNo: project.no, beforeId, limit: 3 });
      walked.push(...page);
      if (page.length < 3) break;
      beforeId = page.at(-1)?.id ?? null;
    }
    expect(walked).toEqual(all);
  });

  test.each([
    "UPDATE audit_entries SET operator = 'somebody else'",
    "DELETE FROM audit_entries",
    "TRUNCATE audit_entries",
  ])("refuses everything but additions: %s", async (text) => {
    await expect(gateway.query(text)).rejects.toThrow("append-only");
  });
});
