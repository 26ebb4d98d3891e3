import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { keyCause } from "../../../test/support/cause.ts";
import { createIdSource, JOB_PREFIX, RUN_PREFIX, SCHEDULE_PREFIX } from "../../domain/ids.ts";
import { RUN_STATUSES } from "../../domain/run.ts";
import { ENVIRONMENTS, type Environment } from "../../domain/scope.ts";
import { settleAttempts } from "../queue/settle.ts";
import { purgeRunTags, purgeShiftedRuns } from "../retention/tag-purge.ts";
import { failedWith, settlementOf, settleShortFirst, startStore, type TestStore } from "../test-support.ts";
import { LOOKED_AT_MAX } from "./job-list.ts";
import { cancelJob, retryRun } from "./jobs-by-hand.ts";
import { listRuns, type RunListQuery } from "./run-list.ts";
import { findRun, type RunRow } from "./runs.ts";

setDefaultTimeout(600_000);

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const ids = createIdSource(randomBytes);
const newSchedule = () => ids.next(SCHEDULE_PREFIX, Date.now());

type Known = RunRow & { environment: Environment; tags: string[] | null; scheduleId: string | null };

async function walk(query: Omit<RunListQuery, "beforeId" | "limit">, limit: number): Promise<RunRow[]> {
  const found: RunRow[] = [];
  let beforeId: string | null = null;
  for (;;) {
    const { rows, endId } = await listRuns(store.db, { ...query, beforeId, limit });
    expect(rows.length).toBeLessThanOrEqual(limit);
    found.push(...rows);
    const next: string | null = rows.length === limit ? (rows.at(-1)?.id ?? null) : endId;
    if (next === null) return found;
    beforeId = next;
  }
}

/** Starts and ends attempts of jobs in every state. Some run ids tell a time one hour before or after the start. */
async function addRuns(project: number, schedules: (string | null)[]): Promise<Known[]> {
  const found: Known[] = [];
  for (let turn = 0; turn < 48; turn++) {
    const environment = ENVIRONMENTS[Number(turn % 6 !== 0)] as Environment;
    const tags = [null, ["common"], ["common", "rare"]][turn % 3] ?? null;
    // A schedule belongs to one environment.
    const scheduleId = environment === "development" ? null : (schedules[turn % schedules.length] ?? null);
    const wish = { environment, tags, ...(scheduleId === null ? {} : { scheduleId }) };
    const [jobId = ""] = await store.addJobs(project, 1, wish);
    const shiftMs = [0, 0, 0, -HOUR_MS, HOUR_MS][turn % 5] ?? 0;
    const source = createIdSource(randomBytes);
    const claim = { environment, runId: source.next(RUN_PREFIX, Date.now() + shiftMs) };
    const started = await store.start(nodeId, project, jobId, claim);
    const status = RUN_STATUSES[turn % RUN_STATUSES.length] ?? "running";
    if (status !== "running") {
      const end = status === "succeeded" ? {} : { ...failedWith("over"), status };
      await settleAttempts(store.db, [settlementOf(started, end)]);
    }
    const run = await findRun(store.db, { projectNo: project, environment, sinceAt: 0 }, claim.runId);
    if (run === null) throw new Error("a started run is not found");
    found.push({ ...run, environment, tags, scheduleId });
    if (status !== "failed") continue;
    const scope = { projectNo: project, environment, sinceAt: 0 };
    const retried = await retryRun(store.db, scope, run.id, source.next(RUN_PREFIX, Date.now()), keyCause());
    if (retried?.kind !== "retried") throw new Error("a run that failed is not retried");
    found.push({ ...retried.run, environment, tags, scheduleId });
  }
  return found;
}

test("pages of runs are what a full look finds, for every set of filters, page by page", async () => {
  const project = await store.addProject();
  const [nightly, hourly] = [newSchedule(), newSchedule()];
  const model = await addRuns(project, [null, nightly, hourly, null]);
  await addRuns(await store.addProject(), [newSchedule()]);
  const startedAt = (place: number) => Math.floor(model[place]?.startedAt ?? 0);
  const times: [number | null, number | null][] = [
    [null, null],
    [startedAt(10), null],
    [null, startedAt(30)],
    [startedAt(10), startedAt(30)],
    [startedAt(30), startedAt(10)],
    [Date.now() - 2 * HOUR_MS, Date.now() + 2 * HOUR_MS],
    [-62_167_219_200_000, 253_402_387_139_000],
  ];
  for (const status of [null, ...RUN_STATUSES])
    for (const jobId of [
      null,
      model[20]?.jobId ?? "",
      model[22]?.jobId ?? "",
      ids.next(JOB_PREFIX, Date.now()),
    ])
      for (const tag of [null, "common", "rare", "unknown"])
        for (const scheduleId of [null, nightly, newSchedule()])
          for (const [startedAfter, startedBefore] of times) {
            const environment = "production" as const;
            const filters = { environment, status, jobId, tag, scheduleId, startedAfter, startedBefore };
            const wanted = model
              .filter((run) => run.environment === environment && (status === null || run.status === status))
              .filter((run) => jobId === null || run.jobId === jobId)
              .filter((run) => tag === null || run.tags?.includes(tag) === true)
              .filter((run) => scheduleId === null || run.scheduleId === scheduleId)
              // The start as it is shown, without the part below a millisecond.
              .filter((run) => startedAfter === null || Math.floor(run.startedAt) > startedAfter)
              .filter((run) => startedBefore === null || Math.floor(run.startedAt) < startedBefore)
              .map(({ id }) => id)
              .sort()
              .toReversed();
            const found = await walk({ projectNo: project, sinceAt: 0, ...filters }, 5);
            expect({ ...filters, found: found.map(({ id }) => id) }).toEqual({ ...filters, found: wanted });
          }
});

