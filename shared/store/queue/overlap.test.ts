import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import { type Overlap, REPLACED_JOBS_MAX, spreadMsOf } from "../../domain/schedule.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { changeSchedule, createSchedule, type ScheduleToCreate } from "../resources/schedules.ts";
import {
  firingOf,
  keyCause,
  lastMinute,
  MINUTE_MS,
  scheduleOf,
  takeShard,
} from "../schedule-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { type FiringRow, listFirings } from "./firing-ledger.ts";
import { fireBoundSchedules, fireSchedules, listDueSchedules } from "./firings.ts";
import { settleAttempts } from "./settle.ts";
import { createShards, type HeldShard } from "./shards.ts";

/** Firings while jobs of their schedule are not over, and how much later their jobs are due. */

const SHARD = 3;
const FIRINGS = 5;

let store: TestStore;
let project: ProjectNo;
let held: HeldShard;
let node: number;
beforeAll(async () => {
  store = await startStore();
  await createShards(store.db, ["us-east"], SHARD + 1);
  node = await store.addNode();
});
beforeEach(async () => {
  project = await store.addProject();
  held = await takeShard(store, SHARD);
});
afterAll(() => store.stop());

const scope = () => ({ projectNo: project, environment: "production" as const });

/** A schedule whose instants of the last minutes are all due. */
async function create(overlap: Overlap | null, wish: Partial<ScheduleToCreate> = {}) {
  const nextRunAt = lastMinute() - FIRINGS * MINUTE_MS;
  const schedule = scheduleOf(scope(), SHARD, { overlap, nextRunAt, ...wish });
  expect(await createSchedule(store.db, schedule, keyCause(), null)).toBe("created");
  return schedule;
}

/** Fires the instant so many minutes after the first one, by the statement that a worker takes. Answers the job's id. */
async function fire(schedule: ScheduleToCreate, minutes: number) {
  const nextRunAt = (schedule.nextRunAt ?? 0) + minutes * MINUTE_MS;
  const firing = firingOf(schedule, held, { nextRunAt, firedFor: nextRunAt, thenAt: nextRunAt + MINUTE_MS });
  const found = await listDueSchedules(store.db, [SHARD], { sinceAt: 0, aheadMs: 0, limit: 10_000 });
  const due = found.find(({ scheduleId }) => scheduleId === schedule.id);
  const [fired] = await (due?.isBound ? fireBoundSchedules : fireSchedules)(store.db, [firing]);
  return { kind: fired?.kind, jobId: firing.jobId, fired };
}

/** The rows of the ledger, the oldest instant first. */
async function ledger({ id }: { id: string }): Promise<Omit<FiringRow, "firedFor">[]> {
  const rows = await listFirings(store.db, id, { fromAt: 0, toAt: Date.now() });
  return rows.sort((one, other) => one.firedFor - other.firedFor).map(({ firedFor: _, ...row }) => row);
}

async function statusOf(jobId: string): Promise<string> {
  const [row] = await store.query<{ open: number | null; ended: number | null; attempts: number | null }>(
    `SELECT o.attempt AS open, e.status AS ended, e.attempts
       FROM jobs j LEFT JOIN open_jobs o ON o.job_id = j.id LEFT JOIN ended_jobs e ON e.job_id = j.id WHERE j.id = $1`,
    [idToUuid(jobId)],
  );
  if (row === undefined) return "none";
  return row.ended === null ? "open" : `${["succeeded", "failed", "canceled"][row.ended]} ${row.attempts}`;
}

const start = (jobId: string, attempt = 1) => store.start(node, project, jobId, { attempt });
const settle = (jobId: string, runId: string, status: "succeeded" | "failed" | "queued") =>
  settleAttempts(store.db, [
    {
      ...scope(),
      region: "us-east",
      shard: SHARD,
      jobId,
      runId,
      status: status === "succeeded" ? "succeeded" : "failed",
      responseStatus: null,
      error: null,
      durationMs: 1,
      next: status === "queued" ? { status, waitMs: 0 } : { status },
    },
  ]);
const change = (schedule: ScheduleToCreate, wish: Partial<ScheduleToCreate>) =>
  changeSchedule(
    store.db,
    scope(),
    schedule.id,
    (found) => ({ ...found, ...wish, nextRunAt: undefined }),
    100,
    keyCause(),
  );

