import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { JobBatch } from "../../../shared/contract/job.ts";
import { PAYLOAD_BYTES_MAX } from "../../../shared/domain/job.ts";
import { TAGS_MAX } from "../../../shared/domain/tags.ts";
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

const BODY_BYTES_MAX = 33_554_432;
const valid = (n = 0) => ({ target_url: TARGET_URL, payload: { n } });
const post = (body: object | string, options: CallOptions = {}) =>
  gateway.call("POST", "/v2/jobs/batch", { key: project.production, body, ...options });

async function refuse(
  body: object | string,
  ...expected: Parameters<typeof readRefusal> extends [unknown, ...infer Rest] ? Rest : never
) {
  const before = await gateway.countRows();
  const commandCount = gateway.commands.length;
  const error = readRefusal(await post(body), ...expected);
  expect(await gateway.countRows()).toEqual(before);
  expect(gateway.commands.length).toBe(commandCount);
  return error;
}

describe("POST /v2/jobs/batch", () => {
  test("creates all jobs in the order of the entries, each as it would be alone", async () => {
    const fields = [
      valid(1),
      { ...valid(2), region: "us-west", run_at: "2030-01-01T00:00:00Z" },
      { ...valid(3), retry_policy: { max_attempts: 1 } },
    ];
    const { data } = readAs(JobBatch, await post({ jobs: fields }), 201);
    expect(data).toMatchObject([
      { ...fields[0], status: "queued", attempts: 0, region: "us-east" },
      { ...fields[1], run_at: "2030-01-01T00:00:00.000Z" },
      { ...fields[2], retry_policy: { max_attempts: 1, base_seconds: 10, cap_seconds: 3600 } },
    ]);
    for (const job of data) {
      const shown = await gateway.call("GET", `/v2/jobs/${job.id}`, { key: project.production });
      expect(JSON.parse(shown.text)).toEqual(job);
    }
  });

  test("creates a hundred jobs of which each has every field and as many tags as it may have", async () => {
    const runAt = new Date(Date.now() + 86_400_000).toISOString();
    const entry = {
      ...{ ...valid(), run_at: runAt, region: "us-west" },
      retry_policy: { max_attempts: 2, base_seconds: 20, cap_seconds: 30 },
      tags: Array.from({ length: TAGS_MAX }, (_, n) => `tag-${n}`),
      flow: { key: "full", concurrency: 2, rate: { count: 3, per_seconds: 4 }, hold: "job" },
    };
    const { data } = readAs(JobBatch, await post({ jobs: Array(100).fill(entry) }), 201);
    expect(data).toHaveLength(100);
    expect(data[99]).toMatchObject(entry);
  });

  test("keeps each payload's text", async () => {
    const entry = (payload: string) => `{"payload": ${payload}, "target_url": "${TARGET_URL}"}`;
    const { text } = await post(
      `{"jobs":[${entry('{"a": 9007199254740993}')},${entry("{}")},${entry('{"b":1.10}')}]}`,
    );
    expect(text).toContain('"payload":{"a":9007199254740993}');
    expect(text).toContain('"payload":{"b":1.10}');
  });

  test("tells the workers which jobs are due", async () => {
    const own = await gateway.addProject();
    const answer = await post(
      { jobs: [valid(), { ...valid(), run_at: "2030-01-01T00:00:00Z" }] },
      { key: own.production },
    );
    const { data } = readAs(JobBatch, answer, 201);
    const told = () => gateway.commands.filter(({ projectNo }) => projectNo === own.no);
    for (let turn = 0; turn < 1_000 && told().length < 1; turn++) await new Promise(setImmediate);
    expect(told().flatMap(({ owed }) => owed.map(({ id }) => id))).toEqual([data[0]?.id ?? ""]);
  });

  test("tells a worker of its jobs, whatever room delivery nodes have", async () => {
    const own = await gateway.addProject();
    const told: string[] = [];
    const hearing = gateway.bus.onDue(NODE_ID, ({ items }) => told.push(...items.map(({ id }) => id)));
    // A job of then is due, even if the clock of Postgres is somewhat behind.
    const due = { ...valid(), region: "us-west", run_at: new Date(Date.now() - 5_000).toISOString() };
    // A single job goes to the node, so the gateway has heard of it.
    await until(async () => {
      gateway.bus.sendBeat("delivery", { nodeId: NODE_ID, regions: ["us-west"], room: 4_000 });
      await gateway.createJob(own, due);
      return told.length > 0;
    });
    const { data } = readAs(JobBatch, await post({ jobs: [due, due] }, { key: own.production }), 201);
    const commanded = () => gateway.commands.flatMap(({ owed }) => owed.map(({ id }) => id));
    await until(() => data.every(({ id }) => commanded().includes(id)));
    // The node may still hear of the jobs before.
    expect(told.filter((id) => data.some((job) => job.id === id))).toBeEmpty();
    hearing.unsubscribe();
  });

  test("takes 100 jobs of 256 KB each", async () => {
    const payload = { x: "y".repeat(PAYLOAD_BYTES_MAX - 8) };
    const jobs = Array.from({ length: 100 }, () => ({ target_url: TARGET_URL, payload }));
    const { data } = readAs(JobBatch, await post({ jobs }), 201);
    expect(new Set(data.map(({ id }) => id)).size).toBe(100);
  });

  test("answers each of many batches at once with its own jobs", async () => {
    const answers = await Promise.all(
      Array.from({ length: 30 }, (_, batch) =>
        post({ jobs: Array.from({ length: 1 + batch }, (_, n) => valid(batch * 100 + n)) }),
      ),
    );
    for (const [batch, answer] of answers.entries()) {
      const { data } = readAs(JobBatch, answer, 201);
      expect(data.map(({ payload }) => payload)).toEqual(
        Array.from({ length: 1 + batch }, (_, n) => ({ n: batch * 100 + n })),
      );
    }
  });

  test("counts as one request", async () => {
    const own = await gateway.addProject("pro", { requestRate: 10 });
    const answer = await post({ jobs: Array.from({ length: 100 }, () => valid()) }, { key: own.production });
    expect(answer.status).toBe(201);
    expect(answer.headers.get("ratelimit-remaining")).toBe("9");
  });

  test("creates nothing if an entry is invalid, and names every invalid entry", async () => {
    const jobs = [
      valid(),
      { ...valid(), runAt: "x" },
      { ...valid(), run_at: "2020-01-01T00:00:00Z" },
      valid(),
      { target_url: TARGET_URL, payload: { x: "y".repeat(PAYLOAD_BYTES_MAX) } },
      7,
    ];
    const error = await refuse({ jobs }, "invalid_request");
    expect(error.details?.map(({ index, code, param }) => ({ index, code, param }))).toEqual([
      { index: 1, code: "invalid_request", param: "runAt" },
      { index: 2, code: "run_at_in_past", param: "run_at" },
      { index: 4, code: "payload_too_large", param: "payload" },
      { index: 5, code: "invalid_request", param: undefined },
    ]);
  });

  test.each([
    ["no entries", { jobs: [] }, "jobs"],
    ["101 entries", { jobs: Array.from({ length: 101 }, () => ({ target_url: TARGET_URL })) }, "jobs"],
    ["no jobs", {}, "jobs"],
    ["jobs that are no array", { jobs: {} }, "jobs"],
    ["an unknown field", { jobs: [{ target_url: TARGET_URL }], dryRun: true }, "dryRun"],
    ["an array", [], undefined],
  ])("refuses %s", async (_, body, param) => {
    await refuse(body, "invalid_request", param);
  });

  test("accepts a body of 32 MiB, and refuses one byte more", async () => {
    const text = JSON.stringify({ jobs: [valid()] });
    expect((await post(text + " ".repeat(BODY_BYTES_MAX - text.length))).status).toBe(201);
    await refuse(text + " ".repeat(BODY_BYTES_MAX + 1 - text.length), "payload_too_large");
  });

  test("is accepted while one run is left, and refused when none is left", async () => {
    const hobby = await gateway.addProject("hobby");
    const jobs = [valid(), valid()];
    await gateway.query("UPDATE flows SET month_runs = 9999 WHERE project_no = $1", [hobby.no]);
    expect((await post({ jobs }, { key: hobby.production })).status).toBe(201);
    await gateway.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby.no]);
    const before = await gateway.countRows();
    const answer = await post({ jobs }, { key: hobby.production });
    readRefusal(answer, "quota_exceeded");
    expect(Number(answer.headers.get("retry-after"))).toBeGreaterThan(0);
    expect(await gateway.countRows()).toEqual(before);
  });

  test("replays the first answer to an Idempotency-Key", async () => {
    const headers = { "Idempotency-Key": "batch" };
    const first = await post({ jobs: [valid(1), valid(2), valid(3)] }, { headers });
    const again = await post({ jobs: [valid(1), valid(2), valid(3)] }, { headers });
    expect(first.status).toBe(201);
    expect({ status: again.status, text: again.text }).toEqual({ status: 201, text: first.text });
    expect(again.headers.get("idempotent-replayed")).toBe("true");
    const other = await post({ jobs: [valid(1), valid(3), valid(2)] }, { headers });
    readRefusal(other, "idempotency_conflict", "Idempotency-Key");
  });

  test("has a path that names no job: GET and DELETE answer 404", async () => {
    for (const method of ["GET", "DELETE"]) {
      const answer = await gateway.call(method, "/v2/jobs/batch", { key: project.production });
      readRefusal(answer, "resource_not_found");
    }
  });

  test("refuses a key that may only read, and a query parameter", async () => {
    const { key } = await gateway.addKey(project, { scope: "read" });
    readRefusal(await post({ jobs: [valid()] }, { key }), "insufficient_scope");
    const answer = await gateway.call("POST", "/v2/jobs/batch?a=1", {
      key: project.production,
      body: { jobs: [valid()] },
    });
    readRefusal(answer, "invalid_request", "a");
  });
});
