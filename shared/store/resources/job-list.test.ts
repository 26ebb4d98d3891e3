import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { keyCause } from "../../../test/support/cause.ts";
import { createIdSource, SCHEDULE_PREFIX } from "../../domain/ids.ts";
import { JOB_STATUSES, type JobStatus } from "../../domain/job.ts";
import { ENVIRONMENTS, type Environment, type Region } from "../../domain/scope.ts";
import { settleAttempts } from "../queue/settle.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { createJobs } from "./job-creation.ts";
import { type JobListQuery, LOOKED_AT_MAX, listJobs, RUNNING_MAX } from "./job-list.ts";
import { findJob } from "./jobs.ts";
import { cancelJob, retryRun } from "./jobs-by-hand.ts";
import { listRuns } from "./run-list.ts";

setDefaultTimeout(600_000);

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const ids = createIdSource(randomBytes);
const newSchedule = () => ids.next(SCHEDULE_PREFIX, Date.now());

interface Wanted {
  environment?: Environment;
  region?: Region;
  tags?: string[];
  scheduleId?: string;
}

/** A job as its owner sees it. */
interface Known extends Wanted {
  id: string;
  status: JobStatus;
}

/** Brings a new job into a state by the service's own statements. */
async function addJob(
  projectNo: number,
  status: JobStatus | "canceled on the wire" | "retried",
  wanted: Wanted,
) {
  const { environment = "production", region = "us-east" } = wanted;
  const job = store.newJob(projectNo, wanted);
  await createJobs(store.db, [job], new Set());
  const scope = { projectNo, environment, sinceAt: 0 };
  const known = (is: JobStatus): Known => ({ ...wanted, id: job.id, status: is });
  if (status === "queued") return known("queued");
  if (status === "canceled") {
    await cancelJob(store.db, scope, job.id, keyCause());
    return known("canceled");
  }
  const attempt = await store.start(nodeId, projectNo, job.id, { environment, region });
  if (status === "running") return known("running");
  if (status === "canceled on the wire") {
    await cancelJob(store.db, scope, job.id, keyCause());
    return known("canceled");
  }
  const wish = status === "succeeded" ? {} : failedWith("over");
  await settleAttempts(store.db, [settlementOf(attempt, wish)]);
  if (status !== "retried") return known(status);
  await retryRun(store.db, scope, attempt.granted.runId, store.newRunId(), keyCause());
  return known("running");
}

/** The ids of all pages, and how many pages there were. */
async function walk(query: Omit<JobListQuery, "beforeId" | "limit">, limit: number) {
  const found: string[] = [];
  let beforeId: string | null = null;
  for (let pages = 1; ; pages++) {
    const { rows, endId } = await listJobs(store.db, { ...query, beforeId, limit });
    expect(rows.length).toBeLessThanOrEqual(limit);
    found.push(...rows.map(({ id }) => id));
    const next: string | null = rows.length === limit ? (rows.at(-1)?.id ?? null) : endId;
    if (next === null) return { found, pages };
    if (beforeId !== null) expect(next < beforeId).toBe(true);
    beforeId = next;
  }
}

const WRONG_STATES = `
SELECT t.job_id, t.tag, t.state
  FROM job_tag_states t
  LEFT JOIN ended_jobs e ON e.job_id = t.job_id
 WHERE t.state <> coalesce(e.status, -1)`;

