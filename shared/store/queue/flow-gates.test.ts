import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { FLOW_CONCURRENCY_BOUNDS, FLOW_KEYS_KEPT_MAX, type Flow } from "../../domain/flow-key.ts";
import { idToUuid } from "../../domain/ids.ts";
import type { OwedAttempt } from "../../domain/owed.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { type FlowSteps, flowSteps, idsOf, newKey, type Running, scopeOf } from "../flow-test-support.ts";
import { changeFlowKey as change, findFlowKey, listFlowKeys } from "../resources/flow-keys.ts";
import { createJobs } from "../resources/job-creation.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { createSchedule } from "../resources/schedules.ts";
import { scheduleOf } from "../schedule-test-support.ts";
import { claimShortFirst, failedWith, inTime, startStore, type TestStore, until } from "../test-support.ts";
import { type Claim, claimWhole } from "./claim.ts";
import { claimKeyed } from "./claim-keyed.ts";
import { purgeFlowKeys } from "./flow-key-purge.ts";
import { emptyGateCalls } from "./gate-calls.ts";
import { parkAttempts } from "./parking.ts";

let store: TestStore;
let nodeId: number;
let { due, parked, claim, start, settle } = {} as FlowSteps;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  ({ due, parked, claim, start, settle } = flowSteps(store, nodeId));
});
afterAll(() => store.stop());

const addJobs = (project: ProjectNo, count: number, flow: Flow, wish = {}) =>
  store.addJobs(project, count, { flow, ...wish });

/** Changes a key, and calls the attempts that the change lets start. */
async function changeFlowKey(...asked: Parameters<typeof change>) {
  const row = await change(...asked);
  const owed: OwedAttempt[] = [];
  await emptyGateCalls(store.db, (called) => owed.push(...called));
  return { row, owed };
}

