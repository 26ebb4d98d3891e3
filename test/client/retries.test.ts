import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import {
  ApiError,
  type Client,
  type ClientOptions,
  ConnectionError,
  createClient,
} from "../../shared/client/index.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";
import { type Fault, type FaultyProxy, startFaultyProxy } from "./faulty-proxy.ts";

let gateway: TestGateway;
let proxy: FaultyProxy;
let project: TestProject;
let client: Client;
let waitsMs: number[];

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  proxy = await startFaultyProxy(gateway);
  project = await gateway.addProject();
  waitsMs = [];
  client = clientWith({});
  return () => proxy.stop();
});

function clientWith(options: Partial<ClientOptions>): Client {
  return createClient({
    baseUrl: proxy.url,
    apiKey: project.production,
    random: () => 0.5,
    sleep: async (ms) => void waitsMs.push(ms),
    ...options,
  });
}

const fields = { target_url: TARGET_URL, payload: { order: 7 } };
const unavailable: Fault = {
  status: "503 Service Unavailable",
  headers: { "content-type": "application/json" },
  body: '{"error":{"code":"service_unavailable","message":"Overloaded.","request_id":"req_1"}}',
};
const limited = (retryAfter: string): Fault => ({
  status: "429 Too Many Requests",
  headers: { "content-type": "application/json", "retry-after": retryAfter },
  body: '{"error":{"code":"rate_limit_exceeded","message":"Later.","request_id":"req_1"}}',
});
const proxyError: Fault = {
  status: "502 Bad Gateway",
  headers: { "content-type": "text/html" },
  body: "<p>",
};

async function countRows(table: "jobs" | "runs"): Promise<number> {
  const rows = await gateway.query<{ count: number }>(
    `SELECT count(*)::int AS count FROM ${table} WHERE project_no = $1`,
    [project.no],
  );
  return rows[0]?.count ?? 0;
}
const methodsOf = () => proxy.requests.map((request) => request.slice(0, request.indexOf(" ")));

describe("a creation by the client", () => {
  test("makes one job, and answers it in the end, although its answers are lost several times", async () => {
    proxy.faults.push("answer lost", "answer cut in half", "answer lost");
    const { result, answer } = await client.jobs.create(fields).withAnswer();
    expect(result).toMatchObject({ ...fields, status: "queued" });
    expect(answer.isReplayed).toBe(true);
    expect(await countRows("jobs")).toBe(1);
    expect(proxy.requests).toHaveLength(4);
    const keys = new Set(proxy.valuesOf("idempotency-key"));
    expect(keys.size).toBe(1);
    expect([...keys][0]).toMatch(/^[0-9a-f]{32}$/);
  });

  test.each<[string, Fault]>([
    ["a lost request", "request lost"],
    ["a 503", unavailable],
    ["a 500", { ...unavailable, status: "500 Internal Server Error" }],
    ["a proxy's 502", proxyError],
    ["a proxy's 504 without a body", { status: "504 Gateway Timeout" }],
    ["a proxy's 408", { status: "408 Request Timeout" }],
    ["a success that is no JSON", { status: "200 OK", body: "welcome to our hotel" }],
  ])("is tried again after %s", async (_, fault) => {
    proxy.faults.push(fault);
    const { answer } = await client.jobs.create(fields).withAnswer();
    expect(answer).toMatchObject({ status: 201, isReplayed: false });
    expect(await countRows("jobs")).toBe(1);
    expect(proxy.requests).toHaveLength(2);
    expect(waitsMs).toEqual([250]);
  });

  test("has an idempotency key of its own, or the one it was given", async () => {
    await client.jobs.create(fields);
    await client.jobs.create(fields);
    await client.jobs.create(fields, { idempotencyKey: "order 7" });
    const [first = "", second = "", third] = proxy.valuesOf("idempotency-key");
    expect(first).not.toBe("");
    expect(second).not.toBe(first);
    expect(third).toBe("order 7");
    expect(await countRows("jobs")).toBe(3);
  });

  test("of a batch, and a manual retry, happen once although their answers are lost", async () => {
    proxy.faults.push("answer lost", "answer lost");
    const { data } = await client.jobs.createBatch([fields, fields]);
    expect(data).toHaveLength(2);
    expect(await countRows("jobs")).toBe(2);
    const job = await client.jobs.get(data[0]?.id ?? "");
    const { runId } = await gateway.attempt(project, job, 1, { status: "failed", leaves: "failed" });
    proxy.faults.push("answer lost", "answer cut in half");
    const { result, answer } = await client.runs.retry(runId).withAnswer();
    expect(result).toMatchObject({ job_id: job.id, attempt: 2, status: "running" });
    expect(answer.isReplayed).toBe(true);
    expect((await client.jobs.get(job.id)).attempts).toBe(2);
  });

  test("that has failed can be repeated with the key in its error", async () => {
    proxy.faults.push("answer lost");
    const error = await client.jobs.create(fields, { retriesMax: 0 }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ConnectionError);
    const { idempotencyKey, isOutcomeUnknown } = error as ConnectionError;
    expect(isOutcomeUnknown).toBe(true);
    const again = await client.jobs
      .create(fields, { idempotencyKey: idempotencyKey ?? undefined })
      .withAnswer();
    expect(again.answer.isReplayed).toBe(true);
    expect(await countRows("jobs")).toBe(1);
  });
});

