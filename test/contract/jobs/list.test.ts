import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { JobListQuery, ListedJob, Page } from "../../../shared/client/index.ts";
import type { Region } from "../../../shared/domain/scope.ts";
import { clientOf } from "../../support/client.ts";
import {
  readRefusal,
  startTestGateway,
  TARGET_URL,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
});
afterAll(() => gateway.stop());

const get = (query: string, key = project.production) => gateway.call("GET", `/v2/jobs${query}`, { key });
const list = (key: string, query?: JobListQuery) => clientOf(gateway, key).jobs.list(query);
const idsOf = ({ data }: Page<ListedJob>) => data.map(({ id }) => id);

describe("GET /v2/jobs", () => {
  test("answers an empty list in an environment without jobs", async () => {
    expect(await list(project.development)).toEqual({ data: [], next_cursor: null });
  });

  test("answers exactly the documented fields, newest first", async () => {
    const own = await gateway.addProject();
    const first = await gateway.createJob(own);
    const second = await gateway.createJob(own, { region: "us-west" });
    const { data, next_cursor } = await list(own.production);
    expect(data.map(({ id }) => id)).toEqual([second.id, first.id]);
    expect(data[1]).toEqual({
      id: first.id,
      status: "queued",
      target_url: TARGET_URL,
      region: "us-east",
      attempts: 0,
      created_at: first.created_at,
    });
    expect(next_cursor).toBeNull();
  });

  test("filters by status, by region, and by both", async () => {
    const own = await gateway.addProject();
    const make = (region: Region) => gateway.createJob(own, { region });
    const queued = await make("us-east");
    const running = await make("us-west");
    await gateway.claim(own, running, 1);
    const succeeded = await make("us-west");
    await gateway.attempt(own, succeeded, 1, { status: "succeeded", leaves: "succeeded" });
    const failed = await make("us-east");
    await gateway.attempt(own, failed, 1, { status: "failed", leaves: "failed" });
    const canceled = await make("eu-central");
    await clientOf(gateway, own.production).jobs.cancel(canceled.id);
    const found = async (query: JobListQuery) => idsOf(await list(own.production, query));
    expect(await found({ status: "queued" })).toEqual([queued.id]);
    expect(await found({ status: "running" })).toEqual([running.id]);
    expect(await found({ status: "succeeded" })).toEqual([succeeded.id]);
    expect(await found({ status: "failed" })).toEqual([failed.id]);
    expect(await found({ status: "canceled" })).toEqual([canceled.id]);
    expect(await found({ region: "us-west" })).toEqual([succeeded.id, running.id]);
    expect(await found({ region: "us-west", status: "running" })).toEqual([running.id]);
    expect(await found({ region: "ap-southeast" })).toEqual([]);
  });

  test("accepts any region as a filter from a hobby project", async () => {
    const hobby = await gateway.addProject("hobby");
    expect((await list(hobby.production, { region: "eu-central" })).data).toEqual([]);
  });

  test("shows each earlier job exactly once over all pages while jobs are added", async () => {
    const own = await gateway.addProject();
    const earlier: string[] = [];
    for (let n = 0; n < 40; n++) earlier.push((await gateway.createJob(own)).id);
    const seen: string[] = [];
    const add = () => Promise.all([gateway.createJob(own), gateway.createJob(own, { region: "us-west" })]);
    let adding = add();
    for await (const page of list(own.production, { limit: 3 }).pages()) {
      expect(page.data.length).toBeLessThanOrEqual(3);
      seen.push(...idsOf(page));
      await adding;
      // Jobs are added while the next page is read.
      adding = add();
    }
    await adding;
    expect(new Set(seen).size).toBe(seen.length);
    expect(seen.filter((id) => earlier.includes(id))).toEqual(earlier.toReversed());
  });

  test("answers no cursor when the last page is full", async () => {
    const own = await gateway.addProject();
    for (let n = 0; n < 4; n++) await gateway.createJob(own);
    const first = await list(own.production, { limit: 2 });
    const second = await list(own.production, { limit: 2, cursor: first.next_cursor ?? "" });
    expect(second.data.length).toBe(2);
    expect(second.next_cursor).toBeNull();
  });

  test("has 50 jobs on a page by default, and the page size may change between pages", async () => {
    const own = await gateway.addProject();
    await Promise.all(Array.from({ length: 60 }, () => gateway.createJob(own)));
    const first = await list(own.production);
    expect(first.data.length).toBe(50);
    const second = await list(own.production, { limit: 200, cursor: first.next_cursor ?? "" });
    expect(second.data.length).toBe(10);
  });

  test.each([
    ["limit=0", "limit"],
    ["limit=201", "limit"],
    ["limit=", "limit"],
    ["limit=1.5", "limit"],
    ["limit=0x10", "limit"],
    ["limit=1e2", "limit"],
    ["limit=-1", "limit"],
    ["limit=5&limit=5", "limit"],
    ["status=done", "status"],
    ["status=", "status"],
    ["status=queued&status=queued", "status"],
    ["region=mars", "region"],
    ["page=1", "page"],
    ["Limit=5", "Limit"],
    ["cursor=", "cursor"],
    ["cursor=abc", "cursor"],
    [`cursor=${"a".repeat(5000)}`, "cursor"],
  ])("refuses ?%s", async (query, param) => {
    readRefusal(await get(`?${query}`), "invalid_request", param);
  });
});

describe("a cursor of GET /v2/jobs", () => {
  let cursor: string;
  beforeAll(async () => {
    for (let n = 0; n < 3; n++) await gateway.createJob(project);
    cursor = (await list(project.production, { limit: 1, status: "queued" })).next_cursor ?? "";
  });

  test("works in its own list", async () => {
    const next = await list(project.production, { limit: 1, status: "queued", cursor });
    expect(next.data.length).toBe(1);
  });

  test("is refused when any of its characters is changed", async () => {
    for (let at = 0; at < cursor.length; at++) {
      const altered = cursor.slice(0, at) + (cursor[at] === "A" ? "B" : "A") + cursor.slice(at + 1);
      readRefusal(await get(`?status=queued&cursor=${altered}`), "invalid_request", "cursor");
    }
  });

  test("is refused with other filters, environments, projects and routes", async () => {
    const stranger = await gateway.addProject();
    const refused = [
      await get(`?cursor=${cursor}`),
      await get(`?status=failed&cursor=${cursor}`),
      await get(`?status=queued&region=us-east&cursor=${cursor}`),
      await get(`?status=queued&cursor=${cursor}`, project.development),
      await get(`?status=queued&cursor=${cursor}`, stranger.production),
      await gateway.call("GET", `/v2/runs?cursor=${cursor}`, { key: project.production }),
    ];
    for (const answer of refused) readRefusal(answer, "invalid_request", "cursor");
  });
});
