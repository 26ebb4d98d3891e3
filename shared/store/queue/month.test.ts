import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import fc from "fast-check";
import type pg from "pg";
import { type ManualClock, startManualClock } from "../../../test/simulation/manual-clock.ts";
import { keyCause } from "../../../test/support/cause.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import type { Database } from "../database/database.ts";
import { type Created, createJobs, type JobToCreate } from "../resources/job-creation.ts";
import { type Retried, retryRun } from "../resources/jobs-by-hand.ts";
import { countMonthRuns, countUsage } from "../resources/projects.ts";
import {
  failedWith,
  kindsOf,
  settlementOf,
  startStore,
  type TestStore,
  WAYS,
  type Way,
} from "../test-support.ts";
import { claimKeyed } from "./claim-keyed.ts";

const QUOTA = 10;
const MINUTE_MS = 60_000;

let store: TestStore;
let way: Way;
let clock: ManualClock;
let nodeId: number;
let project: ProjectNo;
/** What the test's jobs have of their own. */
let wish: Partial<JobToCreate> = {};
/** The first instant of the next month, or of the one after if that is less than two minutes away. */
let rolloverAt: number;

beforeEach(async () => {
  store = await startStore();
  clock = await startManualClock(store.url);
  const today = new Date(clock.now());
  rolloverAt = Date.UTC(today.getUTCFullYear(), today.getUTCMonth() + 1);
  if (rolloverAt - clock.now() < 2 * MINUTE_MS) {
    rolloverAt = Date.UTC(today.getUTCFullYear(), today.getUTCMonth() + 2);
  }
  nodeId = await store.addNode();
  project = await store.addProject({ plan: "hobby", concurrency: 1_000 });
  await store.query("UPDATE flows SET month_runs_max = $1", [QUOTA]);
  // Statements that begin before midnight have a minute until then.
  await clock.leapTo(rolloverAt - MINUTE_MS);
});
afterEach(async () => {
  clock.stop();
  await store.stop();
});

const monthOf = (at: number) => new Date(at).toISOString().slice(0, 7);
/** The first instant of the month after that of `rolloverAt`. */
const nextRolloverAt = () => {
  const month = new Date(rolloverAt);
  return month.setUTCMonth(month.getUTCMonth() + 1);
};
/** When a refusal for the quota says that it clears. */
const clearsInMsOf = (answer: Retried | Created | undefined) =>
  answer?.kind === "quota_exceeded" ? answer.clearsInMs : answer?.kind;
/** Sets the database's clock back, which operators are not to do. */
const setBack = (ms: number) =>
  store.query("UPDATE test_clock.ahead SET us = us - ($1::float8 * 1000)::bigint", [ms]);

/** A session that has locked the project's flow. Its statements are in one transaction until it is committed. */
async function lockFlow(): Promise<pg.Client> {
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("SELECT FROM flows WHERE project_no = $1 FOR NO KEY UPDATE", [project]);
  return session;
}
const within = (session: pg.Client): Pick<Database, "run"> => ({
  run: async (name, text, values) => (await session.query({ name, text, values })).rows,
});

const claim = async (count: number) => claimJobs(await store.addJobs(project, count, wish));
const claimJobs = (jobs: string[], db: Pick<Database, "run"> = store.db) =>
  way.claim(
    db as Database,
    nodeId,
    jobs.map((job) => store.claimOf(project, job)),
  );
const grantedCount = (answers: Awaited<ReturnType<typeof claim>>) =>
  kindsOf(answers).filter((kind) => kind === "granted").length;

/** The counted runs and the started runs of the two months must agree. */
async function expectCounts(counts: { before: number; after: number }) {
  const [flow] = await store.query("SELECT month::text AS month, month_runs::int AS runs FROM flows");
  expect(flow).toEqual({ month: new Date(rolloverAt).toISOString().slice(0, 10), runs: counts.after });
  const started = await store.query<{ month: string; count: number }>(
    `SELECT to_char(started_at, 'YYYY-MM') AS month, count(*)::int AS count
       FROM (SELECT started_at FROM open_jobs WHERE run_id IS NOT NULL UNION ALL SELECT started_at FROM runs) r GROUP BY 1`,
  );
  for (const [at, count] of [
    [rolloverAt - 1, counts.before],
    [rolloverAt, counts.after],
  ] as const) {
    expect((await countUsage(store.db, project, monthOf(at), null)).runsTotal).toBe(count);
    expect(started.find(({ month }) => month === monthOf(at))?.count ?? 0).toBe(count);
  }
}

