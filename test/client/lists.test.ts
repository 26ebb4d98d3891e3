import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { ApiError, type Client, createClient, type Page } from "../../shared/client/index.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";
import { type FaultyProxy, startFaultyProxy } from "./faulty-proxy.ts";

let gateway: TestGateway;
let proxy: FaultyProxy;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  proxy = await startFaultyProxy(gateway);
  project = await gateway.addProject();
  client = createClient({ baseUrl: proxy.url, apiKey: project.production, sleep: async () => undefined });
  return () => proxy.stop();
});

/** Creates jobs. Answers their ids, newest first, as a list has them. */
async function addJobs(count: number): Promise<string[]> {
  const jobs = Array.from({ length: count }, (_, n) => ({ target_url: TARGET_URL, payload: { n } }));
  const { data } = await client.jobs.createBatch(jobs);
  proxy.requests.length = 0;
  return data.map(({ id }) => id).reverse();
}

async function idsOf(items: AsyncIterable<{ id: string }>): Promise<string[]> {
  const ids: string[] = [];
  for await (const { id } of items) ids.push(id);
  return ids;
}

describe("a list of the client", () => {
  test("when awaited, is its first page", async () => {
    const ids = await addJobs(5);
    const page = await client.jobs.list({ limit: 2 });
    expect(page.data.map(({ id }) => id)).toEqual(ids.slice(0, 2));
    const next = await client.jobs.list({ limit: 2, cursor: page.next_cursor ?? "" });
    expect(next.data.map(({ id }) => id)).toEqual(ids.slice(2, 4));
    const { result, answer } = await client.jobs.list().withAnswer();
    expect(result).toMatchObject({ data: { length: 5 }, next_cursor: null });
    expect(answer.status).toBe(200);
  });

  test("when iterated, holds each earlier item once over all pages while items are added", async () => {
    const ids = await addJobs(10);
    const seen: string[] = [];
    for await (const job of client.jobs.list({ limit: 3 })) {
      seen.push(job.id);
      await client.jobs.create({ target_url: TARGET_URL });
    }
    expect(seen).toEqual(ids);
  });

  test("keeps its filters on all pages", async () => {
    await addJobs(4);
    const west = [];
    for (let n = 0; n < 4; n++) {
      west.unshift((await client.jobs.create({ target_url: TARGET_URL, region: "us-west" })).id);
    }
    expect(await idsOf(client.jobs.list({ region: "us-west", status: "queued", limit: 1 }))).toEqual(west);
    const job = await client.jobs.get(west[0] ?? "");
    const runs: string[] = [];
    for (let attempt = 1; attempt <= 3; attempt++) {
      const { runId } = await gateway.attempt(project, job, attempt, { status: "failed", leaves: "queued" });
      runs.unshift(runId);
    }
    expect(await idsOf(client.runs.list({ job_id: job.id, limit: 2 }))).toEqual(runs);
    expect(await idsOf(client.runs.list({ job_id: job.id, status: "succeeded" }))).toEqual([]);
  });

  test("asks for a page only when its first item is wanted", async () => {
    const ids = await addJobs(9);
    const seen: string[] = [];
    for await (const { id } of client.jobs.list({ limit: 3 })) {
      seen.push(id);
      expect(proxy.requests).toHaveLength(Math.ceil(seen.length / 3));
      if (seen.length === 5) break;
    }
    expect(seen).toEqual(ids.slice(0, 5));
    expect(proxy.requests).toHaveLength(2);
  });

  test("also answers whole pages", async () => {
    const ids = await addJobs(5);
    const pages: Page<{ id: string }>[] = [];
    for await (const page of client.jobs.list({ limit: 2 }).pages()) pages.push(page);
    expect(pages.map(({ data }) => data.map(({ id }) => id))).toEqual([
      ids.slice(0, 2),
      ids.slice(2, 4),
      ids.slice(4),
    ]);
    expect(pages.map(({ next_cursor }) => next_cursor === null)).toEqual([false, false, true]);
  });

  test("asks again for a page that was lost on the way", async () => {
    const ids = await addJobs(6);
    proxy.faults.push("none", "answer cut in half", "answer lost");
    expect(await idsOf(client.jobs.list({ limit: 2 }))).toEqual(ids);
  });

  test("throws a refusal to the code that iterates over it, and never as an unhandled rejection", async () => {
    const unwatched: unknown[] = [];
    const watch = (reason: unknown) => unwatched.push(reason);
    process.on("unhandledRejection", watch);
    const list = client.jobs.list({ cursor: "wrong" });
    while (proxy.requests.length === 0) await new Promise(setImmediate);
    const later = await client.jobs.list();
    expect(later.data).toEqual([]);
    process.off("unhandledRejection", watch);
    expect(unwatched).toEqual([]);
    const error = await idsOf(list).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ code: "invalid_request", param: "cursor" });
  });
});
