import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { Static } from "@sinclair/typebox";
import { listOf } from "../../../shared/contract/list.ts";
import { Run } from "../../../shared/contract/run.ts";
import {
  type JobView,
  readAs,
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

interface Page {
  data: Static<typeof Run>[];
  next_cursor: string | null;
}

const RunList = listOf(Run);
const get = (query: string, key = project.production) => gateway.call("GET", `/v2/runs${query}`, { key });
const list = async (query: string, key?: string) => readAs(RunList, await get(query, key)) as unknown as Page;
const found = async (query: string, key?: string) => (await list(query, key)).data.map(({ id }) => id);

describe("GET /v2/runs", () => {
  test("shows ended runs and those in progress in one order, newest first", async () => {
    expect(await found("")).toEqual([runningId, ...runIds.toReversed()]);
    expect((await list("")).next_cursor).toBeNull();
  });

  test("filters by job and status, and both together", async () => {
    expect(await found(`?job_id=${job.id}`)).toEqual(runIds.toReversed());
    expect(await found("?status=running")).toEqual([runningId]);
    expect(await found("?status=timed_out")).toEqual([runIds[1] ?? ""]);
    expect(await found(`?job_id=${job.id}&status=failed`)).toEqual([runIds[2] ?? "", runIds[0] ?? ""]);
    expect(await found("?status=succeeded")).toEqual([]);
  });

  test("is empty for a job that is unknown, malformed or another's", async () => {
    const stranger = await gateway.addProject();
    expect(await found("?job_id=job_00000000000000000000000000")).toEqual([]);
    expect(await found("?job_id=nonsense")).toEqual([]);
    expect(await found("?job_id=")).toEqual([]);
    expect(await found(`?job_id=${job.id}`, project.development)).toEqual([]);
    expect(await found(`?job_id=${job.id}`, stranger.production)).toEqual([]);
    expect(await found("", project.development)).toEqual([]);
  });

  test("walks page by page over both kinds", async () => {
    const seen: string[] = [];
    let cursor: string | null = null;
    for (let page = 0; page < 10; page++) {
      const answer: Page = await list(cursor === null ? "?limit=1" : `?limit=1&cursor=${cursor}`);
      seen.push(...answer.data.map(({ id }) => id));
      cursor = answer.next_cursor;
      if (cursor === null) break;
    }
    expect(seen).toEqual([runningId, ...runIds.toReversed()]);
  });

  test("leaves out what is outside the plan's retention window, and ends there", async () => {
    const hobby = await gateway.addProject("hobby");
    const kept = await gateway.createJob(hobby);
    const ids: string[] = [];
    for (let attempt = 1; attempt <= 4; attempt++) {
      ids.push((await gateway.attempt(hobby, kept, attempt, { status: "failed", leaves: "queued" })).runId);
    }
    await gateway.query(
      "UPDATE runs SET started_at = now() - interval '3 days 1 minute' WHERE project_no = $1 AND attempt < 3",
      [hobby.no],
    );
    expect(await found("", hobby.production)).toEqual([ids[3] ?? "", ids[2] ?? ""]);
    expect((await list("?limit=2", hobby.production)).next_cursor).toBeNull();
    expect(await found(`?job_id=${kept.id}`, hobby.production)).toEqual([ids[3] ?? "", ids[2] ?? ""]);
  });

  test("a cursor is bound to its filters", async () => {
    const { next_cursor } = await list("?limit=1");
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
