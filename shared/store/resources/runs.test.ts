import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { keyCause } from "../../../test/support/cause.ts";
import { createIdSource, RUN_PREFIX } from "../../domain/ids.ts";
import { RUN_STATUSES } from "../../domain/run.ts";
import { ENVIRONMENTS, type Environment } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";
import { claimAttempts } from "../queue/claim.ts";
import { settleAttempts } from "../queue/settle.ts";
import { failedWith, kindsOf, orRefused, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { findJob } from "./jobs.ts";
import { cancelJob, retryRun } from "./jobs-by-hand.ts";
import { listRuns, type RunListQuery } from "./run-list.ts";
import { findRun, type RunRow } from "./runs.ts";

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
const retry = (runId: string, newRunId = store.newRunId()) =>
  orRefused(retryRun(store.db, scope(), runId, newRunId, keyCause()));
const find = (id: string) => findJob(store.db, scope(), id);
const startOne = async (maxAttempts = 5) => {
  const [jobId = ""] = await store.addJobs(project, 1, { maxAttempts, shard: 7 });
  return store.start(nodeId, project, jobId);
};
async function failOne(next: Parameters<typeof failedWith>[0], maxAttempts?: number) {
  const attempt = await startOne(maxAttempts);
  await settleAttempts(store.db, [settlementOf(attempt, failedWith(next))]);
  return { jobId: attempt.claim.jobId, runId: attempt.granted.runId };
}

describe("a manual retry", () => {
  test("reopens an exhausted job for exactly one attempt, running from the answer on", async () => {
    const { jobId, runId } = await failOne("over", 1);
    const before = await store.flow(project);
    const newRunId = store.newRunId();
    const retried = await retry(runId, newRunId);
    expect(retried).toMatchObject({
      kind: "retried",
      owed: [{ region: "us-east", shard: 7, id: jobId, attempt: 2 }],
      run: { id: newRunId, jobId, attempt: 2, status: "running", nextRetryAt: null, durationMs: null },
    });
    expect(await find(jobId)).toMatchObject({ status: "running", attempts: 2 });
    expect(await findRun(store.db, scope(), newRunId)).toEqual(
      retried.kind === "retried" ? retried.run : null,
    );
    expect((await store.flow(project)).month_runs).toBe(before.month_runs + 1);

    const claim = store.claimOf(project, jobId, { attempt: 2 });
    const [answer] = await claimAttempts(store.db, nodeId, [claim]);
    expect(answer).toMatchObject({ kind: "granted", attempt: { runId: newRunId, attemptsAllowed: 2 } });
    const scheduledAt = answer?.kind === "granted" ? answer.attempt.scheduledAt : 0;
    expect(scheduledAt).toBe(retried.kind === "retried" ? retried.run.startedAt : -1);
    // The run was counted when it was created, and is not counted again when it is sent.
    expect((await store.flow(project)).month_runs).toBe(before.month_runs + 1);
    await settleAttempts(store.db, [
      settlementOf({ claim, granted: { runId: newRunId } }, failedWith("over")),
    ]);
    expect(await find(jobId)).toMatchObject({ status: "failed", attempts: 2 });
  });

  test("takes the place of the automatic retry that was pending", async () => {
    const { jobId, runId } = await failOne({ dueAt: Date.now() + 3_600_000 });
    expect((await findRun(store.db, scope(), runId))?.nextRetryAt).not.toBeNull();
    expect(await retry(runId)).toMatchObject({ kind: "retried", run: { attempt: 2 } });
    expect((await findRun(store.db, scope(), runId))?.nextRetryAt).toBeNull();
    const { granted } = await store.start(nodeId, project, jobId, { attempt: 2 });
    expect(granted.attemptsAllowed).toBe(5);
  });

  test("that finds the pending attempt made meanwhile takes the place of the one after it, and clears its plan", async () => {
    const { jobId, runId } = await failOne({ dueAt: Date.now() });
    const holder = await store.session();
    const run = async (_name: string, text: string, values: unknown[]) =>
      (await holder.query({ text, values })).rows;
    const db = { run } as unknown as Database;
    await holder.query("BEGIN");
    await holder.query("SELECT FROM flows WHERE project_no = $1 FOR UPDATE", [project]);
    const retrying = retry(runId);
    await store.untilBlocked();
    const claim = store.claimOf(project, jobId, { attempt: 2 });
    expect(kindsOf(await claimAttempts(db, nodeId, [claim]))).toEqual(["granted"]);
    const failed = failedWith({ dueAt: Date.now() + 60_000 });
    await settleAttempts(db, [settlementOf({ claim, granted: claim }, failed)]);
    await holder.query("COMMIT");
    expect(await retrying).toMatchObject({ kind: "retried", run: { attempt: 3 } });
    expect(await findRun(store.db, scope(), claim.runId)).toMatchObject({ nextRetryAt: null });
  });

  test("clears the plan of the last attempt also if a clock was set back since the one that is retried", async () => {
    const [jobId = ""] = await store.addJobs(project, 1);
    const ahead = createIdSource(randomBytes).next(RUN_PREFIX, Date.now() + 3_600_000);
    const first = await store.start(nodeId, project, jobId, { runId: ahead });
    await settleAttempts(store.db, [settlementOf(first, failedWith({ dueAt: Date.now() }))]);
    const second = await store.start(nodeId, project, jobId, { attempt: 2 });
    await settleAttempts(store.db, [settlementOf(second, failedWith({ dueAt: Date.now() + 60_000 }))]);
    expect(await retry(first.granted.runId)).toMatchObject({ kind: "retried", run: { attempt: 3 } });
    expect(await findRun(store.db, scope(), second.granted.runId)).toMatchObject({ nextRetryAt: null });
  });

  test("of any failed run of the job owes the next attempt, not that one", async () => {
    const { jobId, runId } = await failOne({ dueAt: Date.now() }, 2);
    const second = await store.start(nodeId, project, jobId, { attempt: 2 });
    await settleAttempts(store.db, [settlementOf(second, { ...failedWith("over"), status: "timed_out" })]);
    expect(await retry(runId)).toMatchObject({ kind: "retried", run: { attempt: 3 } });
  });

  test("is refused while the job runs, after it succeeded, was canceled, or is retried already", async () => {
    const running = await failOne({ dueAt: Date.now() });
    await store.start(nodeId, project, running.jobId, { attempt: 2 });
    const succeeded = await failOne({ dueAt: Date.now() });
    const last = await store.start(nodeId, project, succeeded.jobId, { attempt: 2 });
    await settleAttempts(store.db, [settlementOf(last)]);
    const canceled = await failOne({ dueAt: Date.now() + 60_000 });
    await cancelJob(store.db, scope(), canceled.jobId, keyCause());
    const canceledOnWire = await failOne({ dueAt: Date.now() });
    await store.start(nodeId, project, canceledOnWire.jobId, { attempt: 2 });
    await cancelJob(store.db, scope(), canceledOnWire.jobId, keyCause());
    const retried = await failOne("over");
    await retry(retried.runId);
    const before = await store.flow(project);
    for (const { jobId, runId } of [running, succeeded, canceled, canceledOnWire, retried]) {
      const job = await find(jobId);
      expect(await retry(runId)).toEqual({ kind: "refused" });
      expect(await find(jobId)).toEqual(job);
    }
    expect((await store.flow(project)).month_runs).toBe(before.month_runs);
  });

  test("of a run that is running or has succeeded is refused; of an unknown or a stranger's it finds nothing", async () => {
    const running = await startOne();
    expect(await retry(running.granted.runId)).toEqual({ kind: "refused" });
    await settleAttempts(store.db, [settlementOf(running)]);
    expect(await retry(running.granted.runId)).toEqual({ kind: "refused" });
    const { runId } = await failOne("over");
    const others = { projectNo: await store.addProject(), environment: "production" as const, sinceAt: 0 };
    expect(await retry(store.newRunId())).toEqual({ kind: "not_found" });
    expect(await retryRun(store.db, scope("development"), runId, store.newRunId(), keyCause())).toEqual({
      kind: "not_found",
    });
    expect(await retryRun(store.db, others, runId, store.newRunId(), keyCause())).toEqual({
      kind: "not_found",
    });
  });

  test.each(["over", { dueAt: Date.now() + 60_000 }] as const)(
    "in a crowd is accepted once (%p)",
    async (next) => {
      for (let round = 0; round < 20; round++) {
        const { jobId, runId } = await failOne(next);
        const before = await store.flow(project);
        const answers = await Promise.all(Array.from({ length: 5 }, () => retry(runId)));
        expect(answers.map((answer) => answer.kind).sort()).toEqual([...Array(4).fill("refused"), "retried"]);
        expect(await find(jobId)).toMatchObject({ status: "running", attempts: 2 });
        expect((await store.flow(project)).month_runs).toBe(before.month_runs + 1);
      }
    },
  );

  test("against a cancel and the claim of the pending attempt leaves the job in one state and no permit astray", async () => {
    const before = await store.flow(project);
    for (let round = 0; round < 40; round++) {
      const { jobId, runId } = await failOne({ dueAt: Date.now() });
      const newRunId = store.newRunId();
      const claim = store.claimOf(project, jobId, { attempt: 2 });
      const [canceled, retried, [claimed]] = await Promise.all([
        cancelJob(store.db, scope(), jobId, keyCause()),
        retry(runId, newRunId),
        claimAttempts(store.db, nodeId, [claim]),
      ]);
      expect(canceled.kind).toBe("canceled");
      if (claimed?.kind === "granted")
        await settleAttempts(store.db, [settlementOf({ claim, granted: claimed.attempt })]);
      const query = { ...scope(), jobId, status: null, beforeId: null, limit: 10 };
      const { rows: runs } = await listRuns(store.db, query);
      expect(await find(jobId)).toMatchObject({ status: "canceled", attempts: runs.length });
      if (retried.kind === "retried") expect(runs.map((run) => run.id)).toContain(newRunId);
      expect(runs.every((run) => run.status !== "running" && run.nextRetryAt === null)).toBe(
        claimed?.kind !== "granted" || runs.length === 1 || runs[1]?.nextRetryAt === null,
      );
    }
    expect((await store.flow(project)).production_jobs).toBe(before.production_jobs);
  });

  test("beyond the month's quota is refused and changes nothing; after the rollover it counts as the first", async () => {
    const { jobId, runId } = await failOne("over");
    const job = await find(jobId);
    const flow = await store.flow(project);
    await store.query("UPDATE flows SET month_runs_max = month_runs WHERE project_no = $1", [project]);
    expect((await retry(runId)).kind).toBe("quota_exceeded");
    expect(await find(jobId)).toEqual(job);
    expect(await store.flow(project)).toEqual(flow);
    await store.query("UPDATE flows SET month = month - interval '1 month' WHERE project_no = $1", [project]);
    expect((await retry(runId)).kind).toBe("retried");
    expect((await store.flow(project)).month_runs).toBe(1);
    await store.query("UPDATE flows SET month_runs_max = NULL WHERE project_no = $1", [project]);
  });

  test("waits for a permit like any other attempt and starts when it is sent", async () => {
    const narrow = await store.addProject({ concurrency: 1 });
    const [busy = "", failed = ""] = await store.addJobs(narrow, 2);
    const first = await store.start(nodeId, narrow, failed);
    await settleAttempts(store.db, [settlementOf(first, failedWith("over"))]);
    const holding = await store.start(nodeId, narrow, busy);
    const narrowScope = { projectNo: narrow, environment: "production" as const, sinceAt: 0 };
    const retried = await retryRun(store.db, narrowScope, first.granted.runId, store.newRunId(), keyCause());
    const claim = store.claimOf(narrow, failed, { attempt: 2 });
    expect(kindsOf(await claimAttempts(store.db, nodeId, [claim]))).toEqual(["no_permit"]);
    await settleAttempts(store.db, [settlementOf(holding)]);
    const { granted } = await store.start(nodeId, narrow, failed, { attempt: 2 });
    expect(granted.startedAt).toBeGreaterThan(retried.kind === "retried" ? retried.run.startedAt : 0);
    expect(await findRun(store.db, narrowScope, granted.runId)).toMatchObject({
      startedAt: granted.startedAt,
    });
  });
});

describe("pages of runs", () => {
  test("are what a full look over all runs finds, for every filter, page by page", async () => {
    const owner = await store.addProject();
    const model: (RunRow & { environment: Environment })[] = [];
    for (let index = 0; index < 40; index++) {
      const environment = ENVIRONMENTS[index % 2] as Environment;
      const [jobId = ""] = await store.addJobs(owner, 1, { environment });
      const last = 1 + (index % 3);
      for (let attempt = 1; attempt <= last; attempt++) {
        const started = await store.start(nodeId, owner, jobId, { environment, attempt });
        const isLast = attempt === last;
        const status = isLast ? (RUN_STATUSES[index % RUN_STATUSES.length] ?? "running") : "failed";
        if (status !== "running") {
          const wish =
            status === "succeeded" ? {} : { ...failedWith(isLast ? "over" : { dueAt: 0 }), status };
          await settleAttempts(store.db, [settlementOf(started, wish)]);
        }
        const run = await findRun(
          store.db,
          { projectNo: owner, environment, sinceAt: 0 },
          started.granted.runId,
        );
        if (run === null) throw new Error("a started run is not found");
        expect(run).toMatchObject({ jobId, attempt, status });
        model.push({ ...run, environment });
      }
    }
    const jobIds = [null, ...new Set(model.slice(0, 12).map((run) => run.jobId)), store.newJob(owner).id];
    for (const environment of ENVIRONMENTS) {
      for (const status of [null, ...RUN_STATUSES]) {
        for (const jobId of jobIds) {
          const wanted = model
            .filter((run) => run.environment === environment && (jobId === null || run.jobId === jobId))
            .filter((run) => status === null || run.status === status)
            .map(({ environment: _, ...run }) => run)
            .sort((one, other) => (one.id < other.id ? 1 : -1));
          expect(await walk({ projectNo: owner, environment, sinceAt: 0, status, jobId })).toEqual(wanted);
        }
      }
    }
  });
});

async function walk(query: Omit<RunListQuery, "beforeId" | "limit">): Promise<RunRow[]> {
  const found: RunRow[] = [];
  for (;;) {
    const { rows: page } = await listRuns(store.db, {
      ...query,
      beforeId: found.at(-1)?.id ?? null,
      limit: 5,
    });
    expect(page.length).toBeLessThanOrEqual(5);
    if (page.length === 0) return found;
    found.push(...page);
  }
}
