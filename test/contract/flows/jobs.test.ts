import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { JobListQuery, NewJob } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";
import { newSchedule } from "../schedules/support.ts";

let gateway: TestGateway;
let project: TestProject;
beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const client = (key = project.production) => clientOf(gateway, key);
const post = (body: object, headers = {}) =>
  gateway.call("POST", "/v2/jobs", { key: project.production, body, headers });

type Flow = NonNullable<NewJob["flow"]>;
const FLOWS: Flow[] = [
  { key: "a" },
  { key: "A-Z_.:/@+z".padEnd(64, "9"), hold: "attempt" },
  { rate: { per_seconds: 86_400, count: 10_000 }, key: "...", concurrency: 2_000, hold: "job" },
  { key: "b", concurrency: 1, rate: { count: 1, per_seconds: 1 } },
];

describe("the flow of a job", () => {
  test.each(FLOWS)("stands in the object as it was given, and in no other view: %j", async (flow) => {
    const { jobs } = client();
    const created = await jobs.create({ target_url: TARGET_URL, flow });
    expect(JSON.stringify(created.flow)).toBe(JSON.stringify(flow));
    expect((await jobs.get(created.id)).flow).toEqual(flow);
    const { data } = await jobs.list({ flow_key: flow.key });
    const listed = data.find(({ id }) => id === created.id);
    for (const view of [listed, await jobs.cancel(created.id)])
      expect(Object.keys(view ?? { flow })).not.toContain("flow");
    expect((await jobs.get(created.id)).flow).toEqual(flow);
  });

  test("that has none is in no answer", async () => {
    const { jobs } = client();
    const plain = await jobs.create({ target_url: TARGET_URL });
    for (const view of [plain, await jobs.get(plain.id)]) expect(Object.keys(view)).not.toContain("flow");
  });

  test("gives its limits to the key: the last one's hold, each by itself, and in a batch the last entry's", async () => {
    const { jobs, flows } = client();
    const limitsOf = async (key: string) => {
      const { concurrency, rate } = await flows.get(key);
      return { concurrency, rate };
    };
    const rate = { count: 5, per_seconds: 60 };
    await jobs.create({ target_url: TARGET_URL, flow: { key: "last" } });
    expect(await limitsOf("last")).toEqual({ concurrency: null, rate: null });
    await jobs.create({ target_url: TARGET_URL, flow: { key: "last", concurrency: 3, rate } });
    await jobs.create({ target_url: TARGET_URL, flow: { key: "last", concurrency: 2 } });
    await jobs.create({ target_url: TARGET_URL, flow: { key: "last" } });
    expect(await limitsOf("last")).toEqual({ concurrency: 2, rate });
    const of = (flow: Omit<Flow, "key">) => ({ target_url: TARGET_URL, flow: { key: "last", ...flow } });
    await jobs.createBatch([
      of({ concurrency: 9 }),
      of({ rate: { ...rate, count: 6 } }),
      of({ concurrency: 4 }),
      of({}),
    ]);
    expect(await limitsOf("last")).toEqual({ concurrency: 4, rate: { ...rate, count: 6 } });
    await flows.update("last", { pinned: true, concurrency: null });
    await jobs.createBatch([of({ concurrency: 1 })]);
    expect(await limitsOf("last")).toEqual({ concurrency: null, rate: { ...rate, count: 6 } });
  });

  test("is that of the first answer when the request is sent again under its key, and a part of what is compared", async () => {
    const headers = { "Idempotency-Key": "with a flow" };
    const body = { target_url: TARGET_URL, flow: { key: "once", concurrency: 2, hold: "job" } };
    const [first, second] = [await post(body, headers), await post(body, headers)];
    expect([first.status, second.status, second.text]).toEqual([201, 201, first.text]);
    expect(JSON.parse(first.text).flow).toEqual(body.flow);
    const other = { ...body, flow: { ...body.flow, concurrency: 1 } };
    readRefusal(await post(other, headers), "idempotency_conflict", "Idempotency-Key");
    expect((await client().flows.get("once")).concurrency).toBe(2);
  });

  test.each<[unknown, string]>([
    [null, "flow"],
    ["a", "flow"],
    [[], "flow"],
    [{}, "flow.key"],
    [{ concurrency: 1 }, "flow.key"],
    [{ key: null }, "flow.key"],
    [{ key: 7 }, "flow.key"],
    [{ key: "" }, "flow.key"],
    [{ key: "." }, "flow.key"],
    [{ key: ".." }, "flow.key"],
    [{ key: "a b" }, "flow.key"],
    [{ key: " a" }, "flow.key"],
    [{ key: "a\n" }, "flow.key"],
    [{ key: "ä" }, "flow.key"],
    [{ key: "x".repeat(65) }, "flow.key"],
    [{ key: "a", Concurrency: 1 }, "flow.Concurrency"],
    [{ key: "a", paused: true }, "flow.paused"],
    [{ key: "a", concurrency: null }, "flow.concurrency"],
    [{ key: "a", concurrency: 0 }, "flow.concurrency"],
    [{ key: "a", concurrency: 2_001 }, "flow.concurrency"],
    [{ key: "a", concurrency: 1.5 }, "flow.concurrency"],
    [{ key: "a", concurrency: "1" }, "flow.concurrency"],
    [{ key: "a", rate: null }, "flow.rate"],
    [{ key: "a", rate: 5 }, "flow.rate"],
    [{ key: "a", rate: {} }, "flow.rate.count"],
    [{ key: "a", rate: { count: 5 } }, "flow.rate.per_seconds"],
    [{ key: "a", rate: { per_seconds: 5 } }, "flow.rate.count"],
    [{ key: "a", rate: { count: 0, per_seconds: 5 } }, "flow.rate.count"],
    [{ key: "a", rate: { count: 10_001, per_seconds: 5 } }, "flow.rate.count"],
    [{ key: "a", rate: { count: 5, per_seconds: 0 } }, "flow.rate.per_seconds"],
    [{ key: "a", rate: { count: 5, per_seconds: 86_401 } }, "flow.rate.per_seconds"],
    [{ key: "a", rate: { count: 5, per_seconds: 5, burst: 1 } }, "flow.rate.burst"],
    [{ key: "a", hold: null }, "flow.hold"],
    [{ key: "a", hold: "Job" }, "flow.hold"],
  ])("is refused as %j, which leaves no trace", async (flow, param) => {
    const before = await gateway.countRows();
    readRefusal(await post({ target_url: TARGET_URL, flow }), "invalid_request", param);
    const { rate_windows: _, ...after } = await gateway.countRows();
    expect({ ...before, ...after }).toEqual(before);
  });

  test("of a bad entry of a batch is named, and no key is made", async () => {
    const entry = (flow: object) => ({ target_url: TARGET_URL, flow });
    const answer = await gateway.call("POST", "/v2/jobs/batch", {
      key: project.production,
      body: { jobs: [entry({ key: "fine" }), entry({ key: ".." })] },
    });
    const { details } = readRefusal(answer, "invalid_request");
    expect(details).toMatchObject([{ index: 1, code: "invalid_request", param: "flow.key" }]);
    readRefusal(
      await gateway.call("GET", "/v2/flows/fine", { key: project.production }),
      "resource_not_found",
    );
  });
});

