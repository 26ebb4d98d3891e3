import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import fc from "fast-check";
import { keyCause } from "../../../test/support/cause.ts";
import { listLostAttempts } from "../cell/nodes.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { listJobs } from "../resources/job-list.ts";
import { findJob } from "../resources/jobs.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { listRuns } from "../resources/run-list.ts";
import { findRun } from "../resources/runs.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimAttempts } from "./claim.ts";
import { settleAttempts } from "./settle.ts";
import type { ShardName } from "./shards.ts";
import {
  LANE_ROOM_MAX,
  LANE_ROOM_MIN,
  laneRoom,
  rangesOf,
  refillLanes,
  SWEEP_LAG_MS,
  type SweptRow,
  sweepShards,
} from "./sweep.ts";

setDefaultTimeout(600_000);

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

/** The table of open jobs, whose indexes the plans may use. */
const OPEN_JOBS = ["open_jobs"];
const EVER = Number.NEGATIVE_INFINITY;
const shard = (number: number, sinceAt = EVER, region: ShardName["region"] = "us-east") => ({
  region,
  shard: number,
  sinceAt,
});
const shardName = ({ region, shard: number }: ShardName) => `${region}/${number}`;
const idsOf = (rows: readonly SweptRow[]) => rows.map((row) => row.id);
const lane = (projectNo: number, region: ShardName["region"] = "us-east") => ({
  projectNo,
  region,
  flowClass: "production jobs" as const,
});
const sweep = async (...shards: ReturnType<typeof shard>[]) =>
  (await sweepShards(store.db, shards, [], 0)).rows;

describe("ranges of shards", () => {
  test("hold exactly the given shards, each with its own instant, and no two that could be one", () => {
    const shards = fc.uniqueArray(
      fc.record({
        region: fc.constantFrom("us-east" as const, "eu-central" as const),
        shard: fc.nat(12),
        sinceAt: fc.constantFrom(EVER, 1, 2),
      }),
      { selector: shardName },
    );
    fc.assert(
      fc.property(shards, (given) => {
        const ranges = rangesOf(given);
        const held = ranges.flatMap(({ region, shard: first, lastShard, sinceAt }) =>
          Array.from({ length: lastShard - first + 1 }, (_, ahead) => ({
            region,
            shard: first + ahead,
            sinceAt,
          })),
        );
        const byName = (one: ShardName, other: ShardName) => (shardName(one) < shardName(other) ? -1 : 1);
        expect(held.sort(byName)).toEqual(given.toSorted(byName));
        for (const [index, { region, shard: first, sinceAt }] of ranges.entries()) {
          const before = ranges[index - 1];
          expect(
            before?.region === region && before.lastShard === first - 1 && before.sinceAt === sinceAt,
          ).toBe(false);
        }
      }),
    );
  });
});