const FIRED = { skippedFor: null, dueAt: null, replaced: null, isBackfilled: false };
const SKIPPED = {
  jobId: null,
  skippedFor: "overlap" as const,
  dueAt: null,
  replaced: null,
  isBackfilled: false,
};

describe("a schedule that skips", () => {
  test("makes no job while one of it is queued, running or between attempts, and says so", async () => {
    const schedule = await create("skip");
    const { jobId } = await fire(schedule, 0);
    expect((await fire(schedule, 1)).kind).toBe("skipped");
    const { claim } = await start(jobId);
    expect((await fire(schedule, 2)).kind).toBe("skipped");
    await settle(jobId, claim.runId, "queued");
    expect((await fire(schedule, 3)).kind).toBe("skipped");
    const second = await start(jobId, 2);
    await settle(jobId, second.claim.runId, "failed");
    const last = await fire(schedule, 4);
    expect(last.kind).toBe("fired");
    expect(await ledger(schedule)).toEqual([
      { ...FIRED, jobId },
      SKIPPED,
      SKIPPED,
      SKIPPED,
      { ...FIRED, jobId: last.jobId },
    ]);
  });

  test("counts a job that was made by hand, and one that was reopened", async () => {
    const schedule = await create("skip");
    const [byHand = ""] = await store.addJobs(project, 1, { scheduleId: schedule.id, maxAttempts: 1 });
    expect((await fire(schedule, 0)).kind).toBe("skipped");
    const { claim } = await start(byHand);
    await settle(byHand, claim.runId, "failed");
    const again = store.newRunId();
    const retained = { ...scope(), sinceAt: 0 };
    expect(await retryRun(store.db, retained, claim.runId, again, keyCause())).toMatchObject({
      kind: "retried",
    });
    expect((await fire(schedule, 1)).kind).toBe("skipped");
  });

  test("counts a canceled job as over, although its attempt is in progress", async () => {
    const schedule = await create("skip");
    const { jobId } = await fire(schedule, 0);
    await start(jobId);
    await cancelJob(store.db, scope(), jobId, keyCause());
    expect((await fire(schedule, 1)).kind).toBe("fired");
  });

  test("counts a job that was made before it skipped, and none of another schedule", async () => {
    const other = await create(null);
    await fire(other, 0);
    const schedule = await create(null);
    await fire(schedule, 0);
    await change(schedule, { overlap: "skip" });
    expect((await fire(schedule, 1)).kind).toBe("skipped");
    await change(schedule, { overlap: "allow" });
    expect((await fire(schedule, 2)).kind).toBe("fired");
    await change(other, { overlap: "skip" });
    await store.query("DELETE FROM open_jobs WHERE schedule_id = $1", [idToUuid(other.id)]);
    expect((await fire(other, 1)).kind).toBe("fired");
  });

  test("without quota says that, whatever is in the way", async () => {
    project = await store.addProject({ plan: "hobby" });
    const schedule = await create("skip");
    await fire(schedule, 0);
    await store.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [project]);
    await fire(schedule, 1);
    expect((await ledger(schedule)).map(({ skippedFor }) => skippedFor)).toEqual([null, "quota"]);
  });
});

