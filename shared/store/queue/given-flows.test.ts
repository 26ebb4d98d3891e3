import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type { FlowRate } from "../../domain/flow-key.ts";
import type { OwedAttempt } from "../../domain/owed.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { type FlowSteps, flowSteps, idsOf, newKey, scopeOf } from "../flow-test-support.ts";
import { changeFlowKey, findFlowKey } from "../resources/flow-keys.ts";
import { createJobs } from "../resources/job-creation.ts";
import { createSchedule } from "../resources/schedules.ts";
import { firingOf, keyCause, scheduleOf, takeShard } from "../schedule-test-support.ts";
import { startStore, type TestStore, until } from "../test-support.ts";
import { fireBoundSchedules } from "./firings.ts";
import { emptyGateCalls } from "./gate-calls.ts";
import { createShards, type HeldShard } from "./shards.ts";

const SHARD = 3;
const A_DAY = { count: 1, per_seconds: 86_400 };
const PLENTY = { count: 1_000, per_seconds: 1 };

let store: TestStore;
let { due, parked, start, settle } = {} as FlowSteps;
let held: HeldShard;
beforeAll(async () => {
  store = await startStore();
  await createShards(store.db, ["us-east"], SHARD + 1);
  held = await takeShard(store, SHARD);
  ({ due, parked, start, settle } = flowSteps(store, await store.addNode()));
});
afterAll(() => store.stop());

/** A key with a rate under which as many jobs as `count` were started and as many were put off. Answers the latter. */
async function putOff(project: ProjectNo, key: string, rate: FlowRate): Promise<string[]> {
  const jobs = await store.addJobs(project, 2 * rate.count, { flow: { key, rate } });
  for (const each of await start(project)) await settle(each);
  expect(await start(project)).toEqual([]);
  expect([await due(project), await parked(project)]).toEqual([[], []]);
  return jobs.slice(rate.count);
}

const calls = (project: ProjectNo) =>
  store.query("SELECT gate FROM gate_calls WHERE project_no = $1", [project]);

/** Creates a schedule of the key and fires it. Answers the id of the job. */
async function fire(project: ProjectNo, flow: { key: string; rate?: FlowRate; concurrency?: number }) {
  const schedule = scheduleOf(scopeOf(project), SHARD, { flow });
  expect(await createSchedule(store.db, schedule, keyCause(), null)).toBe("created");
  await emptyGateCalls(store.db);
  return async () => {
    const firing = firingOf(schedule, held);
    expect((await fireBoundSchedules(store.db, [firing]))[0]?.kind).toBe("fired");
    return firing.jobId;
  };
}

describe("another rate", () => {
  test("that a job gives lets those start that the rate before had put off for a day", async () => {
    const project = await store.addProject();
    const key = newKey();
    const late = await putOff(project, key, A_DAY);
    const [last = ""] = await store.addJobs(project, 1, { flow: { key, rate: PLENTY } });
    const owed: OwedAttempt[] = [];
    await emptyGateCalls(store.db, (called) => owed.push(...called));
    expect(owed.map(({ id }) => id)).toEqual(late);
    expect(idsOf(await start(project)).sort()).toEqual([...late, last]);
  });

  test("that a firing gives lets them start as well", async () => {
    const project = await store.addProject();
    const key = newKey();
    const fireNow = await fire(project, { key, rate: PLENTY });
    const late = await putOff(project, key, A_DAY);
    const last = await fireNow();
    await emptyGateCalls(store.db);
    expect(idsOf(await start(project)).sort()).toEqual([...late, last].sort());
  });

  test("with a smaller count lets all of them start, one after the other", async () => {
    const project = await store.addProject();
    const key = newKey();
    const late = await putOff(project, key, { count: 3, per_seconds: 86_400 });
    const [last = ""] = await store.addJobs(project, 1, {
      flow: { key, rate: { count: 1, per_seconds: 1 } },
    });
    const started: string[] = [];
    await until(async () => {
      await emptyGateCalls(store.db);
      for (const each of await start(project)) {
        started.push(each.granted.jobId);
        await settle(each);
      }
      return started.length === 4;
    });
    expect(started).toEqual([...late, last]);
  });
});

describe("limits that a key has already", () => {
  test("call nobody, whether jobs repeat them, leave them out, or come first", async () => {
    const project = await store.addProject();
    const key = newKey();
    const flow = { key, concurrency: 1, rate: A_DAY };
    await store.addJobs(project, 2, { flow });
    await store.addJobs(project, 2, { flow });
    await store.addJobs(project, 2, { flow: { key } });
    expect(await calls(project)).toEqual([]);
    await changeFlowKey(store.db, scopeOf(project), key, { pinned: true }, keyCause());
    await emptyGateCalls(store.db);
    await store.addJobs(project, 1, { flow: { key, rate: PLENTY } });
    expect(await calls(project)).toEqual([]);
  });
});

describe("a key that was made while a creation waited", () => {
  test("hears of the limits that the creation gives it", async () => {
    const project = await store.addProject();
    const key = newKey();
    const session = await store.session();
    await session.query("BEGIN");
    await session.query(
      "INSERT INTO flow_keys (project_no, environment, flow_key, concurrency) VALUES ($1, 1, $2, 1)",
      [project, key],
    );
    const created = createJobs(store.db, [store.newJob(project, { flow: { key, rate: PLENTY } })], new Set());
    await store.untilBlocked();
    await session.query("COMMIT");
    await created;
    expect(await calls(project)).toEqual([{ gate: `k${key}` }]);
  });
});

describe("a firing", () => {
  test("hands the schedule's flow to its job, and gives the schedule's limits again", async () => {
    const project = await store.addProject();
    const key = newKey();
    const scope = scopeOf(project);
    const fireNow = await fire(project, { key, concurrency: 1, rate: PLENTY });
    await changeFlowKey(store.db, scope, key, { concurrency: 9, rate: A_DAY }, keyCause());
    const jobs = [await fireNow()];
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({ concurrency: 1, rate: PLENTY });
    jobs.push(...(await store.addJobs(project, 1, { flow: { key } })));
    const rows = await store.query<{ flow_key: string; gate: string }>(
      "SELECT flow_key, gate FROM open_jobs WHERE project_no = $1",
      [project],
    );
    expect(rows).toEqual(jobs.map(() => ({ flow_key: key, gate: `k${key}` })));
    expect(idsOf(await start(project))).toEqual(jobs.slice(0, 1));
  });
});