describe("reads and updates by the client", () => {
  test("are tried again", async () => {
    proxy.faults.push("request lost", unavailable);
    expect((await client.project.get()).id).toBe(project.id);
    proxy.faults.push("answer lost");
    expect(await client.project.update({ name: "Changed" })).toMatchObject({ name: "Changed" });
    expect(methodsOf()).toContain("PATCH");
    expect(proxy.valuesOf("idempotency-key").join("")).toBe("");
  });
});

describe("the client's tries", () => {
  test("are bounded, wait longer each time, and end with the last error", async () => {
    proxy.faults.push(...Array<Fault>(9).fill("request lost"), unavailable);
    const error = await clientWith({ retriesMax: 9, deadlineMs: 1e9 })
      .jobs.create(fields)
      .catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ code: "service_unavailable", status: 503, isOutcomeUnknown: true });
    expect(waitsMs).toEqual([250, 500, 1_000, 2_000, 4_000, 4_000, 4_000, 4_000, 4_000]);
    expect(proxy.requests).toHaveLength(10);
  });

  test("are five, unless another number is asked for", async () => {
    // The request is a creation, since runtimes repeat a GET by themselves when a connection ends.
    for (const [options, tries] of [
      [{}, 5],
      [{ retriesMax: 0 }, 1],
      [{ retriesMax: Number.NaN }, 1],
    ] as const) {
      proxy.requests.length = 0;
      proxy.faults.splice(0, 9, ...Array<Fault>(9).fill("request lost"));
      const error = await client.jobs.create(fields, options).catch((thrown: unknown) => thrown);
      expect(error).toBeInstanceOf(ConnectionError);
      expect(proxy.requests).toHaveLength(tries);
    }
  });

  test("wait a little longer than a 429 says", async () => {
    proxy.faults.push(limited("7"), limited("61"));
    await client.jobs.create(fields);
    expect(waitsMs).toEqual([7_250, 61_500]);
  });

  test("wait for nothing beyond the deadline", async () => {
    proxy.faults.push(limited("10"));
    const refused = client.jobs.create(fields, { deadlineMs: 10_000 });
    expect(await refused.catch((error: unknown) => error)).toMatchObject({
      code: "rate_limit_exceeded",
      retryAfterSeconds: 10,
      isOutcomeUnknown: false,
    });
    expect(waitsMs).toEqual([]);
    expect(proxy.requests).toHaveLength(1);
  });

  test("follow the wait that the gateway's own rate limit names", async () => {
    const slow = await gateway.addProject("pro", { requestRate: 2 });
    const limitedClient = clientWith({ apiKey: slow.production, retriesMax: 1 });
    const begunAt = performance.now();
    await limitedClient.project.get();
    await limitedClient.project.get();
    const error = await limitedClient.project.get().catch((thrown: unknown) => thrown);
    expect(error).toMatchObject({
      code: "rate_limit_exceeded",
      status: 429,
      rateLimit: { limit: 2, remaining: 0, resetSeconds: expect.any(Number) },
    });
    const tookMs = performance.now() - begunAt;
    const [waitMs = 0] = waitsMs;
    expect(waitMs).toBeGreaterThan(58_000 - tookMs);
    expect(waitMs).toBeLessThan(62_000);
    expect(proxy.requests).toHaveLength(4);
  });

  test("end with a refusal: a spent quota, a wrong field, an unknown id, a wrong key", async () => {
    const hobby = await gateway.addProject("hobby");
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    const refusals = [
      await failureOf(clientWith({ apiKey: hobby.production }).jobs.create(fields)),
      await failureOf(client.jobs.create({ target_url: "nowhere" })),
      await failureOf(client.jobs.get("job_00000000000000000000000000")),
      await failureOf(clientWith({ apiKey: "svc_live_wrong" }).project.get()),
      await failureOf(client.jobs.list({ cursor: "wrong" })),
    ];
    expect(refusals.map(({ code, isOutcomeUnknown }) => ({ code, isOutcomeUnknown }))).toEqual(
      ["quota_exceeded", "invalid_request", "resource_not_found", "unauthorized", "invalid_request"].map(
        (code) => ({ code, isOutcomeUnknown: false }),
      ),
    );
    expect(proxy.requests).toHaveLength(refusals.length);
  });

  test("leave the outcome unknown when a refusal follows a lost answer", async () => {
    proxy.faults.push("answer lost", limited("10"));
    const error = await failureOf(client.jobs.create(fields, { deadlineMs: 5_000 }));
    expect(error).toMatchObject({ code: "rate_limit_exceeded", isOutcomeUnknown: true });
    expect(await countRows("jobs")).toBe(1);
  });
});