describe("the flow of a schedule", () => {
  const flow: Flow = { key: "of a:schedule".replaceAll(" ", "-"), concurrency: 2, hold: "job" };

  test("is shown as it was given, replaced as a whole, taken away by null, and goes to its jobs", async () => {
    const { schedules, jobs } = client();
    const made = await schedules.create(newSchedule({ flow }));
    expect(made.flow).toEqual(flow);
    expect((await jobs.get((await schedules.run(made.id)).id)).flow).toEqual(flow);
    const replaced = await schedules.update(made.id, { flow: { key: "b" } });
    expect([replaced.flow, replaced.next_run_at]).toEqual([{ key: "b" }, made.next_run_at]);
    expect((await schedules.update(made.id, { paused: false })).flow).toEqual({ key: "b" });
    const none = await schedules.update(made.id, { flow: null });
    expect(Object.keys(none)).not.toContain("flow");
    expect(await schedules.get(made.id)).toEqual(none);
    expect(Object.keys(await schedules.run(made.id))).not.toContain("flow");
  });

  test("gives its limits to the key when it is made, changed and put, and not by a change of something else", async () => {
    const { schedules, flows } = client();
    const key = "given-by-a-schedule";
    const limitOf = async () => (await flows.get(key)).concurrency;
    const { id, name } = await schedules.create(newSchedule({ flow: { key, concurrency: 3 } }));
    expect(await limitOf()).toBe(3);
    await flows.update(key, { concurrency: 9 });
    await schedules.update(id, { paused: true });
    expect(await limitOf()).toBe(9);
    await schedules.update(id, { flow: { key, concurrency: 4 } });
    expect(await limitOf()).toBe(4);
    await schedules.update(id, { flow: { key } });
    expect(await limitOf()).toBe(4);
    const { name: _, ...rest } = newSchedule();
    await schedules.put(name, { ...rest, flow: { key, concurrency: 5 } });
    expect(await limitOf()).toBe(5);
    await flows.update(key, { pinned: true });
    await schedules.update(id, { flow: { key, concurrency: 6 } });
    expect(await limitOf()).toBe(5);
  });

  test("is put with it: the same again changes nothing, and left out there is none", async () => {
    const { schedules } = client();
    const { name, ...body } = newSchedule({ flow });
    const made = await schedules.put(name, body);
    expect(made.flow).toEqual(flow);
    expect(await schedules.put(name, body)).toEqual(made);
    const { flow: _, ...without } = body;
    expect(Object.keys(await schedules.put(name, without))).not.toContain("flow");
  });

  test.each<[string, string, unknown, string]>([
    ["POST", "/v2/schedules", { key: "." }, "flow.key"],
    ["POST", "/v2/schedules", null, "flow"],
    ["PUT", "/v2/schedules/by-name/nightly", { key: "a b" }, "flow.key"],
    ["PUT", "/v2/schedules/by-name/nightly", null, "flow"],
    ["PATCH", "", { key: ".." }, "flow.key"],
    ["PATCH", "", { key: "a", concurrency: 0 }, "flow.concurrency"],
    ["PATCH", "", { concurrency: 1 }, "flow.key"],
    ["PATCH", "", { key: "a", rate: { count: 1 } }, "flow.rate.per_seconds"],
    ["PATCH", "", [], "flow"],
  ])("is refused by %s %s as %j", async (method, path, flow, param) => {
    const { schedules } = client();
    const { id, name } = await schedules.create(newSchedule());
    const { name: _, ...rest } = newSchedule();
    const body =
      method === "PATCH" ? { flow } : { ...(method === "POST" ? { name: `${name}-2` } : {}), ...rest, flow };
    const at = path === "" ? `/v2/schedules/${id}` : path;
    readRefusal(await gateway.call(method, at, { key: project.production, body }), "invalid_request", param);
  });
});