describe("the sweep", () => {
  test("finds what is due in the given shards, the oldest first in each lane, and says when it looked", async () => {
    const project = await store.addProject();
    const now = Date.now();
    const early = await store.addJobs(project, 3, { shard: 11 });
    const [soon = ""] = await store.addJobs(project, 1, { shard: 11, runAt: now + 20_000 });
    await store.addJobs(project, 1, { shard: 11, runAt: now + 120_000 });
    const [west = ""] = await store.addJobs(project, 1, { shard: 11, region: "us-west" });
    const [development = ""] = await store.addJobs(project, 1, { shard: 11, environment: "development" });
    const elsewhere = await store.addProject();
    await store.addJobs(elsewhere, 1, { shard: 12 });

    const askedAt = Date.now();
    const { rows, sweptAt } = await sweepShards(store.db, [shard(11)], [], 60_000);
    expect(sweptAt).toBeWithin(askedAt - 1_000, Date.now() + 1_000);
    const production = rows.filter((row) => row.flowClass === "production jobs");
    expect(idsOf(production).slice(3)).toEqual([soon]);
    expect(idsOf(production).slice(0, 3).sort()).toEqual([...early].sort());
    expect(production[3]).toEqual({
      projectNo: project,
      flowClass: "production jobs",
      region: "us-east",
      shard: 11,
      id: soon,
      attempt: 1,
      dueAt: Math.floor(now) + 20_000,
      concurrency: 500,
    });
    expect(idsOf(rows.filter((row) => row.flowClass === "development jobs"))).toEqual([development]);
    expect(idsOf(await sweep(shard(11, EVER, "us-west")))).toEqual([west]);
    expect((await sweep(shard(11))).map((row) => row.id)).not.toContain(soon);
    expect(await sweep(shard(13))).toEqual([]);
  });

  test("leaves out attempts on the wire, canceled and ended jobs, and finds retries, also those by hand", async () => {
    const project = await store.addProject();
    const [running = "", canceled = "", over = "", again = "", retried = ""] = await store.addJobs(
      project,
      5,
      {
        shard: 21,
      },
    );
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    await store.start(nodeId, project, running);
    await cancelJob(store.db, scope, canceled, keyCause());
    await settleAttempts(store.db, [settlementOf(await store.start(nodeId, project, over))]);
    const failing = [await store.start(nodeId, project, again), await store.start(nodeId, project, retried)];
    await settleAttempts(store.db, [
      settlementOf(failing[0] as never, failedWith({ dueAt: 0 })),
      settlementOf(failing[1] as never, failedWith("over")),
    ]);
    await retryRun(store.db, scope, failing[1]?.granted.runId ?? "", store.newRunId(), keyCause());
    const rows = await sweep(shard(21));
    expect(rows.map((row) => [row.id, row.attempt])).toEqual([
      [again, 2],
      [retried, 2],
    ]);
  });

  test("bounds each lane by its project's limit alone, so that no backlog hides another project's jobs", async () => {
    const [huge, small, wide] = [
      await store.addProject({ concurrency: 40 }),
      await store.addProject({ concurrency: 1 }),
      await store.addProject({ concurrency: 100_000 }),
    ];
    await backlog(huge, 31, 5_000);
    await backlog(wide, 31, 5_000);
    const [one = ""] = await store.addJobs(small, 1, { shard: 31 });
    const rows = await sweep(shard(31));
    const counts = Map.groupBy(rows, (row) => row.projectNo);
    expect(counts.get(huge)).toHaveLength(80);
    expect(counts.get(wide)).toHaveLength(LANE_ROOM_MAX);
    expect(idsOf(counts.get(small) ?? [])).toEqual([one]);
    expect([1, 31, 40, 500, 100_000].map(laneRoom)).toEqual([
      LANE_ROOM_MIN,
      LANE_ROOM_MIN,
      80,
      1_000,
      LANE_ROOM_MAX,
    ]);
    const dueAts = counts.get(huge)?.map((row) => row.dueAt) ?? [];
    expect(dueAts).toEqual([...dueAts].sort((first, second) => first - second));
  });

  test("begins at the mark, and leaves out the given lanes", async () => {
    const [one, other] = [await store.addProject(), await store.addProject()];
    await backlog(one, 41, 50);
    await backlog(other, 41, 50);
    const all = await sweep(shard(41));
    const middle = all.filter((row) => row.projectNo === one)[20]?.dueAt ?? 0;
    const later = await sweep(shard(41, middle));
    expect(later).toEqual(all.filter((row) => row.dueAt >= Math.floor(middle)));
    const { rows } = await sweepShards(store.db, [shard(41)], [lane(one)], 0);
    expect(rows).toEqual(all.filter((row) => row.projectNo === other));
    const others = await sweepShards(store.db, [shard(41)], [lane(one, "us-west"), lane(other)], 0);
    expect(others.rows).toEqual(all.filter((row) => row.projectNo === one));
  });

  test("refills the given lanes, each from its own mark and up to its own room", async () => {
    const [one, other] = [await store.addProject(), await store.addProject()];
    await backlog(one, 51, 30);
    await backlog(other, 51, 30);
    const all = await sweep(shard(51));
    const of = (projectNo: number) => all.filter((row) => row.projectNo === projectNo);
    const { rows, sweptAt } = await refillLanes(
      store.db,
      [
        { ...lane(one), sinceAt: of(one)[10]?.dueAt ?? 0, room: 5 },
        { ...lane(other), sinceAt: EVER, room: 7 },
        { ...lane(await store.addProject()), sinceAt: EVER, room: 7 },
      ],
      0,
    );
    expect(rows.filter((row) => row.projectNo === one)).toEqual(of(one).slice(10, 15));
    expect(rows.filter((row) => row.projectNo === other)).toEqual(of(other).slice(0, 7));
    expect(sweptAt).toBeGreaterThan(Date.now() - 5_000);
  });

  test("can trust its mark: no row is ever due before the clock of the statement that writes it", async () => {
    const project = await store.addProject();
    const clock = async () => {
      const [row] = await store.query<{ now: number }>(
        "SELECT (extract(epoch FROM now()) * 1000)::float8 AS now",
      );
      return row?.now ?? 0;
    };
    const startedAt = await clock();
    const [jobId = ""] = await store.addJobs(project, 1, { shard: 61, runAt: Date.now() - 50_000 });
    const attempt = await store.start(nodeId, project, jobId);
    await settleAttempts(store.db, [settlementOf(attempt, failedWith({ dueAt: 0 }))]);
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    await retryRun(store.db, scope, attempt.granted.runId, store.newRunId(), keyCause());
    const [row] = await sweep(shard(61));
    expect(row?.dueAt).toBeGreaterThanOrEqual(startedAt);
    expect(SWEEP_LAG_MS).toBeGreaterThan(5_000);
  });
});