describe("a limit for attempts at a time", () => {
  test("lets as many start as it has places, and a place that comes back lets the next start, in order", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 5, { key, concurrency: 2 });
    expect(await due(project)).toEqual(jobs.slice(0, 2));
    expect(await parked(project)).toEqual(jobs.slice(2));
    const running = await start(project);
    expect(idsOf(running)).toEqual(jobs.slice(0, 2));
    expect(await findFlowKey(store.db, scopeOf(project), key)).toEqual({
      key,
      concurrency: 2,
      rate: null,
      paused: false,
      pinned: false,
      inUse: 2,
      waiting: 3,
      nextStartAt: null,
    });
    const settled = await settle(running[0] as Running);
    expect(settled.owed.map(({ id }) => id)).toEqual([jobs[2] as string]);
    const next = await start(project);
    expect(idsOf(next)).toEqual([jobs[2] as string]);
    expect(next[0]?.granted.waitedFor).toBe("flow");
    expect(running[0]?.granted.waitedFor).toBeUndefined();
    for (const each of [running[1] as Running, ...next]) await settle(each);
    for (const each of await start(project)) await settle(each);
    expect(await start(project)).toEqual([]);
    expect(await findFlowKey(store.db, scopeOf(project), key)).toMatchObject({ inUse: 0, waiting: 0 });
  });

  test("lets the next start when an attempt ends that is to be repeated later, whose place comes back until then", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 3, { key, concurrency: 1 });
    const [first] = await start(project);
    const settled = await settle(first as Running, failedWith({ dueAt: Date.now() + 60_000 }));
    expect(settled.owed.map(({ id }) => id)).toContain(jobs[1] as string);
    expect(idsOf(await start(project))).toEqual([jobs[1] as string]);
    expect(await parked(project)).toEqual([jobs[2] as string]);
  });

  test("parks what comes due while it is full, and leaves others alone", async () => {
    const project = await store.addProject();
    const key = newKey();
    const later = { runAt: Date.now() + 3_600_000 };
    const jobs = await addJobs(project, 3, { key, concurrency: 1 }, later);
    expect(await parked(project)).toEqual([]);
    await store.query("UPDATE open_jobs SET due_at = now(), parked_due_at = now() WHERE project_no = $1", [
      project,
    ]);
    const [other = ""] = await store.addJobs(project, 1);
    const { answers } = await claim(project, [...jobs, other]);
    expect(answers.map(({ kind }) => kind)).toEqual(["granted", "gone", "gone", "granted"]);
    expect(await parked(project)).toEqual(jobs.slice(1));
  });

  test("puts off what an earlier one of another region keeps from starting, the longer the longer it has waited", async () => {
    const project = await store.addProject();
    const flow = { key: newKey(), concurrency: 1 };
    await addJobs(project, 1, flow);
    const [other = ""] = await addJobs(project, 1, flow, { region: "eu-central" });
    const waits: number[] = [];
    for (const seconds of [0, 4, 30]) {
      await store.query(
        `UPDATE open_jobs SET due_at = now(), parked_due_at = now() - $2 * interval '1 s' - CASE region WHEN 0 THEN interval '1 ms' ELSE '0' END
          WHERE project_no = $1`,
        [project, seconds],
      );
      const claims = [store.claimOf(project, other, { region: "eu-central" })];
      const [answer] = await claimShortFirst(store.db, nodeId, claims);
      if (answer?.kind !== "early") throw new Error(`the answer is ${answer?.kind}`);
      waits.push(Math.round(answer.waitMs));
    }
    const [atOnce = 0, soon = 0, late] = waits;
    expect(atOnce).toBeGreaterThanOrEqual(100);
    expect(soon).toBeGreaterThanOrEqual(400);
    expect(soon).toBeGreaterThan(atOnce);
    expect(late).toBe(1_000);
  });

  test("lets an earlier one start that was parked behind others, once one of these finds it before itself", async () => {
    const project = await store.addProject();
    const jobs = await addJobs(project, 3, { key: newKey(), concurrency: 1 });
    // The third job's creation began before the others' and locked the key after them, or the clock was set back.
    await store.query(
      "UPDATE open_jobs SET parked_due_at = parked_due_at - interval '1 s' WHERE project_no = $1 AND job_id = $2",
      [project, idToUuid(jobs[2] ?? "")],
    );
    expect(await start(project)).toEqual([]);
    expect(idsOf(await start(project))).toEqual([jobs[2] as string]);
    expect(await parked(project)).toEqual(jobs.slice(0, 2));
  });

  test("is exact while two nodes claim and settle at once, and leaves nothing parked", async () => {
    const project = await store.addProject();
    const otherNode = await store.addNode();
    const key = newKey();
    const jobs = await addJobs(project, 40, { key, concurrency: 3 });
    let most = 0;
    const work = async (node: number) => {
      for (;;) {
        const [row] = await store.query<{ left: number }>(
          "SELECT count(*)::int AS left FROM open_jobs WHERE project_no = $1",
          [project],
        );
        if (row?.left === 0) return;
        const claims = (await due(project)).map((id) => store.claimOf(project, id));
        if (claims.length === 0) {
          await emptyGateCalls(store.db);
          continue;
        }
        const answers = await claimShortFirst(store.db, node, claims);
        most = Math.max(most, await store.onWire(project));
        for (const [index, answer] of answers.entries()) {
          if (answer.kind !== "granted") continue;
          await settle({ claim: claims[index] as Claim, granted: answer.attempt });
        }
      }
    };
    await Promise.all([work(nodeId), work(otherNode), work(nodeId)]);
    expect(most).toBeGreaterThan(1);
    expect(most).toBeLessThanOrEqual(3);
    const [ended] = await store.query<{ count: number }>(
      "SELECT count(*)::int AS count FROM ended_jobs WHERE project_no = $1",
      [project],
    );
    expect(ended?.count).toBe(jobs.length);
    expect(await findFlowKey(store.db, scopeOf(project), key)).toMatchObject({ inUse: 0, waiting: 0 });
  });
});

