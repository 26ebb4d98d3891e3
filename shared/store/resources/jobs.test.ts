import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { idToUuid } from "../../domain/ids.ts";
import { JOB_STATUSES } from "../../domain/job.ts";
import { ENVIRONMENTS, type Environment, REGIONS, type Region } from "../../domain/scope.ts";
import { claimAttempts } from "../queue/claim.ts";
import { settleAttempts } from "../queue/settle.ts";
import { failedWith, kindsOf, orRefused, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { createJobs } from "./job-creation.ts";
import { type JobListQuery, listJobs } from "./job-list.ts";
import { findJob, type JobSummary } from "./jobs.ts";
import { cancelJob, retryRun } from "./jobs-by-hand.ts";
import { listRuns } from "./run-list.ts";
import { findRun } from "./runs.ts";

let store: TestStore;
let nodeId: number;
let project: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
  project = await store.addProject();
});
afterAll(() => store.stop());

const scope = (environment: Environment = "production") => ({ projectNo: project, environment, sinceAt: 0 });
const find = (id: string) => findJob(store.db, scope(), id);
const cancel = (id: string) => orRefused(cancelJob(store.db, scope(), id, keyCause()));
const create = (...jobs: ReturnType<TestStore["newJob"]>[]) => createJobs(store.db, jobs, new Set());
const startOne = async (maxAttempts = 5) => {
  const [jobId = ""] = await store.addJobs(project, 1, { maxAttempts });
  return store.start(nodeId, project, jobId);
};

describe("creating jobs", () => {
  test("commits what was asked for, and answers when it is due", async () => {
    const runAt = Math.floor(Date.now()) + 120_000;
    const past = store.newJob(project, { runAt: runAt - 150_000, payload: `{"a":[1.0,"\\u0000'"]}` });
    const future = store.newJob(project, { runAt, region: "eu-central", environment: "development" });
    const askedAt = Date.now();
    const [first, second] = await create(past, future);
    const place = { projectNo: project, region: "eu-central", shard: 0, flowClass: "development jobs" };
    const owed = { ...place, id: future.id, attempt: 1, dueAt: runAt };
    expect(second).toMatchObject({ kind: "created", owed: [owed] });
    // A run_at in the past is kept, but the job is due from now on: no sweep looks behind the clock.
    expect(first?.kind === "created" ? first.owed[0]?.dueAt : 0).toBeGreaterThan(askedAt - 1_000);
    const { projectNo: _, environment: __, shard: ___, cause: ____, ...facts } = past;
    expect(await find(past.id)).toEqual({
      ...facts,
      tags: null,
      scheduleId: null,
      flow: null,
      status: "queued",
      attempts: 0,
    });
    expect(await find(future.id)).toBeNull();
    expect(await findJob(store.db, { ...scope("development") }, future.id)).toMatchObject({ runAt });
    expect(
      await findJob(store.db, { projectNo: project + 1, environment: "production" }, past.id),
    ).toBeNull();
  });

  test("twice under one id makes one job, also at the same time", async () => {
    const job = store.newJob(project);
    const answers = await Promise.all(Array.from({ length: 8 }, () => create(job)));
    expect(answers.flat().map((answer) => answer.kind)).toEqual(Array(8).fill("created"));
    expect(await countRows("jobs", job.id)).toBe(1);
    expect(await countRows("open_jobs", job.id)).toBe(1);
  });

  test("again after the job has ended does not reopen it", async () => {
    const job = store.newJob(project);
    await create(job);
    const attempt = await store.start(nodeId, project, job.id);
    await settleAttempts(store.db, [settlementOf(attempt)]);
    expect((await create(job)).map((answer) => answer.kind)).toEqual(["created"]);
    expect(await countRows("open_jobs", job.id)).toBe(0);
    expect(await find(job.id)).toMatchObject({ status: "succeeded", attempts: 1 });
  });

  test("is refused once the month's quota is used up, job by job, and leaves no trace", async () => {
    const poor = await store.addProject({ plan: "hobby" });
    const earlier = store.newJob(poor);
    await create(earlier);
    await store.query("UPDATE flows SET month_runs = month_runs_max WHERE project_no = $1", [poor]);
    const [refused, accepted] = [store.newJob(poor), store.newJob(project)];
    expect((await create(refused, accepted)).map((answer) => answer.kind)).toEqual([
      "quota_exceeded",
      "created",
    ]);
    for (const table of ["jobs", "open_jobs"]) expect(await countRows(table, refused.id)).toBe(0);
    // This job was committed while the quota lasted. Asked again after an unknown outcome, the answer is the first one.
    expect((await create(earlier)).map((answer) => answer.kind)).toEqual(["created"]);
  });

  test("makes the lane that the sweep finds them by, and follows a project that is moved to another shard", async () => {
    const mover = await store.addProject();
    await store.addJobs(mover, 2, { shard: 4 });
    await store.addJobs(mover, 1, { shard: 4, region: "us-west" });
    const lanes = () =>
      store.query("SELECT region, environment, shard FROM lanes WHERE project_no = $1 ORDER BY region", [
        mover,
      ]);
    expect(await lanes()).toEqual([
      { region: 0, environment: 1, shard: 4 },
      { region: 1, environment: 1, shard: 4 },
    ]);
    await store.addJobs(mover, 1, { shard: 9 });
    expect(await lanes()).toContainEqual({ region: 0, environment: 1, shard: 9 });
  });

  test.each([undefined, { key: "a" }])("twice, it follows the project as well (flow %p)", async (flow) => {
    const mover = await store.addProject();
    const job = store.newJob(mover, { flow: flow ?? null, shard: 4 });
    await create(job);
    await create({ ...job, shard: 9 });
    expect(await store.query("SELECT shard FROM lanes WHERE project_no = $1", [mover])).toEqual([
      { shard: 9 },
    ]);
  });

  test("by many at once over the same new lanes ends without a deadlock", async () => {
    const projects = await Promise.all(Array.from({ length: 6 }, () => store.addProject()));
    const jobs = () => projects.map((no) => store.newJob(no)).sort(() => Math.random() - 0.5);
    const answers = await Promise.all(Array.from({ length: 30 }, () => create(...jobs())));
    expect(answers.flat().every((answer) => answer.kind === "created")).toBe(true);
  });
});

