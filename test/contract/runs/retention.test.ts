import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { listOf } from "../../../shared/contract/list.ts";
import { Run } from "../../../shared/contract/run.ts";
import { idTimeMs, idToUuid } from "../../../shared/domain/ids.ts";
import { PLAN_TERMS, PLANS, type Plan } from "../../../shared/domain/plan.ts";
import { changeProject } from "../../../shared/store/resources/projects.ts";
import { dropExpiredPartitions, purgeDefaults } from "../../../shared/store/retention/retention.ts";
import { until } from "../../runtime-contract/until.ts";
import { passNearEnd } from "../../support/boundary.ts";
import { testCause } from "../../support/cause.ts";
import {
  readAs,
  readRefusal,
  startTestGateway,
  type TestGateway,
  type TestProject,
} from "../../support/gateway.ts";

const DAY_MS = 86_400_000;
const RunList = listOf(Run);

/** The gateway's clock. A test moves it forward, and its runs are older at once. The times in new ids never go back. */
let clock: () => number;
let gateway: TestGateway;
beforeEach(async () => {
  clock = Date.now;
  gateway = await startTestGateway({ now: () => clock() });
});
afterEach(() => gateway.stop());

const get = (runId: string, key: string) => gateway.call("GET", `/v2/runs/${runId}`, { key });
const retry = (runId: string, key: string, headers = {}) =>
  gateway.call("POST", `/v2/runs/${runId}/retry`, { key, headers });
const list = async (key: string, query = "") =>
  readAs(RunList, await gateway.call("GET", `/v2/runs${query}`, { key }));
const listed = async (key: string, query = "") => (await list(key, query)).data.map(({ id }) => id);

/** Creates a job whose attempts have all failed. Answers its runs, the oldest first, each of another millisecond. */
async function failedJob(project: TestProject, attempts = 1) {
  const job = await gateway.createJob(project);
  const runIds: string[] = [];
  for (let attempt = 1; attempt <= attempts; attempt++) {
    const leaves = attempt === attempts ? "failed" : "queued";
    const { runId } = await gateway.attempt(project, job, attempt, { status: "failed", leaves });
    runIds.push(runId);
    await until(() => Date.now() > idTimeMs(runId));
  }
  return { job, runIds, runId: runIds[0] ?? "" };
}

/** The last instant at which a run is shown. */
const lastShownAt = (runId: string, plan: Plan) => idTimeMs(runId) + PLAN_TERMS[plan].retentionDays * DAY_MS;

/** Sets the plan. Answers a new key, which no gateway has cached, so that its lookup finds the present plan. */
async function setPlan(project: TestProject, plan: Plan): Promise<string> {
  await changeProject(gateway.db, project.id, { plan }, testCause());
  return (await gateway.addKey(project, {})).key;
}