describe("a limit for starts in a window", () => {
  test("lets no more start, and gives the next the instant at which it may", async () => {
    let [project, jobs, startedAt]: [number, string[], number] = [0, [], 0];
    await inTime(2_000, async (begin) => {
      project = await store.addProject();
      const key = newKey();
      jobs = await addJobs(project, 5, { key, rate: { count: 2, per_seconds: 2 } });
      begin();
      const first = await start(project);
      expect(idsOf(first)).toEqual(jobs.slice(0, 2));
      for (const each of first) await settle(each);
      startedAt = first[0]?.granted.startedAt ?? 0;
      const row = await findFlowKey(store.db, scopeOf(project), key);
      expect(row?.nextStartAt).toBeCloseTo(startedAt + 2_000, 0);
      expect(row?.waiting).toBe(3);
      expect(await start(project)).toEqual([]);
    });
    const started = new Map<string, number>();
    await until(async () => {
      for (const each of await start(project)) {
        started.set(each.granted.jobId, each.granted.startedAt);
        await settle(each);
      }
      return started.size === 3;
    });
    expect([...started.keys()]).toEqual(jobs.slice(2));
    expect(started.get(jobs[2] as string)).toBeGreaterThanOrEqual(startedAt + 2_000 - 0.001);
    expect(started.get(jobs[4] as string)).toBeGreaterThanOrEqual(
      (started.get(jobs[2] as string) ?? 0) + 2_000 - 0.001,
    );
  });

  test("tells a claim that comes before that instant what it waits for", async () => {
    const project = await store.addProject();
    const jobs = await addJobs(project, 2, { key: newKey(), rate: { count: 1, per_seconds: 3_600 } });
    expect(idsOf(await start(project))).toEqual(jobs.slice(0, 1));
    const refused = async () => (await claim(project, jobs.slice(1))).answers;
    expect(await refused()).toMatchObject([{ kind: "early", putOffFor: "flow" }]);
    // The worker may have been told earlier that the job is due.
    await store.query("UPDATE open_jobs SET due_at = now() WHERE job_id = $1", [idToUuid(jobs[1] as string)]);
    expect(await refused()).toMatchObject([{ kind: "early", putOffFor: "flow" }]);
  });

  test("remembers starts of a large count in parts of the window, and never too few", async () => {
    const project = await store.addProject({ concurrency: 10_000 });
    const key = newKey();
    await addJobs(project, 300, { key, rate: { count: 200, per_seconds: 3_600 } });
    const started: Running[] = [];
    await until(async () => {
      started.push(...(await start(project)));
      return started.length >= 200;
    });
    expect(await start(project)).toEqual([]);
    expect(started.length).toBe(200);
    const [row] = await store.query<{ parts: number; sum: number }>(
      "SELECT cardinality(started)::int AS parts, (SELECT sum(n)::int FROM unnest(started) n) AS sum FROM flow_keys WHERE project_no = $1",
      [project],
    );
    expect(row?.sum).toBe(200);
    expect(row?.parts).toBeLessThanOrEqual(2);
  });
});

describe("a place for the whole job", () => {
  test("is kept between attempts, so that jobs go strictly one after the other", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 2, { key, concurrency: 1, hold: "job" });
    const [first] = await start(project);
    await settle(first as Running, failedWith({ dueAt: Date.now() }));
    expect(await parked(project)).toEqual([jobs[1] as string]);
    expect(await findFlowKey(store.db, scopeOf(project), key)).toMatchObject({ inUse: 1, waiting: 1 });
    const [again] = await start(project);
    expect(again?.granted.jobId).toBe(jobs[0] as string);
    await settle(again as Running, failedWith("over"));
    expect(idsOf(await start(project))).toEqual([jobs[1] as string]);
  });

  test("comes back with a cancel between attempts, or at the end of the attempt that a cancel found on the wire", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 3, { key, concurrency: 1, hold: "job" });
    const [first] = await start(project);
    await settle(first as Running, failedWith({ dueAt: Date.now() + 60_000 }));
    await cancelJob(store.db, scopeOf(project), jobs[0] as string, keyCause());
    await emptyGateCalls(store.db);
    const [second] = await start(project);
    expect(second?.granted.jobId).toBe(jobs[1] as string);
    await cancelJob(store.db, scopeOf(project), jobs[1] as string, keyCause());
    await emptyGateCalls(store.db);
    expect(await start(project)).toEqual([]);
    await settle(second as Running);
    expect(idsOf(await start(project))).toEqual([jobs[2] as string]);
  });

  test("a paused key lets its holder wait as well, and both go on when it is resumed", async () => {
    const project = await store.addProject();
    const key = newKey();
    const scope = scopeOf(project);
    const jobs = await addJobs(project, 2, { key, concurrency: 1, hold: "job" });
    const [first] = await start(project);
    await settle(first as Running, failedWith({ dueAt: Date.now() }));
    await changeFlowKey(store.db, scope, key, { paused: true }, keyCause());
    expect(await start(project)).toEqual([]);
    expect((await parked(project)).sort()).toEqual(jobs.toSorted());
    const { row, owed } = await changeFlowKey(store.db, scope, key, { paused: false }, keyCause());
    expect(row).toMatchObject({ paused: false, inUse: 1, waiting: 1 });
    expect(owed.map(({ id }) => id)).toEqual([jobs[0] as string]);
    expect(idsOf(await start(project))).toEqual([jobs[0] as string]);
  });
});

