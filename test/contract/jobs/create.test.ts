import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { ErrorBody } from "../../../shared/contract/error.ts";
import { Job } from "../../../shared/contract/job.ts";
import type { ErrorCode } from "../../../shared/domain/errors.ts";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { until } from "../../../shared/store/test-support.ts";
import {
  type CallOptions,
  readAs,
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

/** A delivery node of which the gateway hears. */
const NODE_ID = 1_000;

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

/** A job of then is due, even if the clock of Postgres is somewhat behind. */
const past = () => new Date(Date.now() - 5_000).toISOString();
const post = (body: object | string, options: CallOptions = {}) =>
  gateway.call("POST", "/v2/jobs", { key: project.production, body, ...options });

/** Expects the documented refusal, and no new row in any table. */
async function expectNoTrace(body: object | string, code: ErrorCode, param?: string, options?: CallOptions) {
  const before = await gateway.countRows();
  const commandCount = gateway.commands.length;
  const error = readRefusal(await post(body, options), code, param);
  expect(await gateway.countRows()).toEqual(before);
  expect(gateway.commands.length).toBe(commandCount);
  return error;
}

describe("POST /v2/jobs", () => {
  test("creates a job that is due at once, with defaults filled in", async () => {
    const startedAt = Date.now();
    const job = readAs(Job, await post({ target_url: TARGET_URL }), 201);
    expect(job).toMatchObject({
      status: "queued",
      target_url: TARGET_URL,
      payload: {},
      region: "us-east",
      attempts: 0,
      retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3600 },
    });
    expect(job.id).toStartWith("job_");
    expect(job.run_at).toBe(job.created_at);
    expect(Date.parse(job.created_at)).toBeGreaterThanOrEqual(startedAt);
    expect(Date.parse(job.created_at)).toBeLessThanOrEqual(Date.now());
  });

  test("keeps every given field, and shows the same fields afterwards", async () => {
    const runAt = new Date(Date.now() + 3_600_000);
    const fields = {
      target_url: "https://example.com:8443/hook?x=1",
      payload: { a: [1, { b: null }], ünïcode: "✓ \u0000" },
      run_at: runAt.toISOString().replace("Z", "+00:00"),
      region: "eu-central",
      retry_policy: { max_attempts: 25, base_seconds: 2, cap_seconds: 3 },
    };
    const answer = await post(fields);
    expect(readAs(Job, answer, 201)).toMatchObject({ ...fields, run_at: runAt.toISOString() });
    const { id } = JSON.parse(answer.text);
    const shown = await gateway.call("GET", `/v2/jobs/${id}`, { key: project.production });
    expect(shown.text).toBe(answer.text);
  });

  test("keeps the payload's text, numbers beyond double precision included", async () => {
    const answer = await post(
      `{"payload": {"big": 9007199254740993, "exact" : 1.10, "s": "a b\\u00e9"}, "target_url":"${TARGET_URL}"}`,
    );
    expect(answer.text).toContain('"payload":{"big":9007199254740993,"exact":1.10,"s":"a b\\u00e9"}');
    const { id } = readAs(Job, answer, 201);
    const [row] = await gateway.query<{ payload: string }>(
      "SELECT payload FROM jobs WHERE payload LIKE '%9007199254740993%'",
    );
    expect(row?.payload).toBe('{"big":9007199254740993,"exact":1.10,"s":"a b\\u00e9"}');
    expect((await gateway.call("GET", `/v2/jobs/${id}`, { key: project.production })).text).toContain(
      "9007199254740993",
    );
  });

  test("tells the worker of jobs due within a minute, and of no others", async () => {
    const own = await gateway.addProject();
    const soon = await gateway.createJob(own);
    const later = await gateway.createJob(own, { run_at: new Date(Date.now() + 90_000).toISOString() });
    const last = await gateway.createJob(own, { region: "ap-southeast" });
    const told = () => gateway.commands.filter(({ projectNo }) => projectNo === own.no);
    for (let turn = 0; turn < 1_000 && told().length < 2; turn++) await new Promise(setImmediate);
    expect(told().map(({ region, owed }) => ({ region, ids: owed.map(({ id }) => id) }))).toEqual([
      { region: "us-east", ids: [soon.id] },
      { region: "ap-southeast", ids: [last.id] },
    ]);
    expect(told()[0]?.owed[0]).toMatchObject({ flowClass: "production jobs", attempt: 1 });
    expect(told().flatMap(({ owed }) => owed.map(({ id }) => id))).not.toContain(later.id);
  });

  test("tells a delivery node of a job that is due, and then no worker", async () => {
    const own = await gateway.addProject();
    const told: string[] = [];
    const hearing = gateway.bus.onDue(NODE_ID, ({ items }) => told.push(...items.map(({ id }) => id)));
    const created: string[] = [];
    await until(async () => {
      gateway.bus.sendBeat("delivery", { nodeId: NODE_ID, regions: ["us-west"], room: 4_000 });
      created.push((await gateway.createJob(own, { region: "us-west", run_at: past() })).id);
      return told.length > 0;
    });
    const soon = new Date(Date.now() + 30_000).toISOString();
    const later = await gateway.createJob(own, { region: "us-west", run_at: soon });
    const commanded = () =>
      gateway.commands.flatMap(({ projectNo, owed }) =>
        projectNo === own.no ? owed.map(({ id }) => id) : [],
      );
    await until(() => told.length + commanded().length > created.length);
    expect(commanded()).toContain(later.id);
    expect([...commanded(), ...told].toSorted()).toEqual([...created, later.id].toSorted());
    hearing.unsubscribe();
  });

  test("gives each of many concurrent requests its own job", async () => {
    const answers = await Promise.all(
      Array.from({ length: 250 }, (_, n) => post({ target_url: TARGET_URL, payload: { n } })),
    );
    const jobs = answers.map((answer) => readAs(Job, answer, 201));
    expect(new Set(jobs.map(({ id }) => id)).size).toBe(250);
    expect(jobs.map(({ payload }) => payload)).toEqual(Array.from({ length: 250 }, (_, n) => ({ n })));
    for (const { id, payload } of jobs.slice(0, 20)) {
      const shown = await gateway.call("GET", `/v2/jobs/${id}`, { key: project.production });
      expect(readAs(Job, shown).payload).toEqual(payload);
    }
  });

  test.each(["T02:30:00+0200", "T02:30:00+02", "T02:30:00+02:00", "T00:30:00Z", "t00:30:00z"])(
    "takes run_at with any spelling of its offset, and shows it in UTC: %s",
    async (time) => {
      const date = `${new Date().getUTCFullYear() + 1}-01-01`;
      const { run_at } = await gateway.createJob(project, { run_at: `${date}${time}` });
      expect(run_at).toBe(`${date}T00:30:00.000Z`);
    },
  );

  test("runs a job at once if its run_at is up to a minute ago, and keeps that run_at", async () => {
    const runAt = new Date(Date.now() - 50_000).toISOString();
    expect(readAs(Job, await post({ target_url: TARGET_URL, run_at: runAt }), 201).run_at).toBe(runAt);
  });

  test("takes a payload of exactly 256 KB, and of several such at once", async () => {
    const payload = { x: "y".repeat(PAYLOAD_BYTES_MAX - 8) };
    expect(JSON.stringify(payload).length).toBe(PAYLOAD_BYTES_MAX);
    const answers = await Promise.all([1, 2, 3].map(() => post({ target_url: TARGET_URL, payload })));
    expect(answers.map(({ status }) => status)).toEqual([201, 201, 201]);
  });

  test("uses the project's default region, or us-east if the plan does not allow it any more", async () => {
    const hobby = await gateway.addProject("hobby");
    await gateway.query("UPDATE projects SET default_region = 1 WHERE no = ANY ($1)", [
      [hobby.no, project.no],
    ]);
    const fresh = await gateway.addKey(hobby, {});
    const own = await gateway.addKey(project, {});
    const created = async (key: string) =>
      readAs(Job, await gateway.call("POST", "/v2/jobs", { key, body: { target_url: TARGET_URL } }), 201)
        .region;
    expect(await created(fresh.key)).toBe("us-east");
    expect(await created(own.key)).toBe("us-west");
    await gateway.query("UPDATE projects SET default_region = 0 WHERE no = $1", [project.no]);
  });

  test("refuses another region for a hobby project", async () => {
    const hobby = await gateway.addProject("hobby");
    await expectNoTrace({ target_url: TARGET_URL, region: "us-west" }, "invalid_request", "region", {
      key: hobby.production,
    });
  });
});