describe("GET /v2/jobs?flow_key=", () => {
  test("finds the jobs of a key by status, region, tag and schedule, page by page, in this environment alone", async () => {
    const own = await gateway.addProject();
    const { jobs, schedules } = client(own.production);
    const flow = { key: "a/b+c" };
    const schedule = await schedules.create(newSchedule({ flow, tags: ["t"] }));
    const fired = await schedules.run(schedule.id);
    const tagged = await jobs.create({
      target_url: TARGET_URL,
      flow,
      tags: ["t", "u"],
      region: "eu-central",
    });
    const plain = await jobs.create({ target_url: TARGET_URL, flow });
    await jobs.create({ target_url: TARGET_URL, flow: { key: "a/b" }, tags: ["t"] });
    await jobs.create({ target_url: TARGET_URL, tags: ["t"] });
    await client(own.development).jobs.create({ target_url: TARGET_URL, flow });
    const canceled = await jobs.create({ target_url: TARGET_URL, flow, tags: ["u"] });
    await jobs.cancel(canceled.id);
    await gateway.claim(own, plain, 1);
    const idsOf = async (query: JobListQuery) =>
      (await jobs.list({ flow_key: flow.key, ...query })).data.map(({ id }) => id);
    expect(await idsOf({})).toEqual([canceled.id, plain.id, tagged.id, fired.id]);
    expect(await idsOf({ status: "queued" })).toEqual([tagged.id, fired.id]);
    expect(await idsOf({ status: "running" })).toEqual([plain.id]);
    expect(await idsOf({ status: "canceled" })).toEqual([canceled.id]);
    expect(await idsOf({ status: "failed" })).toEqual([]);
    expect(await idsOf({ region: "eu-central" })).toEqual([tagged.id]);
    expect(await idsOf({ tag: "t" })).toEqual([tagged.id, fired.id]);
    expect(await idsOf({ tag: "u", status: "canceled" })).toEqual([canceled.id]);
    expect(await idsOf({ tag: "u", status: "queued" })).toEqual([tagged.id]);
    expect(await idsOf({ tag: "u", status: "running" })).toEqual([]);
    expect(await idsOf({ schedule_id: schedule.id })).toEqual([fired.id]);
    expect(await idsOf({ schedule_id: schedule.id, tag: "t", status: "queued" })).toEqual([fired.id]);
    expect(await idsOf({ schedule_id: schedule.id, tag: "u" })).toEqual([]);
    expect(await idsOf({ created_before: new Date(Date.parse(fired.created_at)) })).toEqual([]);
    const walked: string[] = [];
    for await (const { id } of jobs.list({ flow_key: flow.key, limit: 1 })) walked.push(id);
    expect(walked).toEqual([canceled.id, plain.id, tagged.id, fired.id]);
    const { next_cursor: cursor } = await jobs.list({ flow_key: flow.key, limit: 1 });
    for (const query of [`cursor=${cursor}`, `cursor=${cursor}&flow_key=a`, `cursor=${cursor}&tag=a`])
      readRefusal(
        await gateway.call("GET", `/v2/jobs?${query}`, { key: own.production }),
        "invalid_request",
        "cursor",
      );
    // A tag cannot be spelled like a key.
    expect((await jobs.list({ tag: "a/b+c" })).data).toEqual([]);
  });

  test.each(["", "%20a", "a+b", ".", "..", "a%00", "x".repeat(65)])("refuses %j", async (key) => {
    const answer = await gateway.call("GET", `/v2/jobs?flow_key=${key}`, { key: project.production });
    readRefusal(answer, "invalid_request", "flow_key");
  });

  test("is no filter of runs", async () => {
    const answer = await gateway.call("GET", "/v2/runs?flow_key=a", { key: project.production });
    readRefusal(answer, "invalid_request", "flow_key");
  });
});