describe("an attempt that waits for a lock", () => {
  const waysOf = (project: ProjectNo) => ({
    flow: ["SELECT FROM flows WHERE project_no = $1 FOR UPDATE", [project]],
    key: ["SELECT FROM flow_keys WHERE project_no = $1 FOR UPDATE", [project]],
  });
  test.each([
    ["the project's flow", "flow", claimWhole],
    ["its key", "key", claimWhole],
    ["the project's flow, the short way", "flow", claimKeyed],
    ["its key, the short way", "key", claimKeyed],
  ] as const)("of %s starts once it is there, by the clock of then", async (_what, lock, claimBy) => {
    const project = await store.addProject();
    const [job = ""] = await addJobs(project, 1, { key: newKey(), concurrency: 1 });
    const session = await store.session();
    await session.query("BEGIN");
    await session.query(...(waysOf(project)[lock] as [string, unknown[]]));
    const claiming = claimBy(store.db, nodeId, [store.claimOf(project, job)]);
    await store.untilBlocked(1);
    const { rows } = await session.query(
      "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS at",
    );
    await session.query("COMMIT");
    expect((await claiming)[0]).not.toBeNull();
    const [open] = await store.query<{ at: number }>(
      "SELECT (extract(epoch FROM started_at) * 1000)::float8 AS at FROM open_jobs WHERE project_no = $1",
      [project],
    );
    expect(open?.at).toBeGreaterThan(rows[0].at);
  });
});

describe("a creation of unknown outcome that is sent again", () => {
  test("counts nothing twice, so that the key's next jobs start", async () => {
    const project = await store.addProject();
    const key = newKey();
    const [first = ""] = await addJobs(project, 1, { key, concurrency: 1 });
    const [running] = await start(project);
    const job = store.newJob(project, { flow: { key } });
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM flow_keys WHERE project_no = $1 FOR UPDATE", [project]);
    const created = [1, 2].map(() => createJobs(store.db, [job], new Set()));
    await store.untilBlocked(2);
    await session.query("COMMIT");
    await Promise.all(created);
    expect(await parked(project)).toEqual([job.id]);
    expect(await findFlowKey(store.db, scopeOf(project), key)).toMatchObject({ inUse: 1, waiting: 1 });
    expect(running?.granted.jobId).toBe(first);
    await settle(running as Running);
    for (const each of await start(project)) await settle(each);
    const [last = ""] = await addJobs(project, 1, { key });
    expect(idsOf(await start(project))).toEqual([last]);
  });
});

describe("a key that is resumed", () => {
  test("lets all go on that have their place, however many", async () => {
    const project = await store.addProject();
    const key = newKey();
    const count = FLOW_CONCURRENCY_BOUNDS.max + 2;
    await addJobs(project, count, { key, hold: "job" });
    // Claims of a paused key leave jobs that have their place like this.
    await store.query(
      "UPDATE open_jobs SET has_place = true, gate = 'p' || flow_key, due_at = NULL WHERE project_no = $1",
      [project],
    );
    await changeFlowKey(store.db, scopeOf(project), key, { paused: false }, keyCause());
    await store.query("UPDATE open_jobs SET gate = NULL WHERE project_no = $1 AND due_at IS NOT NULL", [
      project,
    ]);
    await emptyGateCalls(store.db);
    expect(await parked(project)).toEqual([]);
  });
});