describe("canceling", () => {
  test("a queued job ends it: nothing is claimed any more", async () => {
    const [id = ""] = await store.addJobs(project, 1);
    expect(await cancel(id)).toMatchObject({
      kind: "canceled",
      job: { id, status: "canceled", attempts: 0 },
    });
    expect(kindsOf(await claimAttempts(store.db, nodeId, [store.claimOf(project, id)]))).toEqual(["gone"]);
    expect(await cancel(id)).toEqual({ kind: "refused" });
  });

  test("a job between two attempts takes the plan of the retry back", async () => {
    const attempt = await startOne();
    await settleAttempts(store.db, [settlementOf(attempt, failedWith({ dueAt: Date.now() + 60_000 }))]);
    expect(await cancel(attempt.claim.jobId)).toMatchObject({
      kind: "canceled",
      job: { status: "canceled", attempts: 1 },
    });
    expect(await findRun(store.db, scope(), attempt.granted.runId)).toMatchObject({ nextRetryAt: null });
  });

  test("that waited for the attempt's settlement takes back the retry that this one planned", async () => {
    const attempt = await startOne();
    const holder = await store.session();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM open_jobs WHERE run_id IS NOT NULL AND project_no = $1 FOR UPDATE", [
      project,
    ]);
    const settling = settleAttempts(store.db, [
      settlementOf(attempt, failedWith({ dueAt: Date.now() + 60_000 })),
    ]);
    await store.untilBlocked();
    const canceling = cancel(attempt.claim.jobId);
    await store.untilBlocked(2);
    await holder.query("COMMIT");
    expect((await settling).items[0]?.status).toBe("queued");
    expect((await canceling).kind).toBe("canceled");
    expect(await findRun(store.db, scope(), attempt.granted.runId)).toMatchObject({ nextRetryAt: null });
  });

  test("a running job answers at once and lets the attempt end", async () => {
    const attempt = await startOne();
    expect(await cancel(attempt.claim.jobId)).toMatchObject({
      kind: "canceled",
      job: { status: "canceled", attempts: 1 },
    });
    expect(await findRun(store.db, scope(), attempt.granted.runId)).toMatchObject({ status: "running" });
    expect(await cancel(attempt.claim.jobId)).toEqual({ kind: "refused" });
    await settleAttempts(store.db, [settlementOf(attempt)]);
    expect(await find(attempt.claim.jobId)).toMatchObject({ status: "canceled", attempts: 1 });
  });

  test("a manual retry that was not sent ends its run without sending it", async () => {
    const attempt = await startOne(1);
    await settleAttempts(store.db, [settlementOf(attempt, failedWith("over"))]);
    const runId = store.newRunId();
    await retryRun(store.db, scope(), attempt.granted.runId, runId, keyCause());
    expect(await cancel(attempt.claim.jobId)).toMatchObject({
      kind: "canceled",
      job: { status: "canceled", attempts: 2 },
    });
    expect(await findRun(store.db, scope(), runId)).toMatchObject({
      status: "failed",
      attempt: 2,
      error: "canceled before it was sent",
      durationMs: 0,
      responseStatus: null,
      nextRetryAt: null,
    });
    const claim = store.claimOf(project, attempt.claim.jobId, { attempt: 2 });
    expect(kindsOf(await claimAttempts(store.db, nodeId, [claim]))).toEqual(["gone"]);
  });

  test.each([
    ["succeeded", {}],
    ["failed", failedWith("over")],
  ])("a job that has %s is refused", async (status, wish) => {
    const attempt = await startOne();
    await settleAttempts(store.db, [settlementOf(attempt, wish)]);
    expect(await cancel(attempt.claim.jobId)).toEqual({ kind: "refused" });
    expect((await find(attempt.claim.jobId))?.status).toBe(status as "failed");
  });

  test("what is not there, or belongs to the other environment or another project, finds nothing", async () => {
    const [id = ""] = await store.addJobs(project, 1);
    const stranger = await store.addProject();
    expect(await cancel(store.newJob(project).id)).toEqual({ kind: "not_found" });
    expect(await cancelJob(store.db, scope("development"), id, keyCause())).toEqual({ kind: "not_found" });
    const others = { projectNo: stranger, environment: "production" as const };
    expect(await cancelJob(store.db, others, id, keyCause())).toEqual({ kind: "not_found" });
    expect((await find(id))?.status).toBe("queued");
  });

  test("against a claim: either the attempt was sent before, or it is never sent; cancels in a crowd win once", async () => {
    let [wonBefore, wonAfter] = [0, 0];
    // The winner has to begin later in the next round, so that each side wins some rounds on any machine.
    let headStartMs = 0;
    const after = async <T>(waitMs: number, act: () => Promise<T>): Promise<T> => {
      if (waitMs > 0) await Bun.sleep(waitMs);
      return act();
    };
    for (let round = 0; round < 60 || (round < 600 && wonBefore * wonAfter === 0); round++) {
      const [id = ""] = await store.addJobs(project, 1);
      const claim = store.claimOf(project, id);
      const [claimed, ...canceled] = await Promise.all([
        after(-headStartMs, () => claimAttempts(store.db, nodeId, [claim])),
        after(headStartMs, () => cancel(id)),
        after(headStartMs, () => cancel(id)),
      ]);
      expect(canceled.map((answer) => answer.kind).sort()).toEqual(["canceled", "refused"]);
      const [answer] = claimed;
      if (answer?.kind === "granted") {
        await settleAttempts(store.db, [settlementOf({ claim, granted: answer.attempt })]);
        wonAfter++;
        headStartMs -= 0.5;
      } else {
        expect(answer?.kind).toBe("gone");
        wonBefore++;
        headStartMs += 0.5;
      }
      const attempts = answer?.kind === "granted" ? 1 : 0;
      expect(await find(id)).toMatchObject({ status: "canceled", attempts });
      expect((await listRuns(store.db, runsOf(id))).rows).toHaveLength(attempts);
    }
    expect(wonBefore).toBeGreaterThan(0);
    expect(wonAfter).toBeGreaterThan(0);
    expect((await store.flow(project)).production_jobs).toBe(await store.onWire(project));
  });
});