describe("a schedule that replaces", () => {
  test("cancels what has not started and makes its job, in the same statement", async () => {
    const schedule = await create("replace");
    const first = await fire(schedule, 0);
    const [byHand = ""] = await store.addJobs(project, 1, { scheduleId: schedule.id });
    const [stranger = ""] = await store.addJobs(project, 1);
    const second = await fire(schedule, 1);
    expect(second.kind).toBe("fired");
    expect(await Promise.all([first.jobId, byHand, stranger, second.jobId].map(statusOf))).toEqual([
      "canceled 0",
      "canceled 0",
      "open",
      "open",
    ]);
    expect(await ledger(schedule)).toEqual([
      { ...FIRED, jobId: first.jobId, replaced: 0 },
      { ...FIRED, jobId: second.jobId, replaced: 2 },
    ]);
  });

  test("leaves what has started: running, or between attempts", async () => {
    const schedule = await create("replace");
    const first = await fire(schedule, 0);
    const { claim } = await start(first.jobId);
    const second = await fire(schedule, 1);
    await settle(first.jobId, claim.runId, "queued");
    await fire(schedule, 2);
    expect(await statusOf(first.jobId)).toBe("open");
    expect(await statusOf(second.jobId)).toBe("canceled 0");
    expect((await ledger(schedule)).map(({ replaced }) => replaced)).toEqual([0, 0, 1]);
  });

  test("cancels what waits for a host that takes none now", async () => {
    const schedule = await create("replace");
    const first = await fire(schedule, 0);
    await store.query(
      "UPDATE open_jobs SET parked_due_at = due_at, due_at = NULL, parked_host = 'a' WHERE job_id = $1",
      [idToUuid(first.jobId)],
    );
    await fire(schedule, 1);
    expect(await statusOf(first.jobId)).toBe("canceled 0");
  });

  test("of a cancel and a claim the first one wins", async () => {
    const schedule = await create("replace");
    const first = await fire(schedule, 0);
    const session = await store.session();
    await session.query("BEGIN");
    // This session plays a claim that has locked the job, and commits while the firing waits for it.
    await session.query("UPDATE open_jobs SET due_at = NULL, run_id = $2, node_id = $3 WHERE job_id = $1", [
      idToUuid(first.jobId),
      idToUuid(store.newRunId()),
      node,
    ]);
    const firing = fire(schedule, 1);
    await store.untilBlocked();
    await session.query("COMMIT");
    expect((await firing).kind).toBe("fired");
    expect(await statusOf(first.jobId)).toBe("open");
    expect((await ledger(schedule)).map(({ replaced }) => replaced)).toEqual([0, 0]);
    const third = await fire(schedule, 2);
    const claim = store.claimOf(project, (await fire(schedule, 3)).jobId);
    expect(await statusOf(third.jobId)).toBe("canceled 0");
    expect(await store.start(node, project, claim.jobId)).toMatchObject({ granted: {} });
  });

  test("cancels nothing where it makes no job: without quota, too late, fired before, or gone", async () => {
    project = await store.addProject({ plan: "hobby" });
    const schedule = await create("replace");
    const { jobId } = await fire(schedule, 0);
    await store.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [project]);
    expect((await fire(schedule, 1)).kind).toBe("skipped");
    await store.query("UPDATE flows SET month_runs = 0 WHERE project_no = $1", [project]);
    // A clock that was set back may bring the same instant once more.
    await store.query("UPDATE schedules SET next_run_at = $2 WHERE id = $1", [
      idToUuid(schedule.id),
      new Date(schedule.nextRunAt ?? 0),
    ]);
    expect((await fire(schedule, 0)).kind).toBe("skipped");
    expect((await fire(schedule, 0)).kind).toBe("gone");
    const late = firingOf(schedule, held, {
      nextRunAt: (schedule.nextRunAt ?? 0) + MINUTE_MS,
      firedFor: null,
    });
    await store.query("UPDATE schedules SET next_run_at = next_run_at - interval '1 h' WHERE id = $1", [
      idToUuid(schedule.id),
    ]);
    const [fired] = await fireBoundSchedules(store.db, [
      { ...late, nextRunAt: late.nextRunAt - 60 * MINUTE_MS },
    ]);
    expect(fired?.kind).toBe("skipped");
    expect(await statusOf(jobId)).toBe("open");
    expect((await ledger(schedule)).map(({ replaced }) => replaced)).toEqual([0, null]);
  });

  test("cancels at most a thousand, the oldest first, and the next firing goes on", async () => {
    const schedule = await create("replace");
    const before = await store.addJobs(project, REPLACED_JOBS_MAX + 3, { scheduleId: schedule.id });
    await fire(schedule, 0);
    const left = await store.query<{ id: string }>(
      "SELECT job_id AS id FROM open_jobs WHERE schedule_id = $1 ORDER BY job_id",
      [idToUuid(schedule.id)],
    );
    const youngest = before.slice(-3).map(idToUuid);
    expect(left.map(({ id }) => id).slice(0, 3)).toEqual(youngest);
    expect(left).toHaveLength(4);
    await fire(schedule, 1);
    expect((await ledger(schedule)).map(({ replaced }) => replaced)).toEqual([REPLACED_JOBS_MAX, 4]);
  });

  test("is left alone by the statement for others, and one that replaces no longer is judged as what it is", async () => {
    const schedule = await create("replace");
    expect(await fireSchedules(store.db, [firingOf(schedule, held)])).toEqual([{ kind: "gone" }]);
    await change(schedule, { overlap: "skip" });
    expect(await fireBoundSchedules(store.db, [firingOf(schedule, held)])).toMatchObject([{ kind: "fired" }]);
    const nextRunAt = (schedule.nextRunAt ?? 0) + MINUTE_MS;
    const second = firingOf(schedule, held, { nextRunAt, firedFor: nextRunAt });
    expect(await fireBoundSchedules(store.db, [second])).toEqual([{ kind: "skipped" }]);
    expect((await ledger(schedule)).map(({ skippedFor }) => skippedFor)).toEqual([null, "overlap"]);
  });

  test("many at once that claims meet: no deadlock, and each job is either claimed or canceled", async () => {
    const schedules = await Promise.all(Array.from({ length: FIRINGS }, () => create("replace")));
    const made = await Promise.all(
      schedules.map(({ id }) => store.addJobs(project, 60, { scheduleId: id, maxAttempts: 1 })),
    );
    const jobs = made.flat().sort(() => Math.random() - 0.5);
    const firings = schedules.map((schedule) => firingOf(schedule, held));
    const [, ...claims] = await Promise.all([
      fireBoundSchedules(store.db, firings),
      ...jobs.map((jobId) =>
        start(jobId).then(
          () => jobId,
          () => null,
        ),
      ),
    ]);
    const claimed = new Set(claims.filter((jobId) => jobId !== null));
    for (const jobId of jobs) expect(await statusOf(jobId)).toBe(claimed.has(jobId) ? "open" : "canceled 0");
    const told = await Promise.all(schedules.map(ledger));
    const replaced = told.flat().reduce((sum, { replaced }) => sum + (replaced ?? 0), 0);
    expect(replaced).toBe(jobs.length - claimed.size);
  });
});