describe("what a key is told", () => {
  test("holds from the last one on, each limit by itself; pinned, jobs change nothing; by hand a limit is taken away", async () => {
    const project = await store.addProject();
    const key = newKey();
    const scope = scopeOf(project);
    await addJobs(project, 1, { key, concurrency: 5 });
    await addJobs(project, 1, { key, rate: { count: 7, per_seconds: 60 } });
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({
      concurrency: 5,
      rate: { count: 7, per_seconds: 60 },
    });
    await changeFlowKey(store.db, scope, key, { pinned: true, rate: null, concurrency: 3 }, keyCause());
    await addJobs(project, 1, { key, concurrency: 9 });
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({
      concurrency: 3,
      rate: null,
      pinned: true,
    });
    expect((await listFlowKeys(store.db, scope, { after: null, limit: 10 })).map((row) => row.key)).toEqual([
      key,
    ]);
    expect(await listFlowKeys(store.db, scope, { after: key, limit: 10 })).toEqual([]);
  });

  test("a raised limit lets those start that wait, whoever raised it", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 4, { key, concurrency: 1 });
    await start(project);
    const { owed } = await changeFlowKey(store.db, scopeOf(project), key, { concurrency: 2 }, keyCause());
    expect(owed.map(({ id }) => id)).toEqual([jobs[1] as string]);
    expect(idsOf(await start(project))).toEqual([jobs[1] as string]);
    const [last = ""] = await addJobs(project, 1, { key, concurrency: 4 });
    await emptyGateCalls(store.db);
    expect(idsOf(await start(project))).toEqual([jobs[2] as string, jobs[3] as string]);
    expect(await parked(project)).toEqual([last]);
  });

  test("a rate that is taken away starts what it had put off for a day", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 3, { key, rate: { count: 1, per_seconds: 86_400 } });
    expect(idsOf(await start(project))).toEqual([jobs[0] as string]);
    await start(project);
    expect(await due(project)).toEqual([]);
    const { owed } = await changeFlowKey(store.db, scopeOf(project), key, { rate: null }, keyCause());
    expect(owed.map(({ id }) => id).sort()).toEqual(jobs.slice(1));
    expect(idsOf(await start(project))).toEqual(jobs.slice(1));
  });

  test("lowered below what is in use, nothing is stopped and nothing starts", async () => {
    const project = await store.addProject();
    const key = newKey();
    await addJobs(project, 4, { key, concurrency: 3 });
    const running = await start(project);
    expect(running.length).toBe(3);
    await changeFlowKey(store.db, scopeOf(project), key, { concurrency: 1 }, keyCause());
    await settle(running[0] as Running);
    await settle(running[1] as Running);
    expect(await start(project)).toEqual([]);
    await settle(running[2] as Running);
    expect((await start(project)).length).toBe(1);
  });

  test("as many are pinned or paused as an environment may keep, and not one more of two that ask at once", async () => {
    const project = await store.addProject();
    const scope = scopeOf(project);
    await store.query(
      `INSERT INTO flow_keys (project_no, environment, flow_key, pinned, paused)
       SELECT $1, 1, 'kept' || n, n % 2 = 0, n % 2 = 1 FROM generate_series(2, $2) n`,
      [project, FLOW_KEYS_KEPT_MAX],
    );
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM projects WHERE no = $1 FOR UPDATE", [project]);
    const asked = [
      change(store.db, scope, newKey(), { pinned: true }, keyCause()),
      change(store.db, scope, newKey(), { paused: true, concurrency: 1 }, keyCause()),
    ];
    await store.untilBlocked(2);
    await session.query("COMMIT");
    expect((await Promise.all(asked)).filter((row) => row === "too_many").length).toBe(1);
    const another = newKey();
    expect(await change(store.db, scope, another, { pinned: true, concurrency: 1 }, keyCause())).toBe(
      "too_many",
    );
    expect(await findFlowKey(store.db, scope, another)).toBeNull();
    expect(await change(store.db, scope, another, { concurrency: 1 }, keyCause())).toMatchObject({
      concurrency: 1,
    });
    expect(await change(store.db, scope, "kept2", { paused: true }, keyCause())).toMatchObject({
      paused: true,
    });
    await change(store.db, scope, "kept3", { paused: false }, keyCause());
    expect(await change(store.db, scope, another, { paused: true }, keyCause())).toMatchObject({
      paused: true,
    });
  });

  test("is forgotten a day after its last use, unless it is pinned, paused, or named by an open job or a schedule", async () => {
    const project = await store.addProject();
    const scope = scopeOf(project);
    const [idle, pinned, paused, named, scheduled] = [newKey(), newKey(), newKey(), newKey(), newKey()];
    const schedule = scheduleOf(scope, 0, { flow: { key: scheduled } });
    expect(await createSchedule(store.db, schedule, keyCause(), null)).toBe("created");
    for (const key of [idle, pinned, paused])
      await changeFlowKey(store.db, scope, key, { concurrency: 1 }, keyCause());
    await changeFlowKey(store.db, scope, pinned, { pinned: true }, keyCause());
    await changeFlowKey(store.db, scope, paused, { paused: true }, keyCause());
    await addJobs(project, 1, { key: named }, { runAt: Date.now() + 86_400_000 });
    const inDays = (days: number) => Date.now() + days * 86_400_000;
    expect(await purgeFlowKeys(store.db, 1_000, inDays(0.9))).toBe(0);
    await store.query("UPDATE flow_keys SET used_at = now() - interval '2 days' WHERE project_no = $1", [
      project,
    ]);
    // Those that are kept do not end the purge.
    expect(await purgeFlowKeys(store.db, 2, inDays(0))).toBe(2);
    expect(await purgeFlowKeys(store.db, 2, inDays(0))).toBe(1);
    const left = await listFlowKeys(store.db, scope, { after: null, limit: 10 });
    expect(left.map(({ key }) => key)).toEqual([pinned, paused, named, scheduled].sort());
  });
});