const JOBS: [name: string, wish: Partial<JobToCreate>][] = [
  ["ordinary jobs", {}],
  ["jobs of a flow key", { flow: { key: "a", concurrency: 1_000 } }],
];
const WAYS_OF_JOBS = JOBS.flatMap(([jobs, theirs]) =>
  WAYS.map(([name, each]) => [`${jobs}, ${name}`, each, theirs] as const),
);

describe.each(WAYS_OF_JOBS)("at the month's end, %s", (_name, theirs, ofJobs) => {
  beforeAll(() => {
    way = theirs;
    wish = ofJobs;
  });
  afterAll(() => {
    wish = {};
  });

  test("a claim that waited for the flow over midnight counts in the month that has begun", async () => {
    expect(grantedCount(await claim(3))).toBe(3);
    const jobs = await store.addJobs(project, 6, wish);
    const mate = await lockFlow();
    const waiting = claim(8);
    await store.untilBlocked();
    await clock.leapTo(rolloverAt + MINUTE_MS);
    expect(grantedCount(await claimJobs(jobs, within(mate)))).toBe(6);
    await mate.query("COMMIT");
    // The new month has four runs left, and none of them comes from the month before.
    expect(grantedCount(await waiting)).toBe(4);
    expect(grantedCount(await claim(5))).toBe(0);
    await expectCounts({ before: 3, after: QUOTA });
    expect(await countMonthRuns(store.db, project)).toBe(QUOTA);
  });

  test("a claim that waited over midnight for a flow of the month before counts in the new one as well", async () => {
    const jobs = await store.addJobs(project, QUOTA + 2, wish);
    expect(grantedCount(await claim(QUOTA))).toBe(QUOTA);
    const mate = await lockFlow();
    const waiting = claimJobs(jobs);
    await store.untilBlocked();
    await clock.leapTo(rolloverAt + MINUTE_MS);
    await mate.query("COMMIT");
    const answers = await waiting;
    expect(grantedCount(answers)).toBe(QUOTA);
    expect(answers).toContainEqual({ kind: "blocked", untilAt: nextRolloverAt() });
    await expectCounts({ before: QUOTA, after: QUOTA });
  });

  test("a manual retry that waited for the flow over midnight counts in the month that has begun", async () => {
    const [jobId = ""] = await store.addJobs(project, 1, wish);
    const attempt = await store.start(nodeId, project, jobId);
    await way.settle(store.db, [settlementOf(attempt, failedWith("over"))]);
    const retry = () =>
      retryRun(
        store.db,
        { projectNo: project, environment: "production", sinceAt: 0 },
        attempt.granted.runId,
        store.newRunId(),
        keyCause(),
      );
    const jobs = await store.addJobs(project, QUOTA - 1, wish);
    const mate = await lockFlow();
    const waiting = retry();
    await store.untilBlocked();
    await clock.leapTo(rolloverAt + MINUTE_MS);
    expect(grantedCount(await claimJobs(jobs, within(mate)))).toBe(QUOTA - 1);
    await mate.query("COMMIT");
    expect((await waiting).kind).toBe("retried");
    expect(grantedCount(await claim(1))).toBe(0);
    await expectCounts({ before: 1, after: QUOTA });
  });

  test("a manual retry that waited over midnight is refused where the new month is used up", async () => {
    const [jobId = ""] = await store.addJobs(project, 1, wish);
    const attempt = await store.start(nodeId, project, jobId);
    await way.settle(store.db, [settlementOf(attempt, failedWith("over"))]);
    const scope = { projectNo: project, environment: "production", sinceAt: 0 } as const;
    const jobs = await store.addJobs(project, QUOTA, wish);
    const mate = await lockFlow();
    const waiting = retryRun(store.db, scope, attempt.granted.runId, store.newRunId(), keyCause());
    await store.untilBlocked();
    await clock.leapTo(rolloverAt + MINUTE_MS);
    expect(grantedCount(await claimJobs(jobs, within(mate)))).toBe(QUOTA);
    await mate.query("COMMIT");
    // The wait counts from the decision, a minute after midnight, and not from the beginning of the statement.
    const wholeMs = nextRolloverAt() - rolloverAt;
    expect(clearsInMsOf(await waiting)).toBeWithin(wholeMs - 10 * MINUTE_MS, wholeMs - MINUTE_MS + 1);
    await expectCounts({ before: 1, after: QUOTA });
  });
});

