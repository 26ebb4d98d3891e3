import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { idToUuid } from "../../domain/ids.ts";
import type { Environment } from "../../domain/scope.ts";
import { WAITED_FROM_MS } from "../../domain/wait.ts";
import { waitReasonCode } from "../database/codes.ts";
import { findJob } from "../resources/jobs.ts";
import { cancelJob } from "../resources/jobs-by-hand.ts";
import { findRun } from "../resources/runs.ts";
import { failedWith, settlementOf, startStore, type TestStore, WAYS, type Way } from "../test-support.ts";

let store: TestStore;
let way: Way;
let nodeId: number;
let project: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  project = await store.addProject();
});
afterAll(() => store.stop());

const scope = (environment: Environment = "production") => ({ projectNo: project, environment, sinceAt: 0 });

async function startOne(maxAttempts = 5) {
  const [jobId = ""] = await store.addJobs(project, 1, { maxAttempts });
  return store.start(nodeId, project, jobId);
}

describe.each(WAYS)("a settlement, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("of a success ends the job, records the run and gives the permit back", async () => {
    const before = await store.flow(project);
    const attempt = await startOne();
    const { items } = await way.settle(store.db, [settlementOf(attempt, { durationMs: 12.6 })]);
    expect(items).toEqual([
      { jobId: attempt.claim.jobId, attempt: 1, status: "succeeded", nextRetryAt: null },
    ]);
    expect(await findJob(store.db, scope(), attempt.claim.jobId)).toMatchObject({
      status: "succeeded",
      attempts: 1,
    });
    expect(await findRun(store.db, scope(), attempt.granted.runId)).toMatchObject({
      status: "succeeded",
      attempt: 1,
      responseStatus: 200,
      error: null,
      durationMs: 13,
      nextRetryAt: null,
      startedAt: attempt.granted.startedAt,
    });
    const after = await store.flow(project);
    expect(after.production_jobs).toBe(before.production_jobs);
    expect(after.returned).toBe(before.returned + 1);
  });

  test("tells how late the attempt started, and what it waited for if it was late", async () => {
    const waits = [
      [2_500, "host", { late_ms: 2_500, held_for: waitReasonCode("host") }],
      [2_500, undefined, { late_ms: 2_500, held_for: null }],
      [WAITED_FROM_MS, "host", { late_ms: WAITED_FROM_MS, held_for: null }],
      [undefined, "host", { late_ms: null, held_for: null }],
      [2.6, undefined, { late_ms: 3, held_for: null }],
      [4e9, "quota", { late_ms: 2_147_483_647, held_for: waitReasonCode("quota") }],
    ] as const;
    for (const [lateMs, waitedFor, row] of waits) {
      const attempt = await startOne();
      await way.settle(store.db, [settlementOf(attempt, { lateMs, waitedFor })]);
      expect(
        await store.query("SELECT late_ms, held_for FROM runs WHERE id = $1", [
          idToUuid(attempt.granted.runId),
        ]),
      ).toEqual([row]);
    }
  });

  test("of a failure with attempts left owes the next one at the time that the run names", async () => {
    const attempt = await startOne();
    const askedAt = await now();
    const wish = { ...failedWith("over"), next: { status: "queued", waitMs: 30_000 } } as const;
    const { items } = await way.settle(store.db, [settlementOf(attempt, wish)]);
    const dueAt = items[0]?.nextRetryAt as number;
    expect(dueAt).toBeWithin(askedAt + 30_000, (await now()) + 30_001);
    expect(items[0]).toMatchObject({ status: "queued", attempt: 1 });
    expect(await findRun(store.db, scope(), attempt.granted.runId)).toMatchObject({
      status: "failed",
      error: "no",
      nextRetryAt: dueAt,
    });
    expect(await findJob(store.db, scope(), attempt.claim.jobId)).toMatchObject({
      status: "queued",
      attempts: 1,
    });
    const [row] = await store.query(
      `SELECT attempt, run_id, node_id, started_at, (extract(epoch FROM due_at) * 1000)::float8 AS due_at
         FROM open_jobs WHERE project_no = $1 AND job_id = $2`,
      [project, idToUuid(attempt.claim.jobId)],
    );
    expect(row).toEqual({ attempt: 2, run_id: null, node_id: null, started_at: null, due_at: dueAt });
  });

  test("never owes anything behind the clock, since nobody looks there any more", async () => {
    const attempt = await startOne();
    const askedAt = await now();
    const late = failedWith({ dueAt: askedAt - 3_600_000 });
    const { items } = await way.settle(store.db, [settlementOf(attempt, late)]);
    expect(items[0]?.nextRetryAt).toBeGreaterThanOrEqual(askedAt);
    const run = await findRun(store.db, scope(), attempt.granted.runId);
    expect(run?.nextRetryAt).toBe(items[0]?.nextRetryAt ?? 0);
  });

  test("of an attempt that was found lost after months is recorded all the same", async () => {
    const attempt = await startOne();
    const { items } = await way.settle(store.db, [settlementOf(attempt, { durationMs: 90 * 86_400_000 })]);
    expect(items[0]?.status).toBe("succeeded");
    expect((await findRun(store.db, scope(), attempt.granted.runId))?.durationMs).toBe(2_147_483_647);
  });

  test("of the last failure ends the job as failed", async () => {
    const attempt = await startOne(1);
    const { items } = await way.settle(store.db, [settlementOf(attempt, failedWith("over"))]);
    expect(items[0]).toMatchObject({ status: "failed", nextRetryAt: null });
    expect(await findJob(store.db, scope(), attempt.claim.jobId)).toMatchObject({
      status: "failed",
      attempts: 1,
    });
  });

  test("of a job that was canceled meanwhile leaves it canceled and plans nothing", async () => {
    for (const wish of [{}, failedWith({ dueAt: Date.now() + 1_000 }), failedWith("over")]) {
      const attempt = await startOne();
      expect((await cancelJob(store.db, scope(), attempt.claim.jobId, keyCause())).kind).toBe("canceled");
      // The permit is held until the attempt ends.
      expect(await store.onWire(project)).toBe(1);
      const { items } = await way.settle(store.db, [settlementOf(attempt, wish)]);
      expect(items[0]).toMatchObject({ status: "canceled", nextRetryAt: null });
      expect(await findJob(store.db, scope(), attempt.claim.jobId)).toMatchObject({
        status: "canceled",
        attempts: 1,
      });
      const run = await findRun(store.db, scope(), attempt.granted.runId);
      expect(run).toMatchObject({ status: wish.status ?? "succeeded", nextRetryAt: null });
      expect(await store.onWire(project)).toBe(0);
    }
  });

  test("that comes twice, or from two nodes at once, counts once", async () => {
    const attempt = await startOne();
    const before = await store.flow(project);
    const first = settlementOf(attempt, failedWith({ dueAt: Date.now() + 60_000 }));
    const answers = await Promise.all(
      [first, settlementOf(attempt), first, settlementOf(attempt)].map(alone),
    );
    expect(answers.filter((item) => item !== null)).toHaveLength(1);
    expect(await alone(first)).toBeNull();
    const after = await store.flow(project);
    expect(after.production_jobs).toBe(before.production_jobs - 1);
    expect(after.returned).toBe(before.returned + 1);
    expect(
      await store.query("SELECT attempt FROM runs WHERE id = $1", [idToUuid(attempt.granted.runId)]),
    ).toEqual([{ attempt: 1 }]);
  });

  test("of an attempt that was never claimed, or under another run, finds nothing", async () => {
    const [jobId = ""] = await store.addJobs(project, 1);
    const claim = store.claimOf(project, jobId);
    const before = await store.flow(project);
    expect(await alone(settlementOf({ claim, granted: { runId: claim.runId } }))).toBeNull();
    const started = await store.start(nodeId, project, jobId);
    expect(await alone(settlementOf(started, { runId: store.newRunId() }))).toBeNull();
    expect(await alone(settlementOf(started, { environment: "development" }))).toBeNull();
    expect((await store.flow(project)).returned).toBe(before.returned);
    expect(await alone(settlementOf(started))).not.toBeNull();
  });

  test("of many projects and environments is answered item by item and counted class by class", async () => {
    const [other, third] = [await store.addProject(), await store.addProject()];
    const environments = ["development", "production", "development"] as const;
    const attempts = [];
    for (const projectNo of [third, other]) {
      for (const environment of environments) {
        const [jobId = ""] = await store.addJobs(projectNo, 1, { environment });
        attempts.push(await store.start(nodeId, projectNo, jobId, { environment }));
      }
    }
    expect(await store.flow(third)).toMatchObject({ development_jobs: 2, production_jobs: 1 });
    const settlements = attempts.map((attempt, index) =>
      settlementOf(attempt, index === 1 ? failedWith("over") : {}),
    );
    const unknown = settlementOf({
      claim: store.claimOf(other, store.newJob(other).id),
      granted: { runId: store.newRunId() },
    });
    const { items } = await way.settle(store.db, [
      ...settlements.slice(0, 2),
      unknown,
      ...settlements.slice(2),
    ]);
    expect(items.map((item) => item?.status ?? null)).toEqual([
      "succeeded",
      "failed",
      null,
      "succeeded",
      "succeeded",
      "succeeded",
      "succeeded",
    ]);
    expect(items[0]?.jobId).toBe(attempts[0]?.claim.jobId ?? "");
    for (const projectNo of [third, other]) {
      expect(await store.flow(projectNo)).toMatchObject({
        development_jobs: 0,
        production_jobs: 0,
        returned: 3,
      });
    }
  });

  test("keeps the text of an error as it came, quotes, commas, braces and all", async () => {
    const attempt = await startOne();
    const error = `{"a", 'b'}\\ NULL \n\t€ "`;
    await way.settle(store.db, [settlementOf(attempt, { ...failedWith("over"), error })]);
    expect(await findRun(store.db, scope(), attempt.granted.runId)).toMatchObject({ error });
  });
});

const alone = async (settlement: Parameters<Way["settle"]>[1][number]) =>
  (await way.settle(store.db, [settlement])).items[0] ?? null;

async function now(): Promise<number> {
  const [row] = await store.query<{ now: number }>(
    "SELECT (extract(epoch FROM now()) * 1000)::float8 AS now",
  );
  return row?.now ?? 0;
}