describe("the purge", () => {
  test("waits for no key, and leaves one that a claim has locked to the next", async () => {
    const project = await store.addProject();
    const keys = [newKey(), newKey()].sort();
    for (const key of keys)
      await changeFlowKey(store.db, scopeOf(project), key, { concurrency: 1 }, keyCause());
    await store.query("UPDATE flow_keys SET used_at = now() - interval '2 days' WHERE project_no = $1", [
      project,
    ]);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM flow_keys WHERE project_no = $1 AND flow_key = $2 FOR NO KEY UPDATE", [
      project,
      keys[0],
    ]);
    await purgeFlowKeys(store.db, 1_000, Date.now());
    await session.query("ROLLBACK");
    const left = await listFlowKeys(store.db, scopeOf(project), { after: null, limit: 10 });
    expect(left.map(({ key }) => key)).toEqual(keys.slice(0, 1));
  });
});

describe("a job of a key", () => {
  test("that is canceled while it is parked, or in its lane, lets others pass", async () => {
    const project = await store.addProject();
    const key = newKey();
    const scope = scopeOf(project);
    const jobs = await addJobs(project, 4, { key, concurrency: 1 });
    await cancelJob(store.db, scope, jobs[0] as string, keyCause());
    await cancelJob(store.db, scope, jobs[2] as string, keyCause());
    await emptyGateCalls(store.db);
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({ inUse: 0, waiting: 1 });
    const [second] = await start(project);
    expect(second?.granted.jobId).toBe(jobs[1] as string);
    await settle(second as Running);
    expect(idsOf(await start(project))).toEqual([jobs[3] as string]);
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({ inUse: 1, waiting: 0 });
  });

  test("that its host keeps from starting lets others pass, and stands in its order again afterwards", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 3, { key, concurrency: 1 });
    const at = { host: "target.example", url: "https://target.example/hook" };
    const place = { ...scopeOf(project), region: "us-east" as const, attempt: 1 };
    expect(await parkAttempts(store.db, "jobs", [{ ...place, id: jobs[0] as string, ...at }])).toEqual([
      "parked",
    ]);
    await emptyGateCalls(store.db);
    const [second] = await start(project);
    expect(second?.granted.jobId).toBe(jobs[1] as string);
  });

  test("that failed and is retried by hand asks for a place anew", async () => {
    const project = await store.addProject();
    const key = newKey();
    const jobs = await addJobs(project, 2, { key, concurrency: 1, hold: "job" });
    const [first] = await start(project);
    await settle(first as Running, failedWith("over"));
    const [second] = await start(project);
    const scope = { ...scopeOf(project), sinceAt: 0, plan: "scale" as const };
    const retried = await retryRun(store.db, scope, first?.granted.runId ?? "", store.newRunId(), keyCause());
    expect(retried.kind).toBe("retried");
    expect(await start(project)).toEqual([]);
    expect(await parked(project)).toEqual([jobs[0] as string]);
    await settle(second as Running);
    expect(idsOf(await start(project))).toEqual([jobs[0] as string]);
  });
});