describe("with 100,000 owed rows", () => {
  test("every hot statement finds its rows by the index that is meant for it", async () => {
    const project = await store.addProject({ concurrency: 100 });
    await backlog(project, 71, 100_000);
    const [jobId = ""] = await store.addJobs(project, 1, { shard: 71 });
    const failing = await store.addJobs(project, 1, { shard: 71 });
    const failed = await store.start(nodeId, project, failing[0] ?? "");
    await settleAttempts(store.db, [settlementOf(failed, failedWith({ dueAt: Date.now() + 60_000 }))]);
    await store.query("VACUUM ANALYZE");

    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    const page = { ...scope, region: null, beforeId: null, limit: 50 };
    const recorder = recordStatements(store.db);
    const claim = store.claimOf(project, jobId);
    await claimAttempts(recorder.db, nodeId, [claim]);
    await settleAttempts(recorder.db, [
      settlementOf({ claim, granted: { runId: claim.runId } }, { isPlain: true }),
    ]);
    await sweepShards(recorder.db, [shard(71), shard(72)], [lane(project + 1)], 1_500);
    await refillLanes(recorder.db, [{ ...lane(project), sinceAt: EVER, room: 100 }], 1_500);
    for (const status of [null, "queued", "running", "failed"] as const)
      await listJobs(recorder.db, { ...page, status });
    await findJob(recorder.db, scope, jobId);
    await listRuns(recorder.db, { ...page, jobId: null, status: null });
    await listRuns(recorder.db, { ...page, jobId, status: null });
    await findRun(recorder.db, scope, claim.runId);
    await listLostAttempts(recorder.db, { beganBefore: Date.now() - 60_000, afterMs: 60_000 }, 10);
    await retryRun(recorder.db, scope, failed.granted.runId, store.newRunId(), keyCause());
    await cancelJob(recorder.db, scope, failing[0] ?? "", keyCause());

    // The indexes of open_jobs that each statement may use.
    const WANTED: Record<string, string[]> = {
      claim: ["open_jobs_pkey"],
      settle: ["open_jobs_pkey"],
      sweep: ["open_jobs_due"],
      refill: ["open_jobs_due"],
      list_jobs_any: ["open_jobs_pkey"],
      list_jobs_queued: ["open_jobs_pkey"],
      list_jobs_running: ["open_jobs_pkey", "open_jobs_in_progress"],
      list_jobs_ended: ["open_jobs_pkey"],
      find_job: ["open_jobs_pkey"],
      find_job_state: ["open_jobs_pkey"],
      list_runs: ["open_jobs_in_progress"],
      list_runs_of_job: ["open_jobs_pkey"],
      find_run: ["open_jobs_in_progress"],
      list_lost: ["open_jobs_in_progress"],
      retry_run: ["open_jobs_pkey"],
      cancel_job: ["open_jobs_pkey"],
    };
    expect([...recorder.statements.keys()].sort()).toEqual(Object.keys(WANTED).sort());
    for (const [name, { text, values }] of recorder.statements) {
      for (const mode of ["force_generic_plan", "force_custom_plan"]) {
        const plan = await explain(store, { mode, text, values, tables: OPEN_JOBS });
        const others = plan.indexes.filter((index) => !WANTED[name]?.includes(index));
        expect({ name, mode, others, whole: plan.scanned }).toEqual({
          name,
          mode,
          others: [],
          // It has one row.
          whole: name === "list_lost" ? ["clock_watch"] : [],
        });
        expect(plan.indexes).not.toEqual([]);
      }
    }
  });

  test("a claim, a page and a sweep read few pages", async () => {
    const project = await store.addProject({ concurrency: 100 });
    await backlog(project, 81, 50_000);
    const jobs = await store.addJobs(project, 100, { shard: 81 });
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    const recorder = recordStatements(store.db);
    await claimAttempts(
      recorder.db,
      nodeId,
      jobs.map((id) => store.claimOf(project, id, { attempt: 9 })),
    );
    await sweepShards(recorder.db, [shard(81)], [], 1_500);
    for (const status of ["queued", "running", "succeeded"] as const)
      await listJobs(recorder.db, { ...scope, region: null, beforeId: null, limit: 50, status });
    for (const [name, { text, values }] of recorder.statements) {
      const { pagesRead } = await explain(store, {
        mode: "force_generic_plan",
        text,
        values,
        tables: OPEN_JOBS,
      });
      // A hundred look-ups of five pages each, and as many pages again for locks. Reading the whole table would take
      // thousands.
      expect({ name, isFew: pagesRead < 1_500 }).toEqual({ name, isFew: true });
    }
  });
});

/** Makes jobs of a lane that are due a millisecond apart, the last one now. */
async function backlog(projectNo: number, shardNo: number, count: number): Promise<void> {
  await store.addJobs(projectNo, 1, { shard: shardNo });
  await store.query("DELETE FROM open_jobs WHERE project_no = $1", [projectNo]);
  await store.query(
    `WITH job AS (
       INSERT INTO jobs (id, project_no, environment, region, run_at, base_seconds, cap_seconds, max_attempts, target_url, payload)
       SELECT gen_random_uuid(), $1, 1, 0, now() - ($2::int - n) * interval '1 ms', 1, 1, 5, 'https://target.example', '{}'
         FROM generate_series(1, $2::int) AS n
       RETURNING id, run_at)
     INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
     SELECT $1, 1, 0, id, run_at, 5 FROM job`,
    [projectNo, count],
  );
}
