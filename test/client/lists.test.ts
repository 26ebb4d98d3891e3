import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { ApiError, type Client, createClient, type Page } from "../../shared/client/index.ts";
import { startTestGateway, TARGET_URL, type TestGateway, type TestProject } from "../support/gateway.ts";
import { type FaultyRoad, startFaultyRoad } from "./faulty-road.ts";

let gateway: TestGateway;
let road: FaultyRoad;
let project: TestProject;
let client: Client;

beforeAll(async () => {
  gateway = await startTestGateway();
});
afterAll(() => gateway.stop());
beforeEach(async () => {
  road = await startFaultyRoad(gateway);
  project = await gateway.addProject();
  client = createClient({ baseUrl: road.url, apiKey: project.production, sleep: async () => undefined });
  return () => road.stop();
});

/** Their ids, newest first, as a list shows them. */
async function addJobs(count: number): Promise<string[]> {
  const jobs = Array.from({ length: count }, (_, n) => ({ target_url: TARGET_URL, payload: { n } }));
  const { data } = await client.jobs.createBatch(jobs);
  road.requests.length = 0;
  return data.map(({ id }) => id).reverse();
}

async function idsOf(items: AsyncIterable<{ id: string }>): Promise<string[]> {
  const ids: string[] = [];
  for await (const { id } of items) ids.push(id);
  return ids;
}

describe("a list", () => {
  test("awaited is its first page", async () => {
    const ids = await addJobs(5);
    const page = await client.jobs.list({ limit: 2 });
    expect(page.data.map(({ id }) => id)).toEqual(ids.slice(0, 2));
    const next = await client.jobs.list({ limit: 2, cursor: page.next_cursor ?? "" });
    expect(next.data.map(({ id }) => id)).toEqual(ids.slice(2, 4));
    const { result, answer } = await client.jobs.list().withAnswer();
    expect(result).toMatchObject({ data: { length: 5 }, next_cursor: null });
    expect(answer.status).toBe(200);
  });

  test("iterated over is each earlier item once, over all pages, while items are added", async () => {
    const ids = await addJobs(10);
    const seen: string[] = [];
    for await (const job of client.jobs.list({ limit: 3 })) {
      seen.push(job.id);
      await client.jobs.create({ target_url: TARGET_URL });
    }
    expect(seen).toEqual(ids);
  });

  test("keeps its filters over all pages", async () => {
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

  test("asks for a page when its first item is wanted, and for none that nobody wants", async () => {
    const ids = await addJobs(9);
    const seen: string[] = [];
    for await (const { id } of client.jobs.list({ limit: 3 })) {
      seen.push(id);
      expect(road.requests).toHaveLength(Math.ceil(seen.length / 3));
      if (seen.length === 5) break;
    }
    expect(seen).toEqual(ids.slice(0, 5));
    expect(road.requests).toHaveLength(2);
  });

  test("gives whole pages too", async () => {
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

  test("goes on where a page was lost on the way", async () => {
    const ids = await addJobs(6);
    road.faults.push("none", "answer cut in half", "answer lost");
    expect(await idsOf(client.jobs.list({ limit: 2 }))).toEqual(ids);
  });

  test("tells its walker of a refusal, and ends nothing when it has none", async () => {
    const unwatched: unknown[] = [];
    const watch = (reason: unknown) => unwatched.push(reason);
    process.on("unhandledRejection", watch);
    const list = client.jobs.list({ cursor: "wrong" });
    while (road.requests.length === 0) await new Promise(setImmediate);
    const later = await client.jobs.list();
    expect(later.data).toEqual([]);
    process.off("unhandledRejection", watch);
    expect(unwatched).toEqual([]);
    const error = await idsOf(list).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ApiError);
    expect(error).toMatchObject({ code: "invalid_request", param: "cursor" });
  });
});