test("the short way of jobs with a flow key waits over midnight, and counts in the month that has begun", async () => {
  const jobs = await store.addJobs(project, 3, { flow: { key: "a", concurrency: 1_000 } });
  const claims = jobs.map((job) => store.claimOf(project, job));
  const mate = await lockFlow();
  const waiting = claimKeyed(store.db, nodeId, claims);
  await store.untilBlocked();
  await clock.leapTo(rolloverAt + MINUTE_MS);
  await mate.query("COMMIT");
  expect((await waiting).map((answer) => answer?.kind === "granted" && answer.attempt.jobId)).toEqual(jobs);
  await expectCounts({ before: 0, after: 3 });
});

test.each(WAYS)(
  "a clock that is set back over midnight takes nothing back: the quota, the count and the days go on, %s",
  async (_name, theirs) => {
    way = theirs;
    expect(grantedCount(await claim(2))).toBe(2);
    await clock.leapTo(rolloverAt + MINUTE_MS);
    expect(grantedCount(await claim(QUOTA - 2))).toBe(QUOTA - 2);
    const jobs = await store.addJobs(project, 1);
    await setBack(2 * MINUTE_MS);
    // The month that had begun has two runs left, whatever the clock says. The days of these runs lie in it.
    expect(grantedCount(await claim(QUOTA))).toBe(2);
    expect(await countMonthRuns(store.db, project)).toBe(QUOTA);
    await setBack(-2 * MINUTE_MS);
    expect(kindsOf(await claimJobs(jobs))).toEqual(["blocked"]);
    await setBack(2 * MINUTE_MS);
    const [created] = await createJobs(store.db, [store.newJob(project)], new Set());
    // Up to a minute is left of the month before, and then the whole month that the flow counts.
    const wholeMs = nextRolloverAt() - rolloverAt;
    expect(clearsInMsOf(created)).toBeWithin(wholeMs - 10 * MINUTE_MS, wholeMs + MINUTE_MS + 1);
    const [flow] = await store.query("SELECT month::text AS month, month_runs::int AS runs FROM flows");
    expect(flow).toEqual({ month: new Date(rolloverAt).toISOString().slice(0, 10), runs: QUOTA });
    expect((await countUsage(store.db, project, monthOf(rolloverAt), null)).runsTotal).toBe(QUOTA);
    expect((await countUsage(store.db, project, monthOf(rolloverAt - 1), null)).runsTotal).toBe(2);
  },
);

test.each(WAYS)(
  "whatever a flow has counted, of this month or another, every statement lets as many runs start as are left, %s",
  async (_name, theirs) => {
    way = theirs;
    interface Counted {
      /** The months from the present one to the one that the flow counts, which is later after a clock was set back. */
      monthsAway: number;
      runs: number;
      max: number | null;
    }
    const runsOf = ({ monthsAway, runs }: Counted) => (monthsAway < 0 ? 0 : runs);
    const leftOf = (flow: Counted) => (flow.max === null ? null : Math.max(0, flow.max - runsOf(flow)));
    const setFlow = ({ monthsAway, runs, max }: Counted) =>
      store.query(
        `UPDATE flows SET month = date_trunc('month', now()) + $1 * interval '1 month', month_runs = $2, month_runs_max = $3`,
        [monthsAway, runs, max],
      );
    const free = { monthsAway: 0, runs: 0, max: null };
    const scope = { projectNo: project, environment: "production", sinceAt: 0 } as const;
    const flows = fc.record({
      monthsAway: fc.integer({ min: -2, max: 1 }),
      runs: fc.integer({ min: 0, max: 5 }),
      max: fc.option(fc.integer({ min: 0, max: 5 })),
    });
    await fc.assert(
      fc.asyncProperty(flows, fc.integer({ min: 1, max: 4 }), async (flow, count) => {
        await setFlow(free);
        const [failing = "", ...waiting] = await store.addJobs(project, 1 + count);
        const attempt = await store.start(nodeId, project, failing);
        await way.settle(store.db, [settlementOf(attempt, failedWith("over"))]);
        const left = leftOf(flow);
        const isSpent = left === 0;

        await setFlow(flow);
        const [created] = await createJobs(store.db, [store.newJob(project)], new Set());
        expect(created?.kind).toBe(isSpent ? "quota_exceeded" : "created");
        const startedCount = grantedCount(await claimJobs(waiting));
        expect(startedCount).toBe(Math.min(count, left ?? count));
        expect(await countMonthRuns(store.db, project)).toBe(runsOf(flow) + startedCount);

        await setFlow(flow);
        const retried = await retryRun(store.db, scope, attempt.granted.runId, store.newRunId(), keyCause());
        expect(retried.kind).toBe(isSpent ? "quota_exceeded" : "retried");
        expect(await countMonthRuns(store.db, project)).toBe(runsOf(flow) + (isSpent ? 0 : 1));
      }),
      { numRuns: 40 },
    );
  },
);
