import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { JobListQuery } from "../../../shared/client/index.ts";
import type { Region } from "../../../shared/domain/scope.ts";
import { clientOf } from "../../support/client.ts";
import {
  type JobView,
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

const post = (body: object, headers = {}) =>
  gateway.call("POST", "/v2/jobs", { key: project.production, body, headers });
const get = (query: string, key = project.production) => gateway.call("GET", `/v2/jobs?${query}`, { key });
const WIDEST = Array.from({ length: 10 }, (_, n) => `${n}_.:/@+-Zz`.padEnd(64, "x"));

describe("tags of a job", () => {
  test.each([[["a"]], [["b", "a"]], [["NULL", "null", "-"]], [WIDEST]])(
    "stand in every view of it as they were given: %j",
    async (tags) => {
      const { jobs } = clientOf(gateway, project.production);
      const created = await jobs.create({ target_url: TARGET_URL, tags });
      expect(created.tags).toEqual(tags);
      expect((await jobs.get(created.id)).tags).toEqual(tags);
      const { data } = await jobs.list({ tag: tags[0] ?? "" });
      expect(data.find(({ id }) => id === created.id)?.tags).toEqual(tags);
      expect((await jobs.cancel(created.id)).tags).toEqual(tags);
      // The job was canceled before; the client reads that from the job.
      expect((await jobs.cancel(created.id)).tags).toEqual(tags);
    },
  );

  test("that has none are in no answer", async () => {
    const { jobs } = clientOf(gateway, project.production);
    const plain = await jobs.create({ target_url: TARGET_URL });
    const views = [
      plain,
      await jobs.get(plain.id),
      (await jobs.list({})).data[0],
      await jobs.cancel(plain.id),
    ];
    for (const view of views) expect(Object.keys(view ?? { tags: [] })).not.toContain("tags");
  });

  test("of a batch belong to each entry, and a bad entry is named", async () => {
    const { jobs } = clientOf(gateway, project.production);
    const wanted = [undefined, ["a", "b"], undefined, ["c"]];
    const { data } = await jobs.createBatch(
      wanted.map((tags) => ({ target_url: TARGET_URL, ...(tags === undefined ? {} : { tags }) })),
    );
    expect(data.map(({ tags }) => tags)).toEqual(wanted);
    const refused = await gateway.call("POST", "/v2/jobs/batch", {
      key: project.production,
      body: {
        jobs: [
          { target_url: TARGET_URL, tags: ["fine"] },
          { target_url: TARGET_URL, tags: ["a", "b c"] },
        ],
      },
    });
    expect(readRefusal(refused, "invalid_request").details).toMatchObject([{ index: 1, param: "tags[1]" }]);
    expect((await jobs.list({ tag: "fine" })).data).toEqual([]);
  });

  test("are those of the first answer when the request is sent again under its key, and a part of what is compared", async () => {
    const headers = { "Idempotency-Key": "tagged" };
    const body = { target_url: TARGET_URL, tags: ["once", "twice"] };
    const [first, second] = [await post(body, headers), await post(body, headers)];
    expect([first.status, second.status, second.text]).toEqual([201, 201, first.text]);
    expect(JSON.parse(first.text).tags).toEqual(body.tags);
    readRefusal(
      await post({ ...body, tags: ["twice", "once"] }, headers),
      "idempotency_conflict",
      "Idempotency-Key",
    );
    expect((await clientOf(gateway, project.production).jobs.list({ tag: "once" })).data.length).toBe(1);
  });

  test.each([
    [null, "tags"],
    ["a", "tags"],
    [[], "tags"],
    [[...WIDEST, "eleventh"], "tags"],
    [[7], "tags[0]"],
    [[""], "tags[0]"],
    [["a", "x".repeat(65)], "tags[1]"],
    [["a b"], "tags[0]"],
    [["ä"], "tags[0]"],
    [["a\n"], "tags[0]"],
    [["a", "b", "a"], "tags[2]"],
  ])("are refused as %j, which leaves no trace", async (tags, param) => {
    const before = await gateway.countRows();
    readRefusal(await post({ target_url: TARGET_URL, tags }), "invalid_request", param);
    const { rate_windows: _, ...after } = await gateway.countRows();
    expect({ ...before, ...after }).toEqual(before);
  });
});

describe("GET /v2/jobs", () => {
  test("filters by tag, schedule and time, each alone, two at a time, and with status and region", async () => {
    const own = await gateway.addProject();
    const { jobs, schedules } = clientOf(gateway, own.production);
    const schedule = await schedules.create(newSchedule({ tags: ["nightly", "a"] }));
    const made: JobView[] = [];
    const make = async (region: Region, tags?: string[]) => {
      const job = await gateway.createJob(own, { region, ...(tags === undefined ? {} : { tags }) });
      made.push(job);
      return job;
    };
    const plain = await make("us-east");
    const a = await make("us-east", ["a"]);
    const west = await make("us-west", ["a", "b"]);
    const fired = await schedules.run(schedule.id);
    expect(fired.tags).toEqual(["nightly", "a"]);
    const failed = await make("us-west", ["b"]);
    await gateway.attempt(own, failed, 1, { status: "failed", leaves: "failed" });
    const running = await make("us-west", ["a"]);
    await gateway.claim(own, running, 1);
    const found = async (query: JobListQuery) => (await jobs.list(query)).data.map(({ id }) => id);

    expect(await found({ tag: "a" })).toEqual([running.id, fired.id, west.id, a.id]);
    expect(await found({ tag: "b" })).toEqual([failed.id, west.id]);
    expect(await found({ tag: "A" })).toEqual([]);
    expect(await found({ schedule_id: schedule.id })).toEqual([fired.id]);
    expect(await found({ schedule_id: schedule.id, tag: "a" })).toEqual([fired.id]);
    expect(await found({ schedule_id: schedule.id, tag: "b" })).toEqual([]);
    expect(await found({ schedule_id: schedule.id, status: "queued" })).toEqual([fired.id]);
    expect(await found({ schedule_id: schedule.id, region: "us-west" })).toEqual([]);
    expect(await found({ tag: "a", status: "queued" })).toEqual([fired.id, west.id, a.id]);
    expect(await found({ tag: "a", status: "running" })).toEqual([running.id]);
    expect(await found({ tag: "b", status: "failed" })).toEqual([failed.id]);
    expect(await found({ tag: "a", region: "us-west" })).toEqual([running.id, west.id]);
    expect(await found({ tag: "a", region: "us-west", status: "queued" })).toEqual([west.id]);

    const [from, until] = [a.created_at, failed.created_at];
    const between = (job: { created_at: string }) => job.created_at > from && job.created_at < until;
    const all = [running, failed, fired, west, a, plain];
    expect(await found({ created_after: from, created_before: until })).toEqual(
      all.filter(between).map(({ id }) => id),
    );
    expect(await found({ created_after: new Date(0) })).toEqual(all.map(({ id }) => id));
    expect(await found({ created_before: plain.created_at })).toEqual([]);
    // A range of one instant and a range the wrong way round hold no job.
    expect(await found({ created_after: west.created_at, created_before: west.created_at })).toEqual([]);
    expect(await found({ created_after: until, created_before: from })).toEqual([]);
    // Digits finer than a millisecond are cut, so that the job of this very millisecond is left out.
    const finer = west.created_at.replace("Z", "999Z");
    expect(await found({ created_after: finer, tag: "b" })).toEqual(
      [failed].filter((job) => job.created_at > west.created_at).map(({ id }) => id),
    );
    expect(await found({ created_after: west.created_at, tag: "b", status: "queued" })).toEqual([]);
  });

  test("finds nothing of another project, of the other environment, or of a schedule that is unknown", async () => {
    const [own, stranger] = [await gateway.addProject(), await gateway.addProject()];
    const { schedules } = clientOf(gateway, own.production);
    const schedule = await schedules.create(newSchedule({ tags: ["mine"] }));
    const { id } = await schedules.run(schedule.id);
    for (const query of [
      { tag: "mine" },
      { schedule_id: schedule.id },
      { tag: "mine", schedule_id: schedule.id },
    ]) {
      for (const filters of [query, { ...query, status: "queued" as const }]) {
        expect((await clientOf(gateway, own.production).jobs.list(filters)).data).toMatchObject([{ id }]);
        for (const key of [stranger.production, own.development])
          expect((await clientOf(gateway, key).jobs.list(filters)).data).toEqual([]);
      }
    }
    for (const unknown of ["sch_01arz3ndektsv4rrffq69g5fav", "nonsense", ""])
      expect(JSON.parse((await get(`schedule_id=${unknown}`)).text)).toEqual({ data: [], next_cursor: null });
  });

  test("goes on with a cursor under the same filters alone, in whatever way the instant is written", async () => {
    const own = await gateway.addProject();
    for (let n = 0; n < 3; n++) await gateway.createJob(own, { tags: ["page", "other"] });
    const first = await get("limit=1&tag=page&created_after=2026-01-01T00:00:00Z", own.production);
    const { next_cursor: cursor, data } = JSON.parse(first.text);
    const next = (query: string) => get(`${query}&cursor=${cursor}`, own.production);
    const second = await next("limit=2&tag=page&created_after=2026-01-01T01:00:00.000%2B01:00");
    expect(JSON.parse(second.text)).toMatchObject({ data: [{}, {}], next_cursor: null });
    expect(JSON.parse(second.text).data).not.toContainEqual(data[0]);
    for (const query of [
      "tag=page",
      "tag=other&created_after=2026-01-01T00:00:00Z",
      "tag=page&created_after=2026-01-01T00:00:00.001Z",
      "tag=page&created_before=2026-01-01T00:00:00Z",
      "tag=page&created_after=2026-01-01T00:00:00Z&schedule_id=x",
    ])
      readRefusal(await next(query), "invalid_request", "cursor");
  });

  test.each([
    ["tag=", "tag"],
    ["tag=a+b", "tag"],
    ["tag=+", "tag"],
    ["tag=a%20b", "tag"],
    ["tag=a%00", "tag"],
    [`tag=${"x".repeat(65)}`, "tag"],
    ["tag=a&tag=b", "tag"],
    ["tags=a", "tags"],
    ["schedule_id=a&schedule_id=b", "schedule_id"],
    ["created_after=", "created_after"],
    ["created_after=yesterday", "created_after"],
    ["created_after=2026-11-21T10:00:00", "created_after"],
    ["created_after=2026-11-21T10:00:00+01:00", "created_after"],
    ["created_before=2026-02-30T10:00:00Z", "created_before"],
    ["created_before=1700000000", "created_before"],
    ["started_after=2026-11-21T10:00:00Z", "started_after"],
    ["flow_key=a+b", "flow_key"],
  ])("refuses ?%s", async (query, param) => {
    readRefusal(await get(query), "invalid_request", param);
  });

  test("takes a + that is written as %2B, and instants of any year", async () => {
    const own = await gateway.addProject();
    const job = await gateway.createJob(own, { tags: ["c++"] });
    expect(JSON.parse((await get("tag=c%2B%2B", own.production)).text).data).toMatchObject([{ id: job.id }]);
    const wide = "created_after=0000-01-01T00:00:00Z&created_before=9999-12-31T23:59:59-23:59";
    expect(JSON.parse((await get(wide, own.production)).text).data).toMatchObject([{ id: job.id }]);
  });
});
