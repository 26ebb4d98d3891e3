import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { ApiError, type Client, createClient, type Fetch, JobwheelError } from "../../shared/client/index.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  client = clientWith(project.production);
});
afterAll(() => gateway.stop());

const clientWith = (apiKey: string, fetch?: Fetch) =>
  createClient({
    baseUrl: `http://127.0.0.1:${gateway.port}`,
    apiKey,
    retriesMax: 0,
    ...(fetch === undefined ? {} : { fetch }),
  });

async function failureOf(call: Promise<unknown>): Promise<ApiError> {
  const error = await call.then(
    () => null,
    (thrown: unknown) => thrown,
  );
  if (error instanceof ApiError) return error;
  throw new Error(`it should have been refused, and came to ${error}`);
}

describe("an error of the client", () => {
  test("names the code, the field at fault, the request and the rate", async () => {
    const call = client.jobs.create({ target_url: TARGET_URL, retry_policy: { max_attempts: 26 } });
    const error = await failureOf(call);
    expect(error).toBeInstanceOf(JobwheelError);
    expect(error).toMatchObject({
      name: "ApiError",
      code: "invalid_request",
      status: 400,
      message: "retry_policy.max_attempts must be an integer from 1 to 25, not one outside of it.",
      param: "retry_policy.max_attempts",
      details: [],
      retryAfterSeconds: null,
      rateLimit: { limit: 1_000_000 },
      isOutcomeUnknown: false,
    });
    expect(error.requestId).toMatch(/^req_/);
    expect(error.idempotencyKey).toMatch(/^[0-9a-f]{32}$/);
  });

  test("names every bad entry of a batch", async () => {
    const jobs = [
      { target_url: TARGET_URL },
      { target_url: "http://10.0.0.1" },
      { target_url: TARGET_URL, run_at: "2020-01-01T00:00:00Z" },
    ];
    const { code, details } = await failureOf(client.jobs.createBatch(jobs));
    expect(code).toBe("invalid_request");
    expect(details).toMatchObject([
      { index: 1, code: "invalid_request", param: "target_url" },
      { index: 2, code: "run_at_in_past", param: "run_at" },
    ]);
  });

  test.each([
    ["a wrong key", () => clientWith("svc_live_wrong").project.get(), "unauthorized", 401],
    ["an unknown job", () => client.jobs.get("job_00000000000000000000000000"), "resource_not_found", 404],
    [
      "a payload that is too large",
      () => client.jobs.create({ target_url: TARGET_URL, payload: { x: "y".repeat(300_000) } }),
      "payload_too_large",
      413,
    ],
    [
      "a past time",
      () => client.jobs.create({ target_url: TARGET_URL, run_at: new Date(0) }),
      "run_at_in_past",
      400,
    ],
    [
      "no time at all",
      () => client.jobs.create({ target_url: TARGET_URL, run_at: new Date(Number.NaN) }),
      "invalid_request",
      400,
    ],
  ])("has the code of the refusal: %s", async (_, call, code, status) => {
    expect(await failureOf(call())).toMatchObject({ code, status });
  });

  test("tells a conflict of idempotency keys from other conflicts", async () => {
    const idempotencyKey = "once";
    await client.jobs.create({ target_url: TARGET_URL }, { idempotencyKey });
    const again = client.jobs.create({ target_url: `${TARGET_URL}/other` }, { idempotencyKey });
    expect(await failureOf(again)).toMatchObject({
      code: "idempotency_conflict",
      status: 409,
      idempotencyKey,
    });
  });

  test("names the time at which a spent quota comes back", async () => {
    const hobby = await gateway.addProject("hobby");
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    const error = await failureOf(clientWith(hobby.production).jobs.create({ target_url: TARGET_URL }));
    expect(error.code).toBe("quota_exceeded");
    expect(error.retryAfterSeconds).toBeGreaterThan(0);
  });

  test("keeps a code that this client does not know", async () => {
    const newer: Fetch = async () =>
      Response.json(
        { error: { code: "moon_in_the_wrong_phase", message: "Wait.", request_id: "req_1", param: "moon" } },
        { status: 418 },
      );
    const error = await failureOf(clientWith(project.production, newer).project.get());
    expect(error).toMatchObject({
      code: "moon_in_the_wrong_phase",
      status: 418,
      requestId: "req_1",
      param: "moon",
    });
  });

  test.each([
    [
      "a page of a proxy",
      () => new Response("<html>", { status: 403, headers: { "content-type": "text/html" } }),
    ],
    ["JSON of somebody else", () => Response.json({ error: "no" }, { status: 403 })],
    ["JSON that is no object", () => Response.json(null, { status: 403 })],
    ["nothing", () => new Response(null, { status: 403 })],
    ["a redirect", () => new Response(null, { status: 302, headers: { location: "https://example.com/" } })],
    ["a success of somebody else", () => new Response("welcome")],
  ])("is unexpected_answer for an answer that does not come from the API: %s", async (_, answer) => {
    const error = await failureOf(clientWith(project.production, async () => answer()).project.get());
    expect(error).toMatchObject({ code: "unexpected_answer", status: answer().status, requestId: null });
    expect(error.message).toContain("no answer of the API");
  });

  test("is thrown for a redirect, which would take the key along", async () => {
    const elsewhere: string[] = [];
    const server = Bun.serve({
      hostname: "127.0.0.1",
      port: 0,
      fetch(request) {
        const { pathname } = new URL(request.url);
        elsewhere.push(pathname);
        return pathname === "/stolen" ? Response.json({}) : Response.redirect("/stolen", 307);
      },
    });
    const led = createClient({ baseUrl: server.url.href, apiKey: project.production, retriesMax: 0 });
    const error = await failureOf(led.jobs.create({ target_url: TARGET_URL }));
    expect(error).toMatchObject({ code: "unexpected_answer", status: 307 });
    expect(elsewhere).toEqual(["/v2/jobs"]);
    await server.stop(true);
  });

  test("never contains the client's key or a job's payload", async () => {
    const payload = { card: "s3cret" };
    const away = createClient({ baseUrl: "http://127.0.0.1:1", apiKey: project.production, retriesMax: 0 });
    const odd = clientWith(project.production, async () =>
      Response.json({ error: "s3cret" }, { status: 403 }),
    );
    const calls = [
      () => client.jobs.create({ target_url: "nowhere", payload }),
      () => away.jobs.create({ target_url: TARGET_URL, payload }),
      () => odd.jobs.get("x"),
    ];
    expect(Bun.inspect(client, { depth: 10 })).not.toContain(project.production);
    for (const call of calls) {
      const shown = Bun.inspect(await call().catch((error: unknown) => error), { depth: 10 });
      expect(shown).toContain("Error");
      expect(shown).not.toContain(project.production);
      expect(shown).not.toContain("s3cret");
    }
  });
});