describe("pages of jobs", () => {
  test("are what a full look over all jobs finds, for every filter, page by page", async () => {
    const owner = await store.addProject();
    const model: (JobSummary & { environment: Environment })[] = [];
    for (let round = 0; round < 20; round++) {
      for (const status of JOB_STATUSES) {
        const region = REGIONS[(round + JOB_STATUSES.indexOf(status)) % REGIONS.length] as Region;
        const environment = ENVIRONMENTS[Number(Math.random() < 0.7)] as Environment;
        model.push({ ...(await jobIn(owner, status, region, environment)), environment });
      }
    }
    // A job canceled on the wire is canceled, and one whose manual retry waits is running.
    const onWire = await jobIn(owner, "running", "us-east", "production");
    await cancelJob(store.db, { projectNo: owner, environment: "production" }, onWire.id, keyCause());
    model.push({ ...onWire, status: "canceled", environment: "production" });
    const retried = await jobIn(owner, "failed", "us-west", "production");
    const ownerScope = { projectNo: owner, environment: "production" as const, sinceAt: 0 };
    const [run] = (await listRuns(store.db, { ...runsOf(retried.id), ...ownerScope })).rows;
    await retryRun(store.db, ownerScope, run?.id ?? "", store.newRunId(), keyCause());
    model.push({ ...retried, status: "running", attempts: 2, environment: "production" });

    for (const environment of ENVIRONMENTS) {
      for (const status of [null, ...JOB_STATUSES]) {
        for (const region of [null, ...REGIONS]) {
          const wanted = model
            .filter((job) => job.environment === environment)
            .filter(
              (job) =>
                (status === null || job.status === status) && (region === null || job.region === region),
            )
            .map(({ environment: _, ...job }) => job)
            .sort((one, other) => (one.id < other.id ? 1 : -1));
          const query = { projectNo: owner, environment, status, region };
          expect(await walk(query, 7)).toEqual(wanted);
          expect(await walk(query, 200)).toEqual(wanted);
        }
      }
    }
  });
});