test("pages of jobs are what a full look finds, for every set of filters, page by page", async () => {
  const project = await store.addProject();
  const stranger = await store.addProject();
  const [nightly, hourly] = [newSchedule(), newSchedule()];
  const STATES = [...JOB_STATUSES, "canceled on the wire", "retried"] as const;
  const model: Known[] = [];
  for (let round = 0; round < 9; round++) {
    for (const [index, status] of STATES.entries()) {
      const turn = round * STATES.length + index;
      const environment = ENVIRONMENTS[Number(turn % 5 !== 0)] as Environment;
      // A schedule belongs to one environment.
      const scheduleId = environment === "development" ? hourly : [undefined, nightly][turn % 2];
      const wanted: Wanted = {
        environment,
        region: turn % 4 === 0 ? "eu-central" : "us-east",
        ...(turn % 3 === 0 ? {} : { tags: turn % 7 === 0 ? ["rare", "common", "NULL"] : ["common"] }),
        ...(scheduleId === undefined ? {} : { scheduleId }),
      };
      model.push(await addJob(project, status, wanted));
    }
  }
  // Jobs of another project are not in the way, even with the same tag.
  await addJob(stranger, "queued", { tags: ["common"], scheduleId: newSchedule() });

  const middle = model[30]?.id ?? "";
  const late = model[50]?.id ?? "";
  for (const status of [null, ...JOB_STATUSES])
    for (const region of [null, "us-east", "eu-central", "us-west"] as const)
      for (const tag of [null, "common", "rare", "NULL", "unknown"])
        for (const scheduleId of [null, nightly, hourly, newSchedule()])
          for (const [fromId, until] of [
            [null, null],
            [middle, null],
            [middle, late],
          ] as const) {
            const environment = "production" as const;
            const wanted = model
              .filter((job) => job.environment === environment && (status === null || job.status === status))
              .filter((job) => region === null || job.region === region)
              .filter((job) => tag === null || job.tags?.includes(tag) === true)
              .filter((job) => scheduleId === null || job.scheduleId === scheduleId)
              .filter(({ id }) => (fromId === null || id >= fromId) && (until === null || id < until))
              .map(({ id }) => id)
              .toReversed();
            const query = { projectNo: project, environment, status, region, tag, scheduleId, fromId };
            const first = await listJobs(store.db, { ...query, beforeId: until, limit: 200 });
            expect({ ...query, found: first.rows.map(({ id }) => id) }).toEqual({ ...query, found: wanted });
            if (until === null)
              expect({ ...query, ...(await walk(query, 4)) }).toMatchObject({ found: wanted });
          }
  expect(await store.query(WRONG_STATES)).toEqual([]);
});

test("a job's tags follow it through attempts, a failure, a retry by hand and its end", async () => {
  const project = await store.addProject();
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
  const [jobId = ""] = await store.addJobs(project, 1, { maxAttempts: 2, tags: ["a", "b"] });
  const found = async (status: JobStatus) => {
    const query = { ...scope, status, region: null, beforeId: null, limit: 5 };
    const pages = await Promise.all(["a", "b"].map((tag) => listJobs(store.db, { ...query, tag })));
    return pages.map(({ rows }) => rows.map(({ id, tags }) => [id, tags]));
  };
  const here = [[[jobId, ["a", "b"]]], [[jobId, ["a", "b"]]]];
  expect(await found("queued")).toEqual(here);
  const first = await store.start(nodeId, project, jobId);
  expect([await found("queued"), await found("running")]).toEqual([[[], []], here]);
  await settleAttempts(store.db, [settlementOf(first, failedWith({ dueAt: 0 }))]);
  expect([await found("queued"), await found("running")]).toEqual([here, [[], []]]);
  const second = await store.start(nodeId, project, jobId, { attempt: 2 });
  await settleAttempts(store.db, [settlementOf(second, failedWith("over"))]);
  expect([await found("failed"), await found("running")]).toEqual([here, [[], []]]);
  await retryRun(store.db, scope, second.granted.runId, store.newRunId(), keyCause());
  expect([await found("running"), await found("failed")]).toEqual([here, [[], []]]);
  const third = await store.start(nodeId, project, jobId, { attempt: 3 });
  await settleAttempts(store.db, [settlementOf(third)]);
  expect([await found("succeeded"), await found("running")]).toEqual([here, [[], []]]);
  expect(await findJob(store.db, scope, jobId)).toMatchObject({ tags: ["a", "b"] });
  const runs = await listRuns(store.db, {
    ...scope,
    jobId: null,
    status: null,
    tag: "b",
    beforeId: null,
    limit: 5,
  });
  expect(runs.rows.map(({ attempt }) => attempt)).toEqual([3, 2, 1]);
});

