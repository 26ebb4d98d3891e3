import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { RunListQuery } from "../../../shared/client/index.ts";
import { clientOf } from "../../support/client.ts";
import {
  type JobView,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

let gateway: TestGateway;
let project: TestProject;
let job: JobView;
const runIds: string[] = [];
let runningId: string;

beforeAll(async () => {
  gateway = await startTestGateway();
  project = await gateway.addProject();
  job = await gateway.createJob(project);
  for (const status of ["failed", "timed_out", "failed"] as const) {
    const { runId } = await gateway.attempt(project, job, runIds.length + 1, { status, leaves: "queued" });
    runIds.push(runId);
  }
  const other = await gateway.createJob(project);
  runningId = (await gateway.claim(project, other, 1)).runId;
});
afterAll(() => gateway.stop());

const get = (query: string) => gateway.call("GET", `/v2/runs${query}`, { key: project.production });
const list = (query: RunListQuery, key = project.production) => clientOf(gateway, key).runs.list(query);
const found = async (query: RunListQuery, key?: string) => (await list(query, key)).data.map(({ id }) => id);

describe("GET /v2/runs", () => {
  test("shows ended runs and runs in progress in one order, newest first", async () => {
    expect(await found({})).toEqual([runningId, ...runIds.toReversed()]);
    expect((await list({})).next_cursor).toBeNull();
  });

  test("filters by job, by status, and by both", async () => {
    expect(await found({ job_id: job.id })).toEqual(runIds.toReversed());
    expect(await found({ status: "running" })).toEqual([runningId]);
    expect(await found({ status: "timed_out" })).toEqual([runIds[1] ?? ""]);
    expect(await found({ job_id: job.id, status: "failed" })).toEqual([runIds[2] ?? "", runIds[0] ?? ""]);
    expect(await found({ status: "succeeded" })).toEqual([]);
  });

  test("is empty for a job that is unknown, malformed or another's", async () => {
    const stranger = await gateway.addProject();
    expect(await found({ job_id: "job_00000000000000000000000000" })).toEqual([]);
    expect(await found({ job_id: "nonsense" })).toEqual([]);
    expect(await found({ job_id: "" })).toEqual([]);
    expect(await found({ job_id: job.id }, project.development)).toEqual([]);
    expect(await found({ job_id: job.id }, stranger.production)).toEqual([]);
    expect(await found({}, project.development)).toEqual([]);
  });

  test("lists runs of both kinds page by page", async () => {
    const seen: string[] = [];
    for await (const { data } of list({ limit: 1 }).pages()) seen.push(...data.map(({ id }) => id));
    expect(seen).toEqual([runningId, ...runIds.toReversed()]);
  });

  test("shows each earlier run exactly once over all pages while attempts begin and end", async () => {
    const own = await gateway.addProject();
    const earlier: string[] = [];
    const inProgress: JobView[] = [];
    for (let n = 0; n < 20; n++) {
      const job = await gateway.createJob(own);
      if (n % 2 === 0) {
        earlier.push((await gateway.attempt(own, job, 1, { status: "failed", leaves: "queued" })).runId);
      } else {
        earlier.push((await gateway.claim(own, job, 1)).runId);
        inProgress.push(job);
      }
    }
    const change = async () => {
      const ending = [inProgress.shift(), inProgress.pop()].filter((job) => job !== undefined);
      for (const job of ending)
        await gateway.attempt(own, job, 1, { status: "succeeded", leaves: "succeeded" });
      await gateway.claim(own, await gateway.createJob(own), 1);
    };
    const seen: string[] = [];
    let changing = change();
    for await (const page of list({ limit: 3 }, own.production).pages()) {
      seen.push(...page.data.map(({ id }) => id));
      await changing;
      // Runs change while the next page is read.
      changing = change();
    }
    await changing;
    expect(new Set(seen).size).toBe(seen.length);
    expect(seen.filter((id) => earlier.includes(id))).toEqual(earlier.toReversed());
  });

  test("binds a cursor to its filters", async () => {
    const { next_cursor } = await list({ limit: 1 });
    readRefusal(await get(`?cursor=${next_cursor}&status=failed`), "invalid_request", "cursor");
    readRefusal(await get(`?cursor=${next_cursor}&job_id=${job.id}`), "invalid_request", "cursor");
    readRefusal(await get(`?cursor=${next_cursor}&job_id=nonsense`), "invalid_request", "cursor");
  });

  test.each([
    ["limit=201", "limit"],
    ["status=queued", "status"],
    ["region=us-east", "region"],
    [`job_id=${"x"}&job_id=${"x"}`, "job_id"],
  ])("refuses ?%s", async (query, param) => {
    readRefusal(await get(`?${query}`), "invalid_request", param);
  });
});
