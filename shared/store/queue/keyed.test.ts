import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { comesToWait, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimKeyed } from "./claim-keyed.ts";
import { settleKeyed } from "./settle-keyed.ts";
import type { LastSettlement } from "./settle-ordinary.ts";

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

describe("a key that is changed while the short way waits for it", () => {
  /** Runs `act` while another session holds the row of key "a" with `change`, and commits that once `act` waits. */
  async function meanwhile<T>(project: ProjectNo, change: string, act: () => Promise<T>): Promise<T> {
    const session = await store.session();
    await session.query("BEGIN");
    await session.query(`UPDATE flow_keys SET ${change} WHERE project_no = $1 AND flow_key = 'a'`, [project]);
    const acting = act();
    expect(await comesToWait(store, acting)).toBe(true);
    await session.query("COMMIT");
    return acting;
  }

  for (const change of ["concurrency = 0", "in_use = 1", "paused = true", "rate_count = 9, rate_seconds = 9"])
    test(`keeps what it does not let start: ${change}`, async () => {
      const project = await store.addProject();
      const [first = ""] = await store.addJobs(project, 1, { flow: { key: "a", concurrency: 1 } });
      const [other = ""] = await store.addJobs(project, 1, { flow: { key: "b", concurrency: 1 } });
      const claims = [first, other].map((id) => store.claimOf(project, id));
      const answers = await meanwhile(project, change, () => claimKeyed(store.db, nodeId, claims));
      expect(answers.map((answer) => answer !== null)).toEqual([false, true]);
      expect(await store.onWire(project)).toBe(1);
    });

  test("calls what has come to wait by then", async () => {
    const project = await store.addProject();
    const flow = { key: "a", concurrency: 1 };
    const [first = ""] = await store.addJobs(project, 1, { flow });
    const attempt = await store.start(nodeId, project, first);
    const [second = ""] = await store.addJobs(project, 1, { flow, runAt: 4_000_000_000_000 });
    const settlement: LastSettlement = { ...settlementOf(attempt), next: { status: "succeeded" } };
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("UPDATE flow_keys SET waiting[1] = 1 WHERE project_no = $1", [project]);
    await session.query("UPDATE open_jobs SET due_at = NULL, parked_due_at = now() WHERE job_id = $1", [
      idToUuid(second),
    ]);
    const settling = settleKeyed(store.db, [settlement]);
    expect(await comesToWait(store, settling)).toBe(true);
    await session.query("COMMIT");
    const { items, owed } = await settling;
    expect(items.map((item) => item?.status)).toEqual(["succeeded"]);
    expect(owed.map(({ id }) => id)).toEqual([second]);
    expect(
      await store.query("SELECT in_use, waiting FROM flow_keys WHERE project_no = $1", [project]),
    ).toEqual([{ in_use: 0, waiting: ["0", "0", "0", "0"] }]);
  });
});

test("what is parked and locked by another is not called, and looked at again", async () => {
  const project = await store.addProject();
  const flow = { key: "a", concurrency: 1 };
  const [first = "", second = ""] = await store.addJobs(project, 2, { flow });
  const attempt = await store.start(nodeId, project, first);
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("SELECT FROM open_jobs WHERE job_id = $1 FOR UPDATE", [idToUuid(second)]);
  const { owed } = await settleKeyed(store.db, [{ ...settlementOf(attempt), next: { status: "succeeded" } }]);
  await session.query("COMMIT");
  expect(owed).toEqual([]);
  expect(await store.query("SELECT gate FROM gate_calls WHERE project_no = $1", [project])).toEqual([
    { gate: "ka" },
  ]);
});