test("what is read for a page is bounded: it is short where little fits, and tells where the next one begins", async () => {
  const project = await store.addProject({ concurrency: 10_000 });
  const scope = { projectNo: project, environment: "production" as const, region: null };
  const scheduleId = newSchedule();
  const oldest = await addJob(project, "failed", { tags: ["many"], scheduleId });
  const waiting = await addJob(project, "queued", { tags: ["many"], scheduleId, region: "us-west" });
  const count = 2 * LOOKED_AT_MAX + 10;
  const running = await store.addJobs(project, count, { tags: ["many"], scheduleId });
  await store.query(
    "UPDATE open_jobs SET run_id = gen_random_uuid(), node_id = $2, due_at = NULL, started_at = now() WHERE project_no = $1 AND region = 0",
    [project, nodeId],
  );
  for (const query of [
    { ...scope, status: "queued", tag: "many" },
    { ...scope, status: "queued", tag: "many", scheduleId },
    { ...scope, status: "failed", tag: "many", scheduleId },
  ] as const) {
    const { rows, endId } = await listJobs(store.db, { ...query, beforeId: null, limit: 51 });
    expect(rows).toEqual([]);
    expect(endId).toBe(running.at(-LOOKED_AT_MAX) ?? "");
    const wanted = query.status === "queued" ? waiting : oldest;
    expect(await walk(query, 51)).toEqual({ found: [wanted.id], pages: 3 });
  }
  // Pages are never short for a tag with a status in which jobs end, or for a schedule with a status.
  const full = await listJobs(store.db, {
    ...scope,
    status: "failed",
    tag: "many",
    beforeId: null,
    limit: 51,
  });
  expect([full.rows.map(({ id }) => id), full.endId]).toEqual([[oldest.id], null]);
  const ofSchedule = await listJobs(store.db, {
    ...scope,
    status: "queued",
    scheduleId,
    beforeId: null,
    limit: 51,
  });
  expect([ofSchedule.rows.map(({ id }) => id), ofSchedule.endId]).toEqual([[waiting.id], null]);
});

test("running jobs are found however many of them wait for an attempt by hand, and the pages are bounded", async () => {
  const project = await store.addProject();
  const scope = {
    projectNo: project,
    environment: "production" as const,
    region: null,
    status: "running",
  } as const;
  const scheduleId = newSchedule();
  const addRunning = async (count: number, wish: object) => {
    const jobs = await store.addJobs(project, count, wish);
    const isNew = "project_no = $1 AND run_id IS NULL AND NOT canceled AND due_at <= now()";
    await store.query(`UPDATE open_jobs SET run_id = gen_random_uuid(), started_at = now() WHERE ${isNew}`, [
      project,
    ]);
    return jobs;
  };
  const [first = ""] = await store.addJobs(project, 1, { runAt: Date.now() + 86_400_000 });
  const ofSchedule = await addRunning(1, { scheduleId });
  const tagged = await addRunning(1, { tags: ["rare"] });
  const elsewhere = await addRunning(1, { region: "eu-central" });
  const others = await addRunning(RUNNING_MAX - 4, {});
  const wanted = [...ofSchedule, ...tagged, ...elsewhere, ...others].toReversed();
  const filters = [
    [{}, wanted],
    [{ scheduleId }, ofSchedule],
    [{ tag: "rare" }, tagged],
    [{ region: "eu-central" }, elsewhere],
  ] as const;
  for (const [filter, found] of filters)
    expect(await walk({ ...scope, ...filter }, 200)).toEqual({ found, pages: Math.ceil(found.length / 200) });
  // From here on, running jobs are looked for among all jobs that are not over.
  const last = await addRunning(1, { tags: ["rare"] });
  const { id: newest } = await addJob(project, "queued", {});
  expect((await walk(scope, 200)).found).toEqual([...last, ...wanted]);
  expect(await walk({ ...scope, scheduleId }, 200)).toEqual({ found: ofSchedule, pages: 3 });
  expect(await walk({ ...scope, tag: "rare" }, 200)).toEqual({ found: [...last, ...tagged], pages: 3 });
  const queued = { ...scope, status: "queued" } as const;
  expect(await walk(queued, 200)).toEqual({ found: [newest, first], pages: 2 });
});
