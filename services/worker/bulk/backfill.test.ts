import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { PER_SECOND_BOUNDS, pagesOf } from "../../../shared/domain/bulk.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import type { ProjectNo, Scope } from "../../../shared/domain/scope.ts";
import { listFirings } from "../../../shared/store/queue/firing-ledger.ts";
import { fireSchedules } from "../../../shared/store/queue/firings.ts";
import { emptyGateCalls } from "../../../shared/store/queue/gate-calls.ts";
import { readLedger } from "../../../shared/store/queue/ledger.ts";
import { changeFlowKey, findFlowKey } from "../../../shared/store/resources/flow-keys.ts";
import {
  createSchedule,
  deleteSchedule,
  type ScheduleToCreate,
} from "../../../shared/store/resources/schedules.ts";
import { firingOf, lastMinute, MINUTE_MS, scheduleOf } from "../../../shared/store/schedule-test-support.ts";
import { startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { keyCause } from "../../../test/support/cause.ts";
import { askFor, type BulkWish, bulkOf, SHARD, startWorkerOf, type TestWorker } from "./test-support.ts";

let store: TestStore;
let project: ProjectNo;
let worker: TestWorker;
beforeAll(async () => {
  store = await startStore();
});
beforeEach(async () => {
  worker = await startWorkerOf(store);
  project = await store.addProject();
});
afterAll(() => store.stop());

const AGE_MINUTES = 10;
const scope = (): Scope => ({ projectNo: project, environment: "production" });
const iso = (at: number) => new Date(at).toISOString();
/** The instant so many minutes ago. */
let now = 0;
const ago = (minutes: number) => now - minutes * MINUTE_MS;

/** A schedule of every minute that began ten minutes ago and missed all since. */
async function create(wish: Partial<ScheduleToCreate> = {}): Promise<ScheduleToCreate> {
  now = lastMinute();
  const schedule = scheduleOf(scope(), SHARD, { nextRunAt: now + MINUTE_MS, ...wish });
  expect(await createSchedule(store.db, schedule, keyCause(), null)).toBe("created");
  await store.query("UPDATE timetables SET since = $2 WHERE schedule_id = $1", [
    idToUuid(schedule.id),
    iso(ago(AGE_MINUTES) - 1),
  ]);
  return schedule;
}

async function backfill(
  schedule: ScheduleToCreate,
  fromMinutes: number,
  toMinutes: number,
  wish: BulkWish = {},
) {
  const filter = { schedule_id: schedule.id, from: iso(ago(fromMinutes)), to: iso(ago(toMinutes)) };
  const id = await askFor(store, project, "backfill", filter, wish);
  await worker.finish(id);
  return bulkOf(store, project, id);
}

/** The rows that the ledger shows, oldest first. */
async function ledger({ id, nextRunAt }: ScheduleToCreate) {
  const place = { fromAt: ago(AGE_MINUTES + 1), toAt: ago(0), untilNo: null, limit: 100 };
  const { rows } = await readLedger(store.db, { id, nextRunAt }, place, () => undefined);
  return rows.reverse();
}
const statuses = async (schedule: ScheduleToCreate) => (await ledger(schedule)).map(({ status }) => status);
const jobsOf = ({ id }: ScheduleToCreate) =>
  store.query<{ id: string; run_at: Date; due_at: Date | null }>(
    `SELECT j.id, j.run_at, o.due_at, j.target_url, j.payload, j.max_attempts, j.base_seconds, j.cap_seconds, j.tags, j.region, o.tags AS open_tags
       FROM jobs j JOIN open_jobs o ON o.job_id = j.id WHERE j.schedule_id = $1 ORDER BY j.run_at`,
    [idToUuid(id)],
  );

test("each instant of the range that did not fire has a job, due at once, and the ledger says so", async () => {
  const schedule = await create({ tags: ["a"], spreadSeconds: 30, overlap: "skip" });
  const askedAt = Date.now();
  expect(await backfill(schedule, 6, 3)).toMatchObject({
    ...{ status: "done", matched: 3, done: 3, skipped: 0, failed: 0 },
    sample: [6, 5, 4].map((minutes) => iso(ago(minutes))),
  });
  const jobs = await jobsOf(schedule);
  expect(jobs).toMatchObject(
    [6, 5, 4].map((minutes) => ({
      run_at: new Date(ago(minutes)),
      ...{ target_url: schedule.targetUrl, payload: schedule.payload, region: 0 },
      ...{ max_attempts: 2, base_seconds: 3, cap_seconds: 4, tags: ["a"], open_tags: ["a"] },
    })),
  );
  for (const { due_at } of jobs) expect(due_at?.getTime()).toBeGreaterThanOrEqual(askedAt - 60_000);
  const missed = (count: number) => Array(count).fill("missed_outage");
  expect(await statuses(schedule)).toEqual([...missed(4), ...Array(3).fill("backfilled"), ...missed(4)]);
  expect((await ledger(schedule)).slice(4, 7).map(({ jobId, dueAt }) => [jobId !== null, dueAt])).toEqual(
    Array(3).fill([true, null]),
  );
});

test("a second one of the same range matches nothing, and of a wider one what has no job", async () => {
  const schedule = await create();
  expect((await backfill(schedule, 6, 3)).matched).toBe(3);
  expect(await backfill(schedule, 6, 3)).toMatchObject({ status: "done", matched: 0 });
  expect(await backfill(schedule, 8, 2)).toMatchObject({ matched: 3, done: 3 });
  expect((await jobsOf(schedule)).map(({ run_at }) => run_at.getTime())).toEqual([8, 7, 6, 5, 4, 3].map(ago));
});

test("instants that fired are left alone; those skipped for quota, overlap or a pause are not", async () => {
  const schedule = await create();
  const record = (minutes: number, jobId: string | null, skippedFor: number | null) =>
    store.query("INSERT INTO firings (schedule_id, fired_for, job_id, skipped_for) VALUES ($1, $2, $3, $4)", [
      idToUuid(schedule.id),
      iso(ago(minutes)),
      jobId,
      skippedFor,
    ]);
  await record(5, "00000000-0000-0000-0000-000000000001", null);
  await record(4, null, null);
  await record(3, null, 1);
  await store.query(`UPDATE timetables SET replaced_at = now() WHERE schedule_id = $1`, [
    idToUuid(schedule.id),
  ]);
  await store.query(
    "INSERT INTO timetables (since, schedule_id, paused, cron, timezone) VALUES ($2, $1, true, '* * * * *', 'UTC')",
    [idToUuid(schedule.id), iso(ago(3) + 1)],
  );
  const before = ["fired", "skipped_quota", "skipped_overlap", "skipped_paused", "skipped_paused"] as const;
  expect((await statuses(schedule)).slice(5, 10)).toEqual([...before]);
  expect(await backfill(schedule, 5, 0)).toMatchObject({ matched: 4, done: 4 });
  expect((await statuses(schedule)).slice(5, 10)).toEqual(["fired", ...Array(4).fill("backfilled")]);
});

test("an instant that has a job by the time of its turn is skipped", async () => {
  const schedule = await create();
  const filter = { schedule_id: schedule.id, from: iso(ago(3)), to: iso(ago(0)) };
  const first = await askFor(store, project, "backfill", filter);
  const second = await askFor(store, project, "backfill", filter);
  await worker.countAll(first);
  await worker.countAll(second);
  await worker.finish(first);
  expect(await worker.start(second)).toBe(true);
  await worker.finish(second);
  expect(await bulkOf(store, project, second)).toMatchObject({ matched: 3, done: 0, skipped: 3, failed: 0 });
  expect((await jobsOf(schedule)).length).toBe(3);
});

test("an instant that is due and not fired yet is left to its firing, which comes once", async () => {
  const schedule = await create({ nextRunAt: lastMinute() - 2 * MINUTE_MS });
  expect((await backfill(schedule, 4, 0)).matched).toBe(2);
  const nextRunAt = ago(2);
  const firing = firingOf(schedule, worker.held, { nextRunAt, firedFor: nextRunAt, thenAt: ago(1) });
  expect(await fireSchedules(store.db, [firing])).toMatchObject([{ kind: "fired" }]);
  const window = { fromAt: ago(5), toAt: ago(0) };
  const rows = (await listFirings(store.db, schedule.id, window)).sort(
    (one, other) => one.firedFor - other.firedFor,
  );
  expect(rows.map(({ firedFor, isBackfilled }) => [firedFor, isBackfilled])).toEqual([
    [ago(4), true],
    [ago(3), true],
    [ago(2), false],
  ]);
});

describe("instants fail", () => {
  test("while the month has no run left, and leave no trace in the ledger", async () => {
    project = await store.addProject({ plan: "hobby" });
    const schedule = await create();
    await store.query("UPDATE flows SET month_runs = month_runs_max WHERE project_no = $1", [project]);
    expect(await backfill(schedule, 3, 0)).toMatchObject({ status: "done", matched: 3, done: 0, failed: 3 });
    expect(await jobsOf(schedule)).toEqual([]);
    expect((await statuses(schedule)).slice(-4)).toEqual(Array(4).fill("missed_outage"));
  });

  test("of a schedule that was deleted since", async () => {
    const schedule = await create();
    const filter = { schedule_id: schedule.id, from: iso(ago(3)), to: iso(ago(0)) };
    const counted = await askFor(store, project, "backfill", filter);
    await worker.countAll(counted);
    const uncounted = await askFor(store, project, "backfill", filter);
    await deleteSchedule(store.db, scope(), schedule.id, keyCause());
    await worker.finish(counted);
    expect(await bulkOf(store, project, counted)).toMatchObject({ matched: 3, done: 0, failed: 3 });
    await worker.countAll(uncounted);
    expect(await bulkOf(store, project, uncounted)).toMatchObject({ status: "running", matched: 0 });
  });
});

test("what the plan does not show any more is not matched", async () => {
  project = await store.addProject({ plan: "hobby" });
  // Half a day from now, so that no instant comes to the edge of the three days while the test runs.
  const hour = (new Date().getUTCHours() + 12) % 24;
  const schedule = await create({ cron: `0 ${hour} * * *` });
  await store.query("UPDATE timetables SET since = now() - interval '30 days' WHERE schedule_id = $1", [
    idToUuid(schedule.id),
  ]);
  const bulk = await backfill(schedule, 30 * 1_440, 0, { dryRun: true });
  expect(bulk).toMatchObject({ status: "counted", matched: 3 });
});

test("more instants than a page, over several timetables, are each matched once and made in their order", async () => {
  const schedule = await create({ cron: "*/30 * * * * *" });
  await store.query("UPDATE timetables SET since = $2, replaced_at = now() WHERE schedule_id = $1", [
    idToUuid(schedule.id),
    iso(ago(700) - 1),
  ]);
  await store.query(
    "INSERT INTO timetables (since, schedule_id, paused, cron, timezone) VALUES ($2, $1, false, '* * * * *', 'UTC')",
    [idToUuid(schedule.id), iso(ago(50) - 1)],
  );
  const count = 2 * 650 + 50;
  const id = await askFor(store, project, "backfill", {
    schedule_id: schedule.id,
    from: iso(ago(700)),
    to: iso(ago(0)),
  });
  let pages = 1;
  while (await worker.count(id)) pages++;
  expect(pages).toBe(3);
  expect(await bulkOf(store, project, id)).toMatchObject({
    matched: count,
    sample: [0, 1, 2, 3, 4].map((halves) => iso(ago(700) + halves * 30_000)),
  });
  for (let page = 1; page <= 3; page++) await worker.judge(id);
  const made = (await jobsOf(schedule)).map(({ run_at }) => run_at.getTime());
  const { membersMax } = pagesOf(PER_SECOND_BOUNDS.max);
  expect(made).toEqual(Array.from({ length: 3 * membersMax }, (_, half) => ago(700) + half * 30_000));
});

test("two workers at once make one job of each instant", async () => {
  const schedule = await create();
  const filter = { schedule_id: schedule.id, from: iso(ago(10)), to: iso(ago(0)) };
  const id = await askFor(store, project, "backfill", filter, { perSecond: 20 });
  await worker.countAll(id);
  const mate = await startWorkerOf(store, { held: worker.held });
  while ((await bulkOf(store, project, id)).status === "running")
    await Promise.all([worker.judge(id), mate.judge(id), mate.judge(id)]);
  expect(await bulkOf(store, project, id)).toMatchObject({ matched: 10, done: 10 });
  expect((await jobsOf(schedule)).length).toBe(10);
});

test("a job that its flow key keeps back is not announced as due", async () => {
  const schedule = await create({ flow: { key: "one-at-a-time", concurrency: 1 } });
  const filter = { schedule_id: schedule.id, from: iso(ago(6)), to: iso(ago(3)) };
  const id = await askFor(store, project, "backfill", filter);
  await worker.countAll(id);
  const judged = await worker.judge(id);
  const [first, ...others] = await jobsOf(schedule);
  expect(others.map(({ due_at }) => due_at)).toEqual([null, null]);
  expect(judged?.owed.map((owed) => idToUuid(owed.id))).toEqual([first?.id ?? ""]);
});

test("its jobs give the schedule's limits to their flow key again, which calls what waits for them", async () => {
  const rate = { count: 1_000, per_seconds: 1 };
  const schedule = await create({ flow: { key: "paced", rate } });
  const limits = { concurrency: null, rate: { count: 1, per_seconds: 86_400 } };
  await changeFlowKey(store.db, scope(), "paced", limits, keyCause());
  await emptyGateCalls(store.db);
  await backfill(schedule, 6, 3);
  expect(await findFlowKey(store.db, scope(), "paced")).toMatchObject({ rate });
  expect(await store.query("SELECT gate FROM gate_calls WHERE project_no = $1", [project])).toEqual([
    { gate: "kpaced" },
  ]);
});