describe("a schedule with a spread", () => {
  test("makes jobs that are due later than their instants, always by the same time, and the ledger says when", async () => {
    const schedule = await create(null, { spreadSeconds: 30 });
    const spreadMs = spreadMsOf(schedule.id, 30) ?? 0;
    const first = await fire(schedule, 0);
    const second = await fire(schedule, 1);
    const at = schedule.nextRunAt ?? 0;
    const due = [at + spreadMs, at + MINUTE_MS + spreadMs];
    expect(await ledger(schedule)).toEqual([
      { jobId: first.jobId, skippedFor: null, dueAt: due[0] ?? 0, replaced: null, isBackfilled: false },
      { jobId: second.jobId, skippedFor: null, dueAt: due[1] ?? 0, replaced: null, isBackfilled: false },
    ]);
    const rows = await store.query<{ at: number }>(
      "SELECT (extract(epoch FROM run_at) * 1000)::float8 AS at FROM jobs WHERE schedule_id = $1 ORDER BY id",
      [idToUuid(schedule.id)],
    );
    expect(rows.map(({ at }) => at)).toEqual(due);
  });

  test("owes the attempt from then on", async () => {
    const at = lastMinute();
    const schedule = await create(null, { nextRunAt: at, cron: "0 0 1 1 *", spreadSeconds: 3_600 });
    const spreadMs = spreadMsOf(schedule.id, 3_600) ?? 0;
    const { fired } = await fire(schedule, 0);
    const [owed] = fired?.kind === "fired" ? fired.owed : [];
    expect(Math.abs((owed?.dueAt ?? 0) - Math.max(at + spreadMs, Date.now()))).toBeLessThan(MINUTE_MS);
    if (at + spreadMs > Date.now()) expect(owed?.dueAt).toBe(at + spreadMs);
  });

  test("shows when a job is due as it was at the firing, also a spread of nothing", async () => {
    const schedule = await create("allow", { spreadSeconds: 0 });
    await fire(schedule, 0);
    await change(schedule, { spreadSeconds: 30 });
    await fire(schedule, 1);
    const at = schedule.nextRunAt ?? 0;
    expect((await ledger(schedule)).map(({ dueAt }) => dueAt)).toEqual([
      at,
      at + MINUTE_MS + (spreadMsOf(schedule.id, 30) ?? 0),
    ]);
  });
});