test("however many attempts that were asked for by hand wait, few are read for a page, and none is left out", async () => {
  const project = await store.addProject({ concurrency: 10_000 });
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0, jobId: null };
  const [wired = ""] = await store.addJobs(project, 1, { tags: ["wired"] });
  const { granted } = await store.start(nodeId, project, wired);
  const count = LOOKED_AT_MAX + 10;
  await store.addJobs(project, count);
  await store.query(
    "UPDATE open_jobs SET run_id = gen_random_uuid(), started_at = now() WHERE project_no = $1 AND run_id IS NULL",
    [project],
  );
  const first = await listRuns(store.db, {
    ...scope,
    status: "running",
    tag: "wired",
    beforeId: null,
    limit: 5,
  });
  expect(first.endId).not.toBeNull();
  for (const status of ["running", null] as const) {
    const found = await walk({ ...scope, status, tag: "wired" }, 5);
    expect(found.map(({ id }) => id)).toEqual([granted.runId]);
    for (const startedAfter of [null, 0]) {
      const all = (await walk({ ...scope, status, startedAfter }, 100)).map(({ id }) => id);
      expect([all.length, all]).toEqual([count + 1, all.toSorted().toReversed()]);
    }
  }
});

test("a manual retry that waited for an hour is found by the time at which it was sent", async () => {
  const project = await store.addProject();
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
  const [jobId = ""] = await store.addJobs(project, 1, { maxAttempts: 1 });
  const failed = await store.start(nodeId, project, jobId);
  await settleAttempts(store.db, [settlementOf(failed, failedWith("over"))]);
  const askedAt = Date.now() - HOUR_MS;
  const runId = createIdSource(randomBytes).next(RUN_PREFIX, askedAt);
  await retryRun(store.db, scope, failed.granted.runId, runId, keyCause());
  const retried = await store.start(nodeId, project, jobId, { attempt: 2 });
  const list = { ...scope, jobId: null, status: null, beforeId: null, limit: 5 };
  const since = async (startedAfter: number) =>
    (await listRuns(store.db, { ...list, startedAfter })).rows.map(({ id }) => id);
  expect(await since(Date.now() - HOUR_MS / 2)).toEqual([failed.granted.runId, runId]);
  await settleAttempts(store.db, [settlementOf(retried)]);
  expect(await since(Date.now() - HOUR_MS / 2)).toEqual([failed.granted.runId, runId]);
  const before = await listRuns(store.db, { ...list, startedBefore: Date.now() - HOUR_MS / 2 });
  expect(before.rows).toEqual([]);
});

test("a manual retry that is canceled before it is sent keeps its tags", async () => {
  const project = await store.addProject();
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
  const scheduleId = newSchedule();
  const [jobId = ""] = await store.addJobs(project, 1, { maxAttempts: 1, tags: ["a"], scheduleId });
  const failed = await store.start(nodeId, project, jobId);
  await settleAttempts(store.db, [settlementOf(failed, failedWith("over"))]);
  const runId = store.newRunId();
  await retryRun(store.db, scope, failed.granted.runId, runId, keyCause());
  await cancelJob(store.db, scope, jobId, keyCause());
  const list = { ...scope, jobId: null, status: "failed", beforeId: null, limit: 5 } as const;
  for (const filter of [{ tag: "a" }, { scheduleId }, { tag: "a", scheduleId }]) {
    const { rows } = await listRuns(store.db, { ...list, ...filter });
    expect(rows.map(({ id }) => id)).toEqual([runId, failed.granted.runId]);
  }
});

test("the short way leaves jobs with tags to the long way", async () => {
  const project = await store.addProject();
  const [plain = "", tagged = ""] = [
    ...(await store.addJobs(project, 1)),
    ...(await store.addJobs(project, 1, { tags: ["a"] })),
  ];
  const started = [await store.start(nodeId, project, plain), await store.start(nodeId, project, tagged)];
  const { items } = await settleShortFirst(
    store.db,
    started.map((attempt) => settlementOf(attempt)),
  );
  expect(items.map((item) => item?.status)).toEqual(["succeeded", "succeeded"]);
  expect(await store.query("SELECT tag, state FROM job_tag_states WHERE project_no = $1", [project])).toEqual(
    [{ tag: "a", state: 0 }],
  );
});

test("the tags of runs, and where they started, are purged once no plan shows them", async () => {
  const now = Date.now();
  for (const table of ["run_tags", "shifted_runs"]) await store.query(`TRUNCATE ${table}`);
  for (const days of [400, 369, 366, 1]) {
    const at = new Date(now - days * DAY_MS).toISOString();
    await store.query(
      `INSERT INTO run_tags (ended_on, project_no, environment, status, id, tag)
       SELECT $1::timestamptz, 1, 1, 1, gen_random_uuid(), 't' || n FROM generate_series(1, 10) n`,
      [at],
    );
    await store.query(
      "INSERT INTO shifted_runs (started_at, project_no, environment, status, id) VALUES ($1, 1, 1, 1, gen_random_uuid())",
      [at],
    );
  }
  expect(await purgeRunTags(store.db, 15, now)).toBe(15);
  expect(await purgeRunTags(store.db, 15, now)).toBe(5);
  expect(await purgeRunTags(store.db, 15, now)).toBe(0);
  expect(await purgeShiftedRuns(store.db, 15, now)).toBe(2);
  expect(await store.query("SELECT count(*)::int AS n FROM run_tags")).toEqual([{ n: 20 }]);
  expect(await store.query("SELECT count(*)::int AS n FROM shifted_runs")).toEqual([{ n: 2 }]);
});
