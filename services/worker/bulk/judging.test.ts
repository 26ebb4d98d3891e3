import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { idToUuid, RUN_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import type { ProjectNo, Scope } from "../../../shared/domain/scope.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import { addEndpoint } from "../../../shared/store/delivery-test-support.ts";
import { settleAttempts } from "../../../shared/store/queue/settle.ts";
import { abortBulk } from "../../../shared/store/resources/bulk-operations.ts";
import { findFlowKey, listFlowKeys } from "../../../shared/store/resources/flow-keys.ts";
import { cancelJob, retryRun } from "../../../shared/store/resources/jobs-by-hand.ts";
import { inTime, settlementOf, startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { keyCause } from "../../../test/support/cause.ts";
import {
  addFailedJobs,
  askFor,
  type BulkWish,
  bulkOf,
  standings,
  startWorkerOf,
  type TestWorker,
} from "./test-support.ts";

let store: TestStore;
let nodeId: number;
let project: ProjectNo;
let worker: TestWorker;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
beforeEach(async () => {
  worker = await startWorkerOf(store);
  project = await store.addProject();
});
afterAll(() => store.stop());

const scope = (): Scope => ({ projectNo: project, environment: "production" });
const ask = async (action: "cancel" | "retry", wish: BulkWish = {}) => {
  const id = await askFor(store, project, action, { all: true }, wish);
  await worker.countAll(id);
  return id;
};
const abort = (id: string) => abortBulk(store.db, scope(), id, keyCause(), null);
const standing = (jobs: readonly string[]) => standings(store, jobs, idToUuid);
const leftOf = async (id: string) =>
  (await store.query("SELECT FROM bulk_members WHERE bulk_id = $1", [idToUuid(id)])).length;
const lastRunOf = async (id: string) => {
  const [row] = await store.query<{ id: string }>(
    "SELECT id FROM runs WHERE job_id = $1 ORDER BY attempt DESC LIMIT 1",
    [idToUuid(id)],
  );
  return uuidToId(RUN_PREFIX, row?.id ?? "");
};

describe("members that have changed since they were counted", () => {
  test("are skipped by a cancel once they are over; those that have started are canceled", async () => {
    const [waiting = "", canceled = "", ended = "", started = ""] = await store.addJobs(project, 4);
    const first = await store.start(nodeId, project, ended);
    const id = await ask("cancel");
    await cancelJob(store.db, scope(), canceled, keyCause());
    await settleAttempts(store.db, [settlementOf(first)]);
    await store.start(nodeId, project, started);
    await worker.finish(id);
    expect(await bulkOf(store, project, id)).toMatchObject({
      status: "done",
      matched: 4,
      done: 2,
      skipped: 2,
      failed: 0,
    });
    expect(await standing([waiting, canceled, ended, started])).toEqual([
      "canceled 0",
      "canceled 0",
      "succeeded 1",
      "canceled 1",
    ]);
  });

  test("are skipped by a retry once they run, or are over in another way", async () => {
    const jobs = await addFailedJobs(store, nodeId, project, 4);
    const [running = "", canceled = "", failed = "", untouched = ""] = jobs;
    const id = await ask("retry");
    for (const job of [running, canceled, failed]) {
      const retained = { ...scope(), sinceAt: 0 };
      await retryRun(store.db, retained, await lastRunOf(job), store.newRunId(), keyCause());
    }
    await cancelJob(store.db, scope(), canceled, keyCause());
    const again = await store.start(nodeId, project, failed, { attempt: 2 });
    await settleAttempts(store.db, [settlementOf(again, { status: "failed", next: { status: "failed" } })]);
    await worker.finish(id);
    // A job that has failed once more is retried once more.
    expect(await bulkOf(store, project, id)).toMatchObject({ matched: 4, done: 2, skipped: 2, failed: 0 });
    expect(await standing([running, canceled, failed, untouched])).toEqual([
      "running 2",
      "canceled 2",
      "running 3",
      "running 2",
    ]);
  });
});

describe("a retry", () => {
  test("fails where the last run has left retention", async () => {
    const [gone = "", kept = ""] = await addFailedJobs(store, nodeId, project, 2);
    await store.query("UPDATE runs SET id = '00000000-0000-0000-0000-000000000001' WHERE job_id = $1", [
      idToUuid(gone),
    ]);
    const id = await ask("retry");
    await worker.finish(id);
    expect(await bulkOf(store, project, id)).toMatchObject({ matched: 2, done: 1, skipped: 0, failed: 1 });
    expect(await standing([gone, kept])).toEqual(["failed 1", "running 2"]);
  });

  test("counts each run, and fails from where the month has none left, without waiting for the rollover", async () => {
    project = await store.addProject({ plan: "hobby" });
    const jobs = await addFailedJobs(store, nodeId, project, 6);
    const left = 2;
    await store.query("UPDATE flows SET month_runs = month_runs_max - $2 WHERE project_no = $1", [
      project,
      left,
    ]);
    const id = await ask("retry", { perSecond: 30 });
    await worker.finish(id);
    expect(await bulkOf(store, project, id)).toMatchObject({
      status: "done",
      matched: 6,
      done: left,
      failed: 4,
    });
    expect(await standing(jobs)).toEqual([...Array(left).fill("running 2"), ...Array(4).fill("failed 1")]);
    expect((await store.flow(project)).month_runs).toBe(10_000);
    const [usage] = await store.query<{ runs: number }>(
      "SELECT sum(runs)::int AS runs FROM usage_days WHERE project_no = $1",
      [project],
    );
    expect(usage?.runs).toBe(6 + left);
  });

  test("fails a job that has as many attempts as one may have", async () => {
    const [id = ""] = await addFailedJobs(store, nodeId, project, 1);
    for (const table of ["ended_jobs", "runs"]) {
      const column = table === "runs" ? "attempt" : "attempts";
      await store.query(`UPDATE ${table} SET ${column} = 32767 WHERE job_id = $1`, [idToUuid(id)]);
    }
    const bulk = await ask("retry");
    await worker.finish(bulk);
    expect(await bulkOf(store, project, bulk)).toMatchObject({ done: 0, failed: 1 });
  });

  test("goes on while the project is held: what it makes waits", async () => {
    const jobs = await addFailedJobs(store, nodeId, project, 3);
    await store.query("UPDATE flows SET held = true WHERE project_no = $1", [project]);
    const id = await ask("retry");
    await worker.finish(id);
    expect(await bulkOf(store, project, id)).toMatchObject({ status: "done", done: 3 });
    expect(await standing(jobs)).toEqual(Array(3).fill("running 2"));
  });
});

test("job.canceled is told once of each, however often the operation is asked for", async () => {
  await addEndpoint(store, project, { events: ["job.canceled"] });
  await store.addJobs(project, 5);
  await worker.finish(await ask("cancel"));
  await worker.finish(await ask("cancel"));
  const events = await store.query("SELECT FROM events WHERE project_no = $1 AND type = 2", [project]);
  const deliveries = await store.query("SELECT FROM open_deliveries WHERE project_no = $1", [project]);
  expect([events.length, deliveries.length]).toEqual([5, 5]);
});

test("an operation without members is over at once", async () => {
  const id = await ask("retry");
  expect((await worker.judge(id))?.isOver).toBe(true);
  expect(await bulkOf(store, project, id)).toMatchObject({
    status: "done",
    matched: 0,
    done: 0,
    skipped: 0,
    failed: 0,
  });
});

describe("the pace", () => {
  /** The most members within a second, by the starts of their runs. */
  async function mostInSecond(): Promise<number> {
    const rows = await store.query<{ at: string }>(
      "SELECT (extract(epoch FROM started_at) * 1e6)::bigint AS at FROM open_jobs WHERE project_no = $1 AND run_id IS NOT NULL ORDER BY 1",
      [project],
    );
    const starts = rows.map(({ at }) => Number(at));
    return Math.max(
      ...starts.map((at, index) => starts.slice(index).filter((later) => later < at + 1e6).length),
    );
  }

  test.each([1, 7, 20])(
    "%d a second is never exceeded, over five workers and restarts",
    async (perSecond) => {
      const count = perSecond * 2 + 1;
      await addFailedJobs(store, nodeId, project, count);
      const id = await ask("retry", { perSecond });
      const isOver = async () => (await bulkOf(store, project, id)).status === "done";
      const loop = async () => {
        // A worker that begins anew each time, and never waits.
        while (!(await isOver())) await (await startWorkerOf(store, { held: worker.held })).judge(id);
      };
      await Promise.all(Array.from({ length: 5 }, loop));
      expect(await bulkOf(store, project, id)).toMatchObject({ matched: count, done: count });
      expect(await mostInSecond()).toBeLessThanOrEqual(perSecond);
    },
  );

  test("lets no page go further when the second is used up, and says for how long", async () => {
    await inTime(1_000, async (begin) => {
      await addFailedJobs(store, nodeId, project, 5);
      const id = await ask("retry", { perSecond: 2 });
      begin();
      expect(await worker.judge(id)).toMatchObject({ done: 1, waitMs: 0 });
      const second = await worker.judge(id);
      expect(second).toMatchObject({ done: 1, isOver: false });
      expect(second?.waitMs).toBeGreaterThan(0);
      expect(second?.waitMs).toBeLessThanOrEqual(1_000);
      const third = await worker.judge(id);
      expect(third).toMatchObject({ done: 0, skipped: 0, failed: 0, isOver: false });
    });
  });

  test("does not wait for what it notes of the future, after the clock was set back", async () => {
    await addFailedJobs(store, nodeId, project, 2);
    const id = await ask("retry", { perSecond: 1 });
    await store.query(
      "UPDATE bulk_operations SET judged_at = ARRAY[now() + interval '1 hour'], judged_counts = '{1}' WHERE id = $1",
      [idToUuid(id)],
    );
    expect(await worker.judge(id)).toMatchObject({ done: 1 });
  });
});

describe("a worker that dies", () => {
  /** A database that breaks at the statement of this name, before or after it is done. */
  const breaking = (name: string, when: "before" | "after"): Database => ({
    ...store.db,
    async run<Row>(asked: string, text: string, values: unknown[]) {
      if (asked !== name) return store.db.run<Row>(asked, text, values);
      if (when === "after") await store.db.run<Row>(asked, text, values);
      throw new StoreUnavailable("the connection was cut");
    },
  });

  test.each([
    ["retry", "before"],
    ["retry", "after"],
    ["cancel", "before"],
    ["cancel", "after"],
  ] as const)(
    "at each page of a %s, %s its commit: the next one goes on at the very member",
    async (action, when) => {
      const count = 23;
      const jobs =
        action === "retry"
          ? await addFailedJobs(store, nodeId, project, count)
          : await store.addJobs(project, count);
      const id = await askFor(store, project, action, { all: true }, { perSecond: 50 });
      for (const name of ["count_bulk_members", `${action}_bulk_members`]) {
        const broken = await startWorkerOf(store, { db: breaking(name, when), held: worker.held });
        await expect(broken.finish(id)).rejects.toThrow(StoreUnavailable);
        // The next worker owns the shard by another epoch.
        worker = await startWorkerOf(store);
      }
      for (let page = 0; page < 20 && (await bulkOf(store, project, id)).status !== "done"; page++) {
        const broken = await startWorkerOf(store, {
          db: breaking(`${action}_bulk_members`, when),
          held: worker.held,
        });
        if (when === "after") await broken.judge(id).catch(() => null);
        else await worker.judge(id);
      }
      await worker.finish(id);
      expect(await bulkOf(store, project, id)).toMatchObject({
        ...{ status: "done", matched: count, done: count, skipped: 0, failed: 0 },
      });
      expect(await standing(jobs)).toEqual(
        Array(count).fill(action === "retry" ? "running 2" : "canceled 0"),
      );
      if (action === "retry") expect((await store.flow(project)).month_runs).toBe(2 * count);
      expect(await leftOf(id)).toBe(0);
    },
  );

  test("within the statement leaves nothing of it", async () => {
    const jobs = await addFailedJobs(store, nodeId, project, 3);
    const id = await ask("retry");
    const before = await bulkOf(store, project, id);
    const holder = await store.session();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM ended_jobs WHERE job_id = $1 FOR UPDATE", [idToUuid(jobs[1] ?? "")]);
    const judging = worker.judge(id).catch((error: unknown) => error);
    await store.untilBlocked();
    await store.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%bulk_operations%'`,
    );
    expect(await judging).toBeInstanceOf(StoreUnavailable);
    await holder.query("COMMIT");
    expect(await bulkOf(store, project, id)).toEqual(before);
    expect(await standing(jobs)).toEqual(Array(3).fill("failed 1"));
    await worker.finish(id);
    expect(await standing(jobs)).toEqual(Array(3).fill("running 2"));
  });

  test("and was replaced does nothing more, although it does not know", async () => {
    const jobs = await addFailedJobs(store, nodeId, project, 3);
    const id = await ask("retry", { perSecond: 10 });
    const late = worker;
    await late.judge(id);
    worker = await startWorkerOf(store);
    expect(await late.judge(id)).toBeNull();
    expect(await standing(jobs)).toEqual(["running 2", "failed 1", "failed 1"]);
    await worker.finish(id);
    expect(await bulkOf(store, project, id)).toMatchObject({ done: 3 });
  });
});

test("a retry makes a flow key known again that was forgotten, and its jobs are counted there", async () => {
  const key = "forgotten";
  const jobs = await addFailedJobs(store, nodeId, project, 2, { flow: { key } });
  await addFailedJobs(store, nodeId, project, 1);
  await store.query("DELETE FROM flow_keys WHERE project_no = $1", [project]);
  await worker.finish(await ask("retry"));
  expect(await findFlowKey(store.db, scope(), key)).toMatchObject({ concurrency: null, inUse: 0 });
  for (const job of jobs) await store.start(nodeId, project, job, { attempt: 2 });
  expect(
    (await listFlowKeys(store.db, scope(), { after: null, limit: 2 })).map(({ inUse }) => inUse),
  ).toEqual([2]);
});

test.each(["retry", "cancel"] as const)(
  "two workers that judge a %s at once: each member once",
  async (action) => {
    const count = 40;
    const jobs =
      action === "retry"
        ? await addFailedJobs(store, nodeId, project, count)
        : await store.addJobs(project, count);
    const id = await ask(action, { perSecond: 100 });
    const mates = [
      worker,
      ...(await Promise.all([1, 2, 3].map(() => startWorkerOf(store, { held: worker.held })))),
    ];
    let sum = 0;
    while ((await bulkOf(store, project, id)).status === "running") {
      const pages = await Promise.all(mates.map((mate) => mate.judge(id)));
      sum += pages.reduce((done, page) => done + (page?.done ?? 0), 0);
    }
    expect(sum).toBe(count);
    expect(await bulkOf(store, project, id)).toMatchObject({
      matched: count,
      done: count,
      skipped: 0,
      failed: 0,
    });
    expect(await standing(jobs)).toEqual(Array(count).fill(action === "retry" ? "running 2" : "canceled 0"));
  },
);

describe("an abort", () => {
  test("lets nothing be done after its answer, and tells what was done", async () => {
    const jobs = await addFailedJobs(store, nodeId, project, 9);
    const id = await ask("retry", { perSecond: 30 });
    const remembered = await worker.find(id);
    await worker.judge(id);
    const aborted = await abort(id);
    expect(aborted).toMatchObject({ status: "aborted", matched: 9, done: 3, skipped: 0, failed: 0 });
    expect(await worker.judge(id)).toBeNull();
    expect(await worker.judge(id, remembered)).toBeNull();
    expect(await bulkOf(store, project, id)).toMatchObject({ status: "aborted", done: 3 });
    expect(await standing(jobs)).toEqual([...Array(3).fill("running 2"), ...Array(6).fill("failed 1")]);
  });

  test("waits for the page that is being judged, and counts it", async () => {
    const jobs = await addFailedJobs(store, nodeId, project, 4);
    const id = await ask("retry", { perSecond: 20 });
    const holder = await store.session();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM ended_jobs WHERE job_id = $1 FOR UPDATE", [idToUuid(jobs[1] ?? "")]);
    const judging = worker.judge(id);
    await store.untilBlocked();
    const aborting = abort(id);
    await store.untilBlocked(2);
    await holder.query("COMMIT");
    expect(await judging).toMatchObject({ done: 2 });
    expect(await aborting).toMatchObject({ status: "aborted", done: 2 });
    expect(await standing(jobs)).toEqual([...Array(2).fill("running 2"), ...Array(2).fill("failed 1")]);
  });
});
