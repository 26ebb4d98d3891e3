import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { type FlowSteps, flowSteps, newKey, type Running, scopeOf } from "../flow-test-support.ts";
import { failedWith, startStore, type TestStore } from "../test-support.ts";
import { changeFlowKey, findFlowKey, listFlowKeys } from "./flow-keys.ts";

let store: TestStore;
let { start, settle } = {} as FlowSteps;
beforeAll(async () => {
  store = await startStore();
  ({ start, settle } = flowSteps(store, await store.addNode()));
});
afterAll(() => store.stop());

/** How many attempts wait for the key, as the list and the key itself tell alike. */
async function waiting(project: ProjectNo, key: string): Promise<number | undefined> {
  const found = await findFlowKey(store.db, scopeOf(project), key);
  const listed = await listFlowKeys(store.db, scopeOf(project), { after: null, limit: 10 });
  expect(listed.find((row) => row.key === key)).toEqual(found ?? undefined);
  return found?.waiting;
}
const later = () => ({ runAt: Date.now() + 3_600_000 });

describe("the number of attempts that wait for a key", () => {
  test("has those that its rate keeps back, before and after a claim has put them off, and not those due later", async () => {
    const project = await store.addProject();
    const flow = { key: newKey(), rate: { count: 3, per_seconds: 3_600 } };
    await store.addJobs(project, 2, { flow });
    await store.addJobs(project, 2, { flow, ...later() });
    expect(await waiting(project, flow.key)).toBe(0);
    await store.addJobs(project, 3, { flow });
    expect(await waiting(project, flow.key)).toBe(2);
    const started = await start(project);
    expect(started.length).toBe(3);
    for (const each of started) await settle(each);
    expect(await waiting(project, flow.key)).toBe(2);
    expect(await start(project)).toEqual([]);
    expect(await waiting(project, flow.key)).toBe(2);
  });

  test("has what waits for a place, over all regions, and not what only the project's limit keeps back", async () => {
    const project = await store.addProject({ concurrency: 0 });
    const key = newKey();
    await store.addJobs(project, 3, { flow: { key } });
    expect(await waiting(project, key)).toBe(0);
    await start(project);
    expect(await waiting(project, key)).toBe(0);
    await store.addJobs(project, 1, { flow: { key, concurrency: 3 } });
    await store.addJobs(project, 2, { flow: { key }, region: "eu-central" });
    expect(await waiting(project, key)).toBe(3);
    await changeFlowKey(store.db, scopeOf(project), key, { concurrency: 5 }, keyCause());
    expect(await waiting(project, key)).toBe(1);
    await changeFlowKey(store.db, scopeOf(project), key, { paused: true }, keyCause());
    expect(await waiting(project, key)).toBe(6);
  });

  test("has none that is on the wire, or waits for its next attempt", async () => {
    const project = await store.addProject();
    const key = newKey();
    await store.addJobs(project, 3, { flow: { key, concurrency: 2 } });
    const [first, second] = await start(project);
    expect(await waiting(project, key)).toBe(1);
    await settle(first as Running, failedWith({ dueAt: later().runAt }));
    expect(await waiting(project, key)).toBe(0);
    await settle(second as Running, failedWith({ dueAt: later().runAt }));
    expect(await waiting(project, key)).toBe(0);
  });
});