async function jobIn(
  owner: number,
  status: (typeof JOB_STATUSES)[number],
  region: Region,
  environment: Environment,
): Promise<JobSummary> {
  const job = store.newJob(owner, { region, environment });
  await create(job);
  const facts = { id: job.id, targetUrl: job.targetUrl, region, runAt: job.runAt, tags: null, status };
  if (status === "queued") return { ...facts, attempts: 0 };
  if (status === "canceled") {
    await cancelJob(store.db, { projectNo: owner, environment }, job.id, keyCause());
    return { ...facts, attempts: 0 };
  }
  const attempt = await store.start(nodeId, owner, job.id, { region, environment });
  if (status === "succeeded") await settleAttempts(store.db, [settlementOf(attempt)]);
  if (status === "failed") await settleAttempts(store.db, [settlementOf(attempt, failedWith("over"))]);
  return { ...facts, attempts: 1 };
}

async function walk(query: Omit<JobListQuery, "beforeId" | "limit">, limit: number): Promise<JobSummary[]> {
  const found: JobSummary[] = [];
  for (;;) {
    const { rows: page } = await listJobs(store.db, { ...query, beforeId: found.at(-1)?.id ?? null, limit });
    expect(page.length).toBeLessThanOrEqual(limit);
    if (page.length === 0) return found;
    found.push(...page);
  }
}

const runsOf = (jobId: string) => ({ ...scope(), jobId, status: null, beforeId: null, limit: 10 });

async function countRows(table: string, id: string): Promise<number> {
  const [row] = await store.query<{ count: number }>(
    `SELECT count(*)::int AS count FROM ${table} WHERE ${table === "jobs" ? "id" : "job_id"} = $1`,
    [idToUuid(id)],
  );
  return row?.count ?? 0;
}
