import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import manifest from "../../package.json";
import { type Client, createClient, RawJson } from "../../shared/client/index.ts";
import { CLIENT_VERSION } from "../../shared/client/send.ts";
import { OPERATIONS } from "../../shared/contract/operations/all.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;
const asked: Request[] = [];

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  client = createClient({
    baseUrl: `http://127.0.0.1:${gateway.port}/`,
    apiKey: project.production,
    fetch(url, init) {
      asked.push(new Request(url, init));
      return fetch(url, init);
    },
  });
});
afterAll(() => gateway.stop());

const fields = { target_url: TARGET_URL, payload: { order: 7 } };
const lastAsked = () => asked.at(-1) as Request;

describe("the client", () => {
  test("creates, reads, lists and cancels jobs", async () => {
    const runAt = new Date(Date.now() + 3_600_000);
    const job = await client.jobs.create({
      ...fields,
      run_at: runAt,
      region: "eu-central",
      retry_policy: { max_attempts: 2 },
    });
    expect(job).toMatchObject({ ...fields, run_at: runAt.toISOString(), region: "eu-central", attempts: 0 });
    expect(await client.jobs.get(job.id)).toEqual(job);
    expect((await client.jobs.explain(job.id)).timeline).toEqual([{ at: job.created_at, event: "created" }]);
    expect((await client.jobs.list({ status: "queued", region: "eu-central" })).data).toMatchObject([
      { id: job.id },
    ]);
    expect(await client.jobs.cancel(job.id)).toMatchObject({ id: job.id, status: "canceled" });
    const { data } = await client.jobs.createBatch([fields, { target_url: TARGET_URL }]);
    expect(data).toMatchObject([fields, { payload: {} }]);
  });

  test("finds jobs and runs by tag, schedule and time, which may be Dates", async () => {
    const tagged = await client.jobs.create({ ...fields, tags: ["a+b/c"] });
    const [soon, before] = [new Date(Date.now() + 60_000), new Date(Date.parse(tagged.created_at) - 1)];
    const filters = { tag: "a+b/c", created_after: before, created_before: soon };
    expect((await client.jobs.list(filters)).data).toMatchObject([{ id: tagged.id, tags: ["a+b/c"] }]);
    expect(new URL(lastAsked().url).searchParams.get("created_after")).toBe(before.toISOString());
    expect(
      (await client.jobs.list({ ...filters, schedule_id: "sch_01arz3ndektsv4rrffq69g5fav" })).data,
    ).toEqual([]);
    const { runId } = await gateway.claim(project, tagged, 1);
    const runs = await client.runs.list({
      tag: "a+b/c",
      started_after: before.toISOString(),
      started_before: soon,
    });
    expect(runs.data).toMatchObject([{ id: runId }]);
  });

  test("reads, lists and retries runs", async () => {
    const job = await client.jobs.create({ ...fields, retry_policy: { max_attempts: 1 } });
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    expect(await client.runs.get(runId)).toMatchObject({ id: runId, job_id: job.id, status: "failed" });
    const retried = await client.runs.retry(runId, { idempotencyKey: "again" });
    expect(retried).toMatchObject({ job_id: job.id, attempt: 2, status: "running" });
    expect((await client.runs.list({ job_id: job.id })).data.map(({ id }) => id)).toEqual([
      retried.id,
      runId,
    ]);
  });

  test("creates, previews, reads, lists, changes, runs and deletes schedules", async () => {
    const { schedules } = client;
    const { firings, plan } = await schedules.preview({
      cron: "0 9 * * MON",
      timezone: "Europe/Berlin",
      from: new Date("2027-01-01T00:00:00Z"),
      count: 1,
    });
    expect(firings).toMatchObject([
      { at: "2027-01-04T08:00:00.000Z", local_time: "2027-01-04T09:00:00+01:00" },
    ]);
    expect(plan).toMatchObject({ active_schedules: 0, allowed: true });
    expect(lastAsked().headers.has("idempotency-key")).toBe(false);
    const made = await schedules.create({ ...fields, name: "weekly", cron: "0 9 * * MON" });
    expect(made).toMatchObject({ ...fields, name: "weekly", paused: false });
    expect(await schedules.get(made.id)).toEqual(made);
    expect(await schedules.update(made.id, { timezone: "Asia/Tokyo" })).toMatchObject({
      timezone: "Asia/Tokyo",
    });
    expect(await schedules.pause(made.id)).toMatchObject({ paused: true, next_run_at: null });
    expect((await schedules.list({ paused: true })).data).toMatchObject([{ id: made.id }]);
    expect((await schedules.list({ paused: false })).data).toEqual([]);
    const job = await schedules.run(made.id, { idempotencyKey: "now" });
    expect(await schedules.run(made.id, { idempotencyKey: "now" })).toEqual(job);
    expect(await client.jobs.get(job.id)).toMatchObject(fields);
    expect(await schedules.resume(made.id)).toMatchObject({ paused: false });
    expect(await schedules.firings(made.id, { limit: 1 })).toEqual({ data: [], next_cursor: null });
    expect(await schedules.put("week/ly", { ...fields, cron: "@weekly" })).toMatchObject({ name: "week/ly" });
    expect(lastAsked().headers.has("idempotency-key")).toBe(false);
    const named = await schedules.getByName("week/ly");
    expect(await schedules.put("week/ly", { ...fields, cron: "@weekly" })).toEqual(named);
    await schedules.delete(named.id);
    expect(await schedules.delete(made.id)).toEqual({ id: made.id, deleted: true });
  });

  test("creates, reads, lists, changes, tests, rotates and deletes webhook endpoints", async () => {
    const { webhooks } = client;
    const url = "https://example.com/events";
    const made = await webhooks.create({ url, events: ["job.failed"], description: "Billing" });
    expect(made.secret).toMatch(/^whsec_[A-Za-z0-9+/]{43}=$/);
    const shown = await webhooks.get(made.id);
    expect(shown).toEqual({ ...made, secret: `whsec_****${made.secret.slice(-4)}` });
    expect(await webhooks.update(made.id, { description: null })).toMatchObject({ url, description: null });
    const sample = await webhooks.test(made.id, { idempotencyKey: "sample" });
    expect(await webhooks.test(made.id, { idempotencyKey: "sample" })).toEqual(sample);
    expect((await webhooks.deliveries(made.id, { status: "pending" })).data).toEqual([sample]);
    expect(await webhooks.retry(made.id, sample.id)).toMatchObject({ id: sample.id, status: "pending" });
    const { secret } = await webhooks.rotate(made.id);
    expect(secret).not.toBe(made.secret);
    expect(await webhooks.disable(made.id)).toMatchObject({ status: "disabled" });
    expect((await webhooks.list({ status: "disabled" })).data).toMatchObject([{ id: made.id }]);
    expect((await webhooks.list({ status: "enabled" })).data).toEqual([]);
    expect(await webhooks.enable(made.id)).toMatchObject({
      status: "enabled",
      secret: `whsec_****${secret.slice(-4)}`,
    });
    expect(await webhooks.delete(made.id)).toEqual({ id: made.id, deleted: true });
  });

  test("limits, pauses, reads and lists flow keys", async () => {
    const { flows } = client;
    const key = "a/b+c";
    const limited = await flows.update(key, { concurrency: 2, rate: { count: 5, per_seconds: 60 } });
    expect(limited).toMatchObject({
      key,
      concurrency: 2,
      rate: { count: 5, per_seconds: 60 },
      paused: false,
    });
    expect(await flows.get(key)).toEqual(limited);
    expect((await flows.list({ limit: 1 })).data).toEqual([limited]);
    expect(await flows.pause(key)).toEqual({ ...limited, paused: true });
    expect(await flows.resume(key)).toEqual(limited);
  });

  test("parks, lists and opens hosts, with a key that makes it safe to try again", async () => {
    const { hosts } = client;
    const host = "[2001:db8::1]";
    const parked = await hosts.park(host, { idempotencyKey: "park" });
    expect(parked).toMatchObject({ host, state: "down", by: "hand" });
    expect((await hosts.list({ state: "down" })).data).toEqual([parked]);
    expect((await hosts.open(host)).state).toBe("opening");
    expect(await hosts.park(host, { idempotencyKey: "park" })).toEqual(parked);
  });

  test("asks for bulk operations, reads, lists and aborts them", async () => {
    const { bulk } = client;
    const asked = { action: "retry", filter: { error_contains: "refused" }, per_second: 10 } as const;
    const made = await bulk.create(asked, { idempotencyKey: "bulk" });
    expect(made).toMatchObject({ ...asked, dry_run: false, status: "counting", matched: null });
    expect(await bulk.create(asked, { idempotencyKey: "bulk" })).toEqual(made);
    expect(await bulk.get(made.id)).toEqual(made);
    expect((await bulk.list({ limit: 1 })).data).toEqual([made]);
    expect(await bulk.abort(made.id)).toMatchObject({ id: made.id, status: "aborted" });
  });

  test("creates, lists, rotates and deletes keys", async () => {
    const { keys } = client;
    const made = await keys.create({ name: "worker", scope: "jobs" }, { idempotencyKey: "key" });
    expect(made).toMatchObject({ name: "worker", scope: "jobs", expires_at: null });
    expect(await keys.create({ name: "worker", scope: "jobs" }, { idempotencyKey: "key" })).toEqual(made);
    const { key: _, ...shown } = made;
    expect((await keys.list({ limit: 1 })).data).toEqual([shown]);
    const successor = await keys.rotate(made.id, { overlap_hours: 0 });
    expect(successor).toMatchObject({ name: "worker", scope: "jobs" });
    expect((await keys.rotate(successor.id)).key).not.toBe(successor.key);
    expect(await keys.delete(successor.id)).toEqual({ id: successor.id, deleted: true });
  });

  test("reads and changes the project, reads its usage, and rotates its signing secret", async () => {
    expect(await client.project.get()).toMatchObject({ id: project.id, environment: "production" });
    const changed = await client.project.update({ name: "Schön", default_region: "us-west" });
    expect(changed).toMatchObject({ name: "Schön", default_region: "us-west" });
    await client.project.update({ default_region: "us-east" });
    const usage = await client.project.usage({ period: "2024-02", region: "us-west" });
    const insights = await client.project.insights({ period: "7d", region: "us-west" });
    expect(insights).toMatchObject({ period: "7d", totals: { succeeded: 0 }, buckets: { length: 168 } });
    const before = await client.project.signingSecret();
    const { secret } = await client.project.rotateSigningSecret({ idempotencyKey: "secret" });
    expect((await client.project.rotateSigningSecret({ idempotencyKey: "secret" })).secret).toBe(secret);
    const after = await client.project.signingSecret();
    expect(after.secret).toBe(`whsec_****${secret.slice(-4)}`);
    expect([before.previous_expires_at, after.previous_expires_at === null]).toEqual([null, false]);
    expect(usage).toMatchObject({ period: "2024-02", runs_total: 0, by_day: { length: 29 } });
  });

  test("has a function for every operation of the API", async () => {
    const names: Record<string, string> = { sch: "schedule", whk: "webhook", dlv: "delivery", blk: "bulk" };
    const told = asked.map(({ method, url }) => {
      const path = new URL(url).pathname.replace(
        /(job|run|sch|whk|dlv|key|blk)_[0-9a-z]{26}/g,
        (_, kind: string) => `{${names[kind] ?? kind}_id}`,
      );
      const named = path.replace(/(?<=by-name\/).+/, "{name}").replace(/(?<=flows\/).+/, "{key}");
      return `${method} ${named.replace(/(?<=hosts\/)[^/]+/, "{host}")}`;
    });
    const operations = Object.values(OPERATIONS).map(({ method, path }) => `${method} ${path}`);
    expect([...new Set(told)].sort()).toEqual(operations.sort());
  });

  test("sends payloads as JSON.stringify writes them, and raw payloads with every digit", async () => {
    const exact = '{"id":9007199254740993,"price":1.10,"s":"a b\\u00e9"}';
    const created = [
      (await client.jobs.create({ target_url: TARGET_URL, payload: new RawJson(exact) }).withAnswer()).answer,
      (
        await client.jobs
          .createBatch([fields, { target_url: TARGET_URL, payload: new RawJson(exact) }])
          .withAnswer()
      ).answer,
      (
        await client.schedules
          .create({ name: "raw", cron: "@daily", target_url: TARGET_URL, payload: new RawJson("{}") })
          .then(({ id }) => client.schedules.update(id, { payload: new RawJson(exact) }).withAnswer())
      ).answer,
    ];
    for (const { text } of created) expect(text).toContain(`"payload":${exact}`);
    const job = await client.jobs.create({
      payload: { at: new Date(0), gone: undefined },
      target_url: TARGET_URL,
    });
    expect(job.payload).toEqual({ at: "1970-01-01T00:00:00.000Z" });
  });

  test.each(["", "[]", "7", "null", '{"a":1}}', '{"a":1},"region":"us-west"', "{a:1}"])(
    "takes nothing for a raw payload that is no JSON object: %s",
    (text) => {
      expect(() => new RawJson(text)).toThrow(SyntaxError);
    },
  );

  test("sends its name and its version of the API", async () => {
    await client.project.get();
    const { headers } = lastAsked();
    expect(headers.get("service-version")).toBe("2026-11-01");
    expect(headers.get("service-client")).toBe(`jobwheel-typescript/${manifest.version}`);
    expect(CLIENT_VERSION).toBe(manifest.version);
  });

  test("also answers the status and headers, if asked", async () => {
    const own = await gateway.addProject("pro", { requestRate: 100 });
    const other = createClient({ baseUrl: `http://127.0.0.1:${gateway.port}`, apiKey: own.development });
    const { result, answer } = await other.project.get().withAnswer();
    expect(result.environment).toBe("development");
    expect(answer).toEqual({
      status: 200,
      requestId: expect.stringMatching(/^req_/),
      rateLimit: { limit: 100, remaining: 99, resetSeconds: expect.any(Number) },
      isReplayed: false,
      text: JSON.stringify(result),
    });
  });

  test("encodes ids and filters so that they stay in their place of the URL", async () => {
    for (const id of ["", "..", "../project", "a?b=c", "a#b", "a/b", "%zz"]) {
      for (const call of [
        () => client.jobs.get(id),
        () => client.runs.get(id),
        () => client.runs.retry(id),
        () => client.schedules.get(id),
        () => client.schedules.update(id, {}),
        () => client.schedules.delete(id),
        () => client.schedules.firings(id),
        () => client.schedules.run(id),
        () => client.webhooks.get(id),
        () => client.webhooks.update(id, {}),
        () => client.webhooks.delete(id),
        () => client.webhooks.rotate(id),
        () => client.webhooks.test(id),
        () => client.webhooks.deliveries(id),
        () => client.webhooks.retry(`whk_${"0".repeat(26)}`, id),
      ]) {
        const error = await call().catch((thrown: unknown) => thrown);
        expect(error).toMatchObject({ code: "resource_not_found" });
      }
    }
    expect(await client.runs.list({ job_id: "a&status=failed" })).toEqual({ data: [], next_cursor: null });
    expect(new URL(lastAsked().url).search).toBe("?job_id=a%26status%3Dfailed");
  });

  test("reaches a service under a path", async () => {
    const urls: string[] = [];
    const behind = createClient({
      baseUrl: "https://example.com/jobs//",
      apiKey: project.production,
      async fetch(url) {
        urls.push(url);
        return Response.json({});
      },
    });
    await behind.jobs.list({ limit: 5 });
    expect(urls).toEqual(["https://example.com/jobs/v2/jobs?limit=5"]);
  });

  test.each(["svc_live_abc\n", " ", "svc_live_ünicode"])("refuses a key that cannot be one: %j", (apiKey) => {
    expect(() => createClient({ baseUrl: "https://example.com", apiKey })).toThrow(TypeError);
    expect(() => createClient({ baseUrl: "https://example.com", apiKey })).not.toThrow("svc_");
  });

  test.each(["example.com", "ftp://example.com", "https://a:b@example.com", ""])(
    "refuses an address that cannot be the service's: %s",
    (baseUrl) => {
      expect(() => createClient({ baseUrl, apiKey: project.production })).toThrow(TypeError);
    },
  );

  test("rejects values that JSON cannot hold, and sends nothing", async () => {
    const before = asked.length;
    const call = client.jobs.create({ target_url: TARGET_URL, payload: { n: 9007199254740993n } });
    expect(await call.catch((thrown: unknown) => thrown)).toBeInstanceOf(TypeError);
    expect(asked.length).toBe(before);
  });

  test.each(["", " a", "a ", "ü", "x".repeat(256)])(
    "refuses an idempotency key that would not arrive as it is: %j",
    async (idempotencyKey) => {
      const before = asked.length;
      const error = await client.jobs.create(fields, { idempotencyKey }).catch((thrown: unknown) => thrown);
      expect(error).toBeInstanceOf(TypeError);
      expect(asked.length).toBe(before);
    },
  );
});
