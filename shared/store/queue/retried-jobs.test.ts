import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import type { Flow } from "../../domain/flow-key.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import {
  type FlowSteps,
  flowSteps,
  idsOf,
  newKey,
  type Running,
  retainedScopeOf,
  scopeOf,
} from "../flow-test-support.ts";
import { findFlowKey } from "../resources/flow-keys.ts";
import { retryRun } from "../resources/jobs-by-hand.ts";
import { comesToWait, failedWith, startStore, type TestStore } from "../test-support.ts";
import { purgeFlowKeys } from "./flow-key-purge.ts";

let store: TestStore;
let { due, parked, start, settle } = {} as FlowSteps;
beforeAll(async () => {
  store = await startStore();
  ({ due, parked, start, settle } = flowSteps(store, await store.addNode()));
});
afterAll(() => store.stop());

const retryByHand = (project: ProjectNo, { granted }: Running) =>
  retryRun(store.db, retainedScopeOf(project), granted.runId, store.newRunId(), keyCause());

/** A job of the key that has failed, and is the only one. */
async function fail(project: ProjectNo, flow: Flow): Promise<Running> {
  await store.addJobs(project, 1, { flow });
  const [running] = await start(project);
  await settle(running as Running, failedWith("over"));
  return running as Running;
}

const grow = (project: ProjectNo) =>
  store.query("UPDATE flow_keys SET used_at = now() - interval '2 days' WHERE project_no = $1", [project]);
const forget = async (project: ProjectNo) => {
  await grow(project);
  await purgeFlowKeys(store.db, 1_000, Date.now());
};

describe("a job that is reopened", () => {
  test("makes its key known again that was forgotten, and is counted at it", async () => {
    const project = await store.addProject();
    const scope = scopeOf(project);
    const key = newKey();
    const failed = await fail(project, { key, concurrency: 1 });
    await forget(project);
    expect(await findFlowKey(store.db, scope, key)).toBeNull();
    expect((await retryByHand(project, failed)).kind).toBe("retried");
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({ key, concurrency: null, inUse: 0 });
    const [again] = await start(project);
    expect(again?.granted.jobId).toBe(failed.granted.jobId);
    const [next = ""] = await store.addJobs(project, 1, { flow: { key, concurrency: 1 } });
    expect(await start(project)).toEqual([]);
    expect(await parked(project)).toEqual([next]);
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({ inUse: 1, waiting: 1 });
    await settle(again as Running);
    expect(idsOf(await start(project))).toEqual([next]);
    expect(await findFlowKey(store.db, scope, key)).toMatchObject({ inUse: 1, waiting: 0 });
  });

  test("makes its key known again that a purge forgets while the reopening waits for the job", async () => {
    const project = await store.addProject();
    const key = newKey();
    const failed = await fail(project, { key, concurrency: 1 });
    await grow(project);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM ended_jobs WHERE project_no = $1 FOR UPDATE", [project]);
    const retried = retryByHand(project, failed);
    await store.untilBlocked();
    await purgeFlowKeys(store.db, 1_000, Date.now());
    await session.query("COMMIT");
    expect((await retried).kind).toBe("retried");
    expect(await findFlowKey(store.db, scopeOf(project), key)).toMatchObject({ concurrency: null });
  });

  test("waits for a purge that forgets its key, and makes the key known again", async () => {
    const project = await store.addProject();
    const key = newKey();
    const failed = await fail(project, { key, concurrency: 1 });
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("DELETE FROM flow_keys WHERE project_no = $1", [project]);
    const retried = retryByHand(project, failed);
    expect(await comesToWait(store, retried)).toBe(true);
    await session.query("COMMIT");
    expect((await retried).kind).toBe("retried");
    expect(await findFlowKey(store.db, scopeOf(project), key)).toMatchObject({ concurrency: null });
  });

  test("makes no key known if its retry is refused, or if it has none", async () => {
    const project = await store.addProject();
    const failed = await fail(project, { key: newKey() });
    await forget(project);
    await store.query("UPDATE flows SET month_runs_max = month_runs WHERE project_no = $1", [project]);
    expect((await retryByHand(project, failed)).kind).toBe("quota_exceeded");
    await store.query("UPDATE flows SET month_runs_max = NULL WHERE project_no = $1", [project]);
    const [plain = ""] = await store.addJobs(project, 1);
    const [running] = await start(project);
    expect(running?.granted.jobId).toBe(plain);
    await settle(running as Running, failedWith("over"));
    expect((await retryByHand(project, running as Running)).kind).toBe("retried");
    expect(await store.query("SELECT FROM flow_keys WHERE project_no = $1", [project])).toEqual([]);
  });
});

describe("a rate", () => {
  const A_DAY = { count: 2, per_seconds: 86_400 };

  test("counts the attempts that repeat a failed one", async () => {
    const project = await store.addProject();
    const [job = ""] = await store.addJobs(project, 1, { flow: { key: newKey(), rate: A_DAY } });
    for (const attempt of [1, 2]) {
      const [running] = await start(project);
      expect(running?.claim).toMatchObject({ jobId: job, attempt });
      await settle(running as Running, failedWith({ dueAt: Date.now() }));
    }
    expect(await start(project)).toEqual([]);
    expect([await due(project), await parked(project)]).toEqual([[], []]);
  });

  test("counts retries by hand, which are accepted at once and sent when the rate allows", async () => {
    const project = await store.addProject();
    const key = newKey();
    const first = await fail(project, { key, rate: A_DAY });
    expect((await retryByHand(project, first)).kind).toBe("retried");
    const [second] = await start(project);
    expect(second?.granted.jobId).toBe(first.granted.jobId);
    await settle(second as Running, failedWith("over"));
    expect((await retryByHand(project, second as Running)).kind).toBe("retried");
    expect(await start(project)).toEqual([]);
    expect(await due(project)).toEqual([]);
    const row = await findFlowKey(store.db, scopeOf(project), key);
    expect(row?.nextStartAt).toBeCloseTo(first.granted.startedAt + A_DAY.per_seconds * 1_000, 0);
  });
});