describe("a cancel by the client", () => {
  test("answers the canceled job although the first answer was lost", async () => {
    const job = await client.jobs.create({ ...fields, run_at: new Date(Date.now() + 3_600_000) });
    proxy.faults.push("answer lost");
    expect(await client.jobs.cancel(job.id)).toEqual({
      id: job.id,
      status: "canceled",
      target_url: TARGET_URL,
      region: "us-east",
      attempts: 0,
      created_at: job.created_at,
      run_at: job.run_at,
    });
  });

  test("is refused if it never arrived and the job has ended meanwhile", async () => {
    const job = await client.jobs.create(fields);
    await gateway.attempt(project, job, 1, { status: "succeeded", leaves: "succeeded" });
    proxy.faults.push("request lost");
    const error = await failureOf(client.jobs.cancel(job.id));
    expect(error.code).toBe("invalid_request");
    expect(error.message).toContain("succeeded");
  });

  test("of a canceled job answers the canceled job", async () => {
    const job = await client.jobs.create(fields);
    const canceled = await client.jobs.cancel(job.id);
    expect(await client.jobs.cancel(job.id)).toEqual(canceled);
  });

  test("of an unknown job is refused as unknown, after any fault", async () => {
    proxy.faults.push("request lost");
    const error = await failureOf(client.jobs.cancel("job_00000000000000000000000000"));
    expect(error.code).toBe("resource_not_found");
  });
});

async function failureOf(call: Promise<unknown>): Promise<ApiError> {
  const error = await call.then(
    () => null,
    (thrown: unknown) => thrown,
  );
  if (error instanceof ApiError) return error;
  throw new Error(`it should have been refused, and came to ${error}`);
}