describe("POST /v2/jobs refuses without a trace", () => {
  const valid = { target_url: TARGET_URL };
  const inElevenYears = new Date(Date.now() + 11 * 366 * 86_400_000);
  const cases: [string, object | string, ErrorCode, string | undefined][] = [
    ["no target", {}, "invalid_request", "target_url"],
    ["a null target", { target_url: null }, "invalid_request", "target_url"],
    ["an http target", { target_url: "http://example.com/" }, "invalid_request", "target_url"],
    ["a private target", { target_url: "https://10.0.0.1/" }, "invalid_request", "target_url"],
    ["the metadata service", { target_url: "https://169.254.169.254/" }, "invalid_request", "target_url"],
    ["localhost", { target_url: "https://localhost/" }, "invalid_request", "target_url"],
    ["credentials in the URL", { target_url: "https://a:b@example.com/" }, "invalid_request", "target_url"],
    [
      "a URL that is too long",
      { target_url: `https://example.com/${"x".repeat(2048)}` },
      "invalid_request",
      "target_url",
    ],
    ["a payload that is an array", { ...valid, payload: [1] }, "invalid_request", "payload"],
    ["a payload that is a string", { ...valid, payload: "x" }, "invalid_request", "payload"],
    ["a null payload", { ...valid, payload: null }, "invalid_request", "payload"],
    [
      "a payload over 256 KB",
      { ...valid, payload: { x: "y".repeat(PAYLOAD_BYTES_MAX - 7) } },
      "payload_too_large",
      "payload",
    ],
    ["a body over 1 MiB", { ...valid, x: "y".repeat(1_048_576) }, "payload_too_large", undefined],
    ["run_at without an offset", { ...valid, run_at: "2099-01-01T00:00:00" }, "invalid_request", "run_at"],
    [
      "run_at over a minute ago",
      { ...valid, run_at: new Date(Date.now() - 61_000).toISOString() },
      "run_at_in_past",
      "run_at",
    ],
    [
      "run_at in eleven years",
      { ...valid, run_at: inElevenYears.toISOString() },
      "invalid_request",
      "run_at",
    ],
    ["run_at that is no date", { ...valid, run_at: "2027-02-30T00:00:00Z" }, "invalid_request", "run_at"],
    ["run_at as a number", { ...valid, run_at: 1_900_000_000 }, "invalid_request", "run_at"],
    ["an unknown region", { ...valid, region: "mars" }, "invalid_request", "region"],
    ["an unknown field", { ...valid, runAt: "2099-01-01T00:00:00Z" }, "invalid_request", "runAt"],
    [
      "an unknown field of the policy",
      { ...valid, retry_policy: { maxAttempts: 1 } },
      "invalid_request",
      "retry_policy.maxAttempts",
    ],
    [
      "26 attempts",
      { ...valid, retry_policy: { max_attempts: 26 } },
      "invalid_request",
      "retry_policy.max_attempts",
    ],
    [
      "a fraction of an attempt",
      { ...valid, retry_policy: { max_attempts: 5.5 } },
      "invalid_request",
      "retry_policy.max_attempts",
    ],
    [
      "a number as text",
      { ...valid, retry_policy: { cap_seconds: "5" } },
      "invalid_request",
      "retry_policy.cap_seconds",
    ],
    [
      "a base over the cap",
      { ...valid, retry_policy: { base_seconds: 20, cap_seconds: 10 } },
      "invalid_request",
      "retry_policy.base_seconds",
    ],
    ["an array", [valid], "invalid_request", undefined],
    ["an empty body", "", "invalid_request", undefined],
    ["broken JSON", "{", "invalid_request", undefined],
    ["trailing garbage", `${JSON.stringify(valid)}x`, "invalid_request", undefined],
    [
      "a repeated field",
      `{"target_url":"${TARGET_URL}","target_url":"${TARGET_URL}"}`,
      "invalid_request",
      "target_url",
    ],
    [
      "a repeated member in the payload",
      `{"target_url":"${TARGET_URL}","payload":{"a":1,"a":2}}`,
      "invalid_request",
      "payload",
    ],
    [
      "65 nested containers",
      `{"target_url":"${TARGET_URL}","payload":{"a":${"[".repeat(63)}${"]".repeat(63)}}}`,
      "invalid_request",
      undefined,
    ],
  ];
  test.each(cases)("%s", async (_, body, code, param) => {
    await expectNoTrace(body, code, param);
  });

  test("no payload of 64 nested containers", async () => {
    const body = `{"target_url":"${TARGET_URL}","payload":{"a":${"[".repeat(62)}${"]".repeat(62)}}}`;
    expect((await post(body)).status).toBe(201);
  });

  test.each([
    ["a form", { "Content-Type": "application/x-www-form-urlencoded" }],
    ["no media type", { "Content-Type": "" }],
    ["text", { "Content-Type": "text/plain" }],
    ["another character set", { "Content-Type": "application/json; charset=latin1" }],
    ["a compressed body", { "Content-Encoding": "gzip" }],
  ])("%s", async (_, headers) => {
    await expectNoTrace(valid, "unsupported_media_type", undefined, { headers });
  });

  test.each(["application/json;charset=UTF-8", 'Application/JSON; charset="utf-8"'])(
    "no body of type %s",
    async (type) => {
      expect((await post(valid, { headers: { "Content-Type": type } })).status).toBe(201);
    },
  );

  test("a query parameter", async () => {
    const before = await gateway.countRows();
    const answer = await gateway.call("POST", "/v2/jobs?x=1", { key: project.production, body: valid });
    readRefusal(answer, "invalid_request", "x");
    expect(await gateway.countRows()).toEqual(before);
  });

  test.each([["x".repeat(256)], ["ü"]])("an invalid Idempotency-Key: %s", async (key) => {
    await expectNoTrace(valid, "invalid_request", "Idempotency-Key", { headers: { "Idempotency-Key": key } });
  });

  test("an unknown Service-Version, and names the one that was used", async () => {
    const answer = await post(valid, { headers: { "Service-Version": "2020-01-01" } });
    readRefusal(answer, "invalid_request", "Service-Version");
    expect(answer.headers.get("service-version")).toBe("2026-11-01");
  });

  test("a key that may only read", async () => {
    const { key } = await gateway.addKey(project, { scope: "read" });
    await expectNoTrace(valid, "insufficient_scope", undefined, { key });
  });

  test("when the project's quota is spent, and names the seconds to the rollover", async () => {
    const hobby = await gateway.addProject("hobby");
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    const before = await gateway.countRows();
    const askedAt = new Date();
    const answer = await post(valid, { key: hobby.production });
    readRefusal(answer, "quota_exceeded");
    const rollover = Date.UTC(askedAt.getUTCFullYear(), askedAt.getUTCMonth() + 1);
    const seconds = Number(answer.headers.get("retry-after"));
    expect(seconds).toBeGreaterThanOrEqual(Math.floor((rollover - Date.now()) / 1_000));
    expect(seconds).toBeLessThanOrEqual(Math.ceil((rollover - askedAt.getTime()) / 1_000));
    expect(await gateway.countRows()).toEqual(before);
    // Reads and cancels still work.
    expect((await gateway.call("GET", "/v2/jobs", { key: hobby.production })).status).toBe(200);
  });

  test("only the request of a project whose quota is spent, and no other request in its statement", async () => {
    const hobby = await gateway.addProject("hobby");
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    const answers = await Promise.all(
      Array.from({ length: 20 }, (_, n) =>
        post(valid, { key: n % 2 === 0 ? hobby.production : project.production }),
      ),
    );
    expect(answers.map(({ status }) => status)).toEqual(
      Array.from({ length: 20 }, (_, n) => (n % 2 === 0 ? 429 : 201)),
    );
  });

  test("and never quotes the payload", async () => {
    const answer = await post(
      `{"target_url":"${TARGET_URL}","payload":{"s3cret":1,"s3cret":2},"retry_policy":"s3cret"}`,
    );
    readAs(ErrorBody, answer, 400);
    expect(answer.text).not.toContain("s3cret");
  });
});