describe("the retention of runs", () => {
  test.each([...PLANS])("ends for a %s project at the same millisecond everywhere", async (plan) => {
    const project = await gateway.addProject(plan);
    const { production: key } = project;
    const { job, runId } = await failedJob(project);
    const endsAt = lastShownAt(runId, plan);

    clock = () => endsAt;
    expect(readAs(Run, await get(runId, key)).id).toBe(runId);
    expect(await listed(key)).toEqual([runId]);
    expect(await listed(key, `?job_id=${job.id}`)).toEqual([runId]);
    expect(await listed(key, "?status=failed")).toEqual([runId]);

    clock = () => endsAt + 1;
    readRefusal(await get(runId, key), "resource_not_found");
    readRefusal(await retry(runId, key), "resource_not_found");
    expect(await listed(key)).toEqual([]);
    expect(await listed(key, `?job_id=${job.id}`)).toEqual([]);
    expect(await listed(key, "?status=failed")).toEqual([]);
    const shown = await gateway.call("GET", `/v2/jobs/${job.id}`, { key });
    expect(JSON.parse(shown.text)).toMatchObject({ id: job.id, status: "failed", attempts: 1 });

    clock = () => endsAt;
    expect(readAs(Run, await retry(runId, key), 201)).toMatchObject({ job_id: job.id, attempt: 2 });
  });

  test("ends a list where the window begins, without a further page", async () => {
    const project = await gateway.addProject("hobby");
    const { runIds } = await failedJob(project, 4);
    clock = () => lastShownAt(runIds[2] ?? "", "hobby");
    const shown = runIds.slice(2).toReversed();
    expect(await list(project.production, "?limit=2")).toMatchObject({ next_cursor: null });
    expect(await listed(project.production, "?limit=2")).toEqual(shown);
    const { next_cursor } = await list(project.production, "?limit=1");
    expect(await listed(project.production, `?limit=1&cursor=${next_cursor}`)).toEqual(shown.slice(1));
    // A run may leave the window between two pages.
    clock = () => lastShownAt(runIds[3] ?? "", "hobby") + 1;
    expect(await listed(project.production, `?limit=1&cursor=${next_cursor}`)).toEqual([]);
  });

  test("hides no run in progress, however long ago it began", async () => {
    const project = await gateway.addProject("hobby");
    const job = await gateway.createJob(project);
    const { runId } = await gateway.claim(project, job, 1);
    clock = () => Date.now() + 400 * DAY_MS;
    expect(readAs(Run, await get(runId, project.production)).status).toBe("running");
    expect(await listed(project.production)).toEqual([runId]);
    expect(await listed(project.production, `?job_id=${job.id}`)).toEqual([runId]);
    readRefusal(await retry(runId, project.production), "invalid_request");
  });

  test("counts from when a retry was asked for: one that has waited for longer is shown until it ends, and then purged", async () => {
    const project = await gateway.addProject("hobby");
    const { production: key } = project;
    clock = () => Date.now() - 5 * DAY_MS;
    const { job, runId } = await failedJob(project);
    const run = readAs(Run, await retry(runId, key), 201);
    clock = Date.now;
    expect(readAs(Run, await get(run.id, key)).status).toBe("running");
    expect(await listed(key)).toEqual([runId, run.id]);
    await gateway.attempt(project, job, 2, { status: "failed", leaves: "failed" });
    readRefusal(await get(run.id, key), "resource_not_found");
    readRefusal(await retry(run.id, key), "resource_not_found");
    expect(await listed(key)).toEqual([runId]);
    expect(await listed(key, `?job_id=${job.id}`)).toEqual([runId]);
    expect(await listed(key, `?started_after=${new Date(Date.now() - DAY_MS).toISOString()}`)).toEqual([
      runId,
    ]);
    expect(await purgeDefaults(gateway.db, clock(), 10)).toBe(1);
    expect(await gateway.query("SELECT id FROM runs WHERE project_no = $1", [project.no])).toEqual([
      { id: idToUuid(runId) },
    ]);
  });

  test("follows the present plan: a change shows more or fewer runs at once", async () => {
    const project = await gateway.addProject("pro");
    const { runId } = await failedJob(project);
    clock = () => lastShownAt(runId, "hobby") + 1;
    expect(readAs(Run, await get(runId, project.production)).id).toBe(runId);
    const asHobby = await setPlan(project, "hobby");
    readRefusal(await get(runId, asHobby), "resource_not_found");
    readRefusal(await retry(runId, asHobby), "resource_not_found");
    expect(await listed(asHobby)).toEqual([]);
    const asScale = await setPlan(project, "scale");
    expect(await listed(asScale)).toEqual([runId]);
    clock = () => lastShownAt(runId, "scale") + 1;
    expect(await listed(asScale)).toEqual([]);
    readRefusal(await get(runId, asScale), "resource_not_found");
  });

  test("keeps a retry's answer to its Idempotency-Key after the run is hidden or gone", async () => {
    await passNearEnd(DAY_MS);
    const project = await gateway.addProject("hobby");
    const { production: key } = project;
    const { job, runId } = await failedJob(project);
    const first = await retry(runId, key, { "Idempotency-Key": "a" });
    const run = readAs(Run, first, 201);
    await gateway.attempt(project, job, 2, { status: "failed", leaves: "failed" });

    const usage = await gateway.call("GET", "/v2/project/usage", { key });
    clock = () => Date.now() + 10 * DAY_MS;
    for (const storage of ["there", "gone"]) {
      if (storage === "gone") await dropExpiredPartitions(gateway.db, clock());
      const again = await retry(runId, key, { "Idempotency-Key": "a" });
      expect([again.status, again.text]).toEqual([201, first.text]);
      expect(again.headers.get("idempotent-replayed")).toBe("true");
      readRefusal(await retry(runId, key, { "Idempotency-Key": "b" }), "resource_not_found");
      readRefusal(await retry(run.id, key), "resource_not_found");
    }
    expect(await gateway.query("SELECT FROM runs WHERE project_no = $1", [project.no])).toEqual([]);
    const shown = await gateway.call("GET", `/v2/jobs/${job.id}`, { key });
    expect(JSON.parse(shown.text)).toMatchObject({ status: "failed", attempts: 2 });
    clock = Date.now;
    expect((await gateway.call("GET", "/v2/project/usage", { key })).text).toBe(usage.text);
  });
});
