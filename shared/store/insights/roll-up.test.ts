import { afterAll, beforeAll, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { join } from "node:path";
import { passNearEnd } from "../../../test/support/boundary.ts";
import { keyCause } from "../../../test/support/cause.ts";
import { openTestDatabase } from "../../../test/support/database.ts";
import { createIdSource, idToUuid, JOB_PREFIX } from "../../domain/ids.ts";
import { UNSENT_RUN_ERROR } from "../../domain/run.ts";
import type { ProjectNo, Region } from "../../domain/scope.ts";
import type { Settlement } from "../queue/settle.ts";
import { createJobs } from "../resources/job-creation.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { failedWith, settlementOf, settleShortFirst, startStore, type TestStore } from "../test-support.ts";
import { findInsights } from "./insights.ts";
import { purgeInsights } from "./purge.ts";
import { takeStep } from "./roll-up.ts";
import { closeAll, outsetOf, rollUp } from "./test-support.ts";

setDefaultTimeout(600_000);

const MINUTE_MS = 60_000;
const DAY_MS = 86_400_000;

let store: TestStore;
let nodeId: number;
let project: ProjectNo;
beforeAll(async () => {
  store = await startStore({ connections: 8 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());
/** The state is as a migration leaves it, except that earlier runs count. */
beforeEach(async () => {
  project = await store.addProject();
  await store.query(
    `UPDATE insight_progress
        SET settled_until = pg_snapshot_xmin(pg_current_snapshot())::text::bigint, counted_since = '2020-01-01', created_until = date_trunc('minute', now()) - interval '30 s',
            recounted_until = date_trunc('minute', now()) - interval '5 min', closed_project = '{0,0,0,0}',
            closed_until = ARRAY(SELECT date_bin(w, now(), 'epoch') FROM unnest('{10 min,1 hour,6 hours,1 day}'::interval[]) WITH ORDINALITY AS l (w, n) ORDER BY n)`,
  );
});

const insightsOf = (
  region: Region | null = null,
  period: "1h" | "24h" | "7d" | "30d" | "90d" = "1h",
  of = project,
) => findInsights(store.db, { projectNo: of, environment: "production" }, { period, region });
/** The counts of the totals. */
async function counts(...asked: Parameters<typeof insightsOf>) {
  const { totals } = await insightsOf(...asked);
  const { created, succeeded, failed, timedOut } = totals;
  return { created, succeeded, failed, timedOut };
}
async function startOne(wish: Parameters<TestStore["addJobs"]>[2] = {}) {
  const [jobId = ""] = await store.addJobs(project, 1, wish);
  return store.start(nodeId, project, jobId, wish.region ? { region: wish.region } : {});
}
async function settleOne(wish: Partial<Settlement> = {}, job: Parameters<TestStore["addJobs"]>[2] = {}) {
  const attempt = await startOne(job);
  await settleShortFirst(store.db, [settlementOf(attempt, { lateMs: 4, ...wish })]);
  return attempt;
}
const NONE = { created: 0, succeeded: 0, failed: 0, timedOut: 0 };

describe("the roll-up", () => {
  test("counts jobs and runs, how late they were and how long they took, and what they waited for", async () => {
    await settleOne({ lateMs: 10, durationMs: 30 });
    await settleOne({ ...failedWith("over"), lateMs: 20, durationMs: 40 });
    await settleOne({
      ...failedWith("over"),
      status: "timed_out",
      responseStatus: null,
      lateMs: 2_000,
      waitedFor: "quota",
      durationMs: 45,
    });
    await settleOne({ lateMs: 1_500, waitedFor: "concurrency", durationMs: 20 }, { region: "us-west" });
    // The lateness of this run is unknown.
    await settleOne({ lateMs: undefined });
    await rollUp(store.db);

    const { totals, hosts, buckets } = await insightsOf();
    expect(await counts()).toEqual({ created: 5, succeeded: 3, failed: 1, timedOut: 1 });
    expect(totals.late.percentiles()).toMatchObject({ p50: 10, max: 20 });
    expect(totals.lateAll().percentiles()).toMatchObject({ p50: 20, max: 2_000 });
    expect(totals.durations.percentiles()).toMatchObject({ p50: 30, max: 45 });
    expect(Object.fromEntries(totals.waitedFor)).toEqual({ quota: 1, concurrency: 1 });
    expect(hosts.shown()).toEqual([
      { host: "target.example", runs: 5, failed: 2, durationP99Ms: 45, commonestError: "status_500" },
    ]);
    expect(buckets).toHaveLength(60);
    expect(await counts("us-west")).toEqual({ ...NONE, created: 1, succeeded: 1 });
    expect(await counts("eu-central")).toEqual(NONE);
    const other = { projectNo: project, environment: "development" as const };
    expect((await findInsights(store.db, other, { period: "1h", region: null })).totals.created).toBe(0);
  });

  test("counts nothing twice, however often it is repeated", async () => {
    await settleOne();
    for (let turn = 0; turn < 3; turn++) await rollUp(store.db);
    expect(await counts()).toEqual({ ...NONE, created: 1, succeeded: 1 });
  });

  test("counts a settlement once that was under way while others were counted, and those others too", async () => {
    const late = await startOne();
    const session = await store.session();
    await session.query("BEGIN");
    await session.query(
      `WITH gone AS (DELETE FROM open_jobs WHERE job_id = $1 RETURNING *)
       INSERT INTO runs (id, job_id, project_no, environment, attempt, status, started_at, duration_ms)
       SELECT run_id, job_id, project_no, environment, attempt, 1, started_at, 3 FROM gone`,
      [idToUuid(late.claim.jobId)],
    );
    // This settlement begins later, and is committed earlier.
    await settleOne();
    await rollUp(store.db);
    await rollUp(store.db);
    const before = await counts();
    expect(before.succeeded).toBeLessThanOrEqual(1);
    await session.query("COMMIT");
    await rollUp(store.db);
    expect(await counts()).toEqual({ ...NONE, created: 2, succeeded: 2 });
  });

  test("forgets a settlement that was rolled back, and counts what came after it", async () => {
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("CREATE TABLE never (n int)");
    await settleOne();
    await session.query("ROLLBACK");
    await rollUp(store.db);
    expect(await counts()).toEqual({ ...NONE, created: 1, succeeded: 1 });
  });

  test("counts a job that was stored two minutes after its id was made", async () => {
    const old = createIdSource((count) => new Uint8Array(count).fill(7)).next(
      JOB_PREFIX,
      Date.now() - 30_000,
    );
    await rollUp(store.db);
    await createJobs(store.db, [store.newJob(project, { id: old })], new Set());
    await rollUp(store.db);
    expect((await counts()).created).toBe(0);
    for (const minutes of [4, 5, 9, 10]) {
      await rollUp(store.db, { aheadMs: minutes * MINUTE_MS });
      if (minutes > 4) expect((await counts()).created).toBe(1);
    }
  });

  test("counts created jobs once although the clock was ahead for a while and set back", async () => {
    await rollUp(store.db, { aheadMs: 10 * MINUTE_MS });
    await store.addJobs(project, 3);
    await rollUp(store.db);
    await store.addJobs(project, 2);
    await rollUp(store.db);
    for (const minutes of [3, 6, 9]) await rollUp(store.db, { aheadMs: minutes * MINUTE_MS });
    expect((await counts()).created).toBe(5);
  });

  test("counts a run that was canceled before it was sent as failed, without a duration, when it was canceled", async () => {
    const { claim, granted } = await settleOne(failedWith("over"));
    const scope = { projectNo: project, environment: "production" as const };
    await retryRun(store.db, { ...scope, sinceAt: 0 }, granted.runId, store.newRunId(), keyCause());
    await store.query("UPDATE open_jobs SET started_at = started_at - interval '3 h' WHERE job_id = $1", [
      idToUuid(claim.jobId),
    ]);
    await cancelJob(store.db, scope, claim.jobId, keyCause());
    await rollUp(store.db);
    const { totals } = await insightsOf();
    expect(
      await store.query("SELECT FROM runs WHERE project_no = $1 AND error = $2", [project, UNSENT_RUN_ERROR]),
    ).toHaveLength(1);
    expect(totals.failed).toBe(2);
    expect(totals.durations.count).toBe(1);
    expect(totals.late.count).toBe(1);
  });

  test("counts a run once that is changed and moved to the tables of another plan afterwards", async () => {
    await settleOne(failedWith({ dueAt: Date.now() + 60_000 }));
    await rollUp(store.db);
    await store.query("UPDATE runs SET next_retry_at = NULL, retention_class = 3 WHERE project_no = $1", [
      project,
    ]);
    await rollUp(store.db);
    expect(await counts()).toEqual({ ...NONE, created: 1, failed: 1 });
  });

  test("of a run that ends in another minute than it began belongs to the one in which it ended", async () => {
    const attempt = await startOne();
    await store.query(
      "UPDATE open_jobs SET started_at = date_trunc('minute', started_at) - interval '5 s' WHERE job_id = $1",
      [idToUuid(attempt.claim.jobId)],
    );
    await settleShortFirst(store.db, [settlementOf(attempt, { durationMs: 6_000 })]);
    await rollUp(store.db);
    const [run] = await store.query<{ at: Date }>(
      "SELECT date_trunc('minute', started_at + interval '6 s') AS at FROM runs WHERE project_no = $1",
      [project],
    );
    const { buckets } = await insightsOf();
    expect(buckets.filter(({ figures }) => figures.succeeded > 0).map(({ at }) => at)).toEqual([
      run?.at.getTime() ?? 0,
    ]);
  });
});

describe("a worker", () => {
  test.each([
    ["before it reads", "before", "find_new_runs", 0],
    ["between reading and writing", "before", "write_insights", 0],
    ["once it has written", "after", "write_insights", 1],
  ] as const)(
    "that is killed %s neither doubles nor forgets anything",
    async (_name, when, statement, already) => {
      await settleOne();
      const script = join(import.meta.dir, "../../../test/support/dying-step.ts");
      const child = Bun.spawn([process.execPath, script, store.url, when, statement], { stderr: "pipe" });
      await child.exited;
      expect(child.signalCode, await new Response(child.stderr).text()).toBe("SIGKILL");
      expect((await counts()).succeeded).toBe(already);
      await rollUp(store.db);
      expect(await counts()).toEqual({ ...NONE, created: 1, succeeded: 1 });
    },
  );

  test("beside another one counts what the other has not: of two that take the same step, one writes it", async () => {
    const mates = [1, 2].map(() => openTestDatabase(store.url, 2, "silent"));
    try {
      for (let round = 1; round <= 5; round++) {
        await settleOne();
        const outset = await outsetOf(store.db);
        const steps = await Promise.all(mates.map((mate) => takeStep(mate, outset)));
        expect(steps.filter(({ next }) => next !== null)).toHaveLength(1);
        await Promise.all(mates.map((mate) => rollUp(mate)));
        await rollUp(store.db);
        expect((await counts()).succeeded).toBe(round);
      }
    } finally {
      for (const mate of mates) await mate.close();
    }
  });

  test("that comes back after an outage catches up in pieces", async () => {
    for (let n = 0; n < 5; n++) await settleOne();
    // All tests of the server number their transactions together, so how many there are since the last step is unknown.
    const [{ behind } = { behind: 0 }] = await store.query<{ behind: number }>(
      "SELECT (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - settled_until)::int AS behind FROM insight_progress",
    );
    expect(await rollUp(store.db, { share: behind / 5 / 10_000 })).toBeGreaterThan(3);
    expect(await counts()).toEqual({ ...NONE, created: 5, succeeded: 5 });
  });

  test("finds itself in another Postgres, and counts only what is recorded there", async () => {
    await settleOne();
    await store.query("UPDATE insight_progress SET system_identifier = 1, settled_until = 1");
    await takeStep(store.db, await outsetOf(store.db, 0));
    expect((await counts()).succeeded).toBe(0);
    // This run ends 20 ms after its start.
    await settleOne({ durationMs: 20 });
    await rollUp(store.db);
    expect((await counts()).succeeded).toBe(1);
  });
});

describe("after a long time in which nothing was done", () => {
  /** Makes the state as if the roll-up had stood still for so long. */
  const standStill = (ms: number) =>
    store.query(
      `UPDATE insight_progress SET created_until = created_until - $1::interval, recounted_until = recounted_until - $1::interval,
              closed_until = ARRAY(SELECT date_bin(w, now() - $1::interval, 'epoch') FROM unnest('{10 min,1 hour,6 hours,1 day}'::interval[]) WITH ORDINALITY AS l (w, n) ORDER BY n)`,
      [`${ms} ms`],
    );
  const ids = createIdSource(randomBytes);
  const jobAt = (ago: number) => ids.next(JOB_PREFIX, Date.now() - ago);

  test("a few steps count what there is, at its beginning, in its middle and at its end", async () => {
    await standStill(300 * DAY_MS);
    const given = [80 * DAY_MS, 20 * DAY_MS, 20 * DAY_MS - MINUTE_MS, 2 * 3_600_000];
    await createJobs(
      store.db,
      given.map((ago) => ({ ...store.newJob(project), id: jobAt(ago) })),
      new Set(),
    );
    expect(await rollUp(store.db)).toBeLessThan(12);
    expect(await closeAll(store.db)).toBeLessThan(120);
    expect(await counts(null, "90d")).toMatchObject({ created: 4 });
    expect(await counts(null, "30d")).toMatchObject({ created: 3 });
    expect(await counts(null, "24h")).toMatchObject({ created: 1 });
    expect(await counts(null, "1h")).toMatchObject({ created: 0 });
  });

  test("a job that was stored late into time that was passed over is counted", async () => {
    await standStill(DAY_MS);
    await takeStep(store.db, await outsetOf(store.db));
    await createJobs(store.db, [{ ...store.newJob(project), id: jobAt(30_000) }], new Set());
    await rollUp(store.db, { aheadMs: 5 * MINUTE_MS });
    expect(await counts()).toMatchObject({ created: 1 });
  });
});

describe("closed buckets", () => {
  /** Makes the figures so much older, and the state of the roll-up as it was so long ago. */
  async function age(ms: number) {
    const by = `${ms} ms`;
    await store.query("UPDATE insights SET at = at - $1::interval WHERE project_no = $2", [by, project]);
    await store.query(
      `UPDATE insight_progress SET closed_until = ARRAY(SELECT date_bin(w, now() - $1::interval, 'epoch') FROM unnest('{10 min,1 hour,6 hours,1 day}'::interval[]) WITH ORDINALITY AS l (w, n) ORDER BY n),
              closed_project = '{0,0,0,0}', recounted_until = date_trunc('minute', now())`,
      [by],
    );
  }

  test("have the sum of the level before, whoever reads them before, meanwhile and afterwards", async () => {
    await passNearEnd(MINUTE_MS);
    for (const region of ["us-east", "us-west", "us-east"] as const) {
      await settleOne({ ...failedWith("over"), lateMs: 7, durationMs: 21 }, { region });
    }
    await rollUp(store.db);
    await age(2 * DAY_MS);
    const shown = async (period: "7d" | "30d" | "90d") => {
      const { totals, hosts, buckets } = await insightsOf(null, period);
      return {
        ...(await counts(null, period)),
        ...{
          late: totals.late.percentiles(),
          durations: totals.durations.percentiles(),
          hosts: hosts.shown(),
        },
        full: buckets.filter(({ figures }) => figures.failed > 0).map(({ figures }) => figures.failed),
      };
    };
    const before = await shown("90d");
    expect(before).toMatchObject({ created: 3, failed: 3, full: [3], durations: { p99: 21 } });
    expect(await closeAll(store.db, 3)).toBeGreaterThan(8);
    expect(await shown("90d")).toEqual(before);
    expect(await shown("30d")).toEqual(before);
    expect(await shown("7d")).toEqual(before);
    const levels = await store.query(
      "SELECT level, count(*)::int AS rows FROM insights WHERE project_no = $1 GROUP BY 1 ORDER BY 1",
      [project],
    );
    expect(levels).toEqual([0, 1, 2, 3, 4].map((level) => ({ level, rows: 2 })));
  });

  test("get what is counted late as well, in the middle of being closed too", async () => {
    const [attempt, second] = [await startOne(), await startOne()];
    const [row] = await store.query<{ at: Date }>(
      "SELECT started_at AS at FROM open_jobs WHERE job_id = $1",
      [idToUuid(attempt.claim.jobId)],
    );
    const startedAt = row?.at.getTime() ?? 0;
    await rollUp(store.db);
    await closeAll(store.db);
    const closedUntil = (await outsetOf(store.db)).progress.closedUntil;
    const longAgo = new Date(Math.min(...closedUntil) - 5 * MINUTE_MS);
    await store.query("UPDATE open_jobs SET started_at = $2 WHERE project_no = $1", [project, longAgo]);
    await settleShortFirst(store.db, [settlementOf(attempt)]);
    await rollUp(store.db);
    // The last day is being closed, and this project's part of it is closed already.
    await store.query(
      "UPDATE insight_progress SET closed_until[4] = date_bin('1 day', $1::timestamptz, 'epoch'), closed_project[4] = $2",
      [longAgo, project],
    );
    await settleShortFirst(store.db, [settlementOf(second)]);
    await rollUp(store.db);
    expect(startedAt).toBeGreaterThan(longAgo.getTime());
    for (let level = 0; level <= 4; level++) {
      const [sum] = await store.query(
        "SELECT sum(succeeded)::int AS succeeded FROM insights WHERE project_no = $1 AND level = $2",
        [project, level],
      );
      expect([level, sum]).toEqual([level, { succeeded: 2 }]);
    }
  });

  test("are purged once no period reaches them and the next level has them, and never before", async () => {
    await passNearEnd(MINUTE_MS);
    await settleOne();
    await rollUp(store.db);
    const levels = async () =>
      (
        await store.query<{ level: number }>("SELECT level FROM insights WHERE project_no = $1 ORDER BY 1", [
          project,
        ])
      ).map(({ level }) => level);
    await age(DAY_MS / 2);
    const [row] = await store.query<{ at: Date }>("SELECT at FROM insights WHERE project_no = $1", [project]);
    const at = row?.at.getTime() ?? 0;
    await purgeInsights(store.db, 1_000, at + 100 * DAY_MS);
    expect(await levels()).toEqual([0]);
    await closeAll(store.db);
    expect((await levels()).slice(0, 3)).toEqual([0, 1, 2]);
    await purgeInsights(store.db, 1_000, at + 60 * MINUTE_MS);
    expect(await levels()).toContain(0);
    await purgeInsights(store.db, 1_000, at + 4 * 60 * MINUTE_MS);
    expect(await levels()).not.toContain(0);
    await purgeInsights(store.db, 1_000, at + 89 * DAY_MS);
    expect((await levels()).length).toBeGreaterThan(0);
  });
});
