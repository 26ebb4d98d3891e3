import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { comesToWait, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimKeyed } from "./claim-keyed.ts";
import { type KeyedSettlement, settleKeyed } from "./settle-keyed.ts";
import { refillLanes } from "./sweep.ts";

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

test("a sweep and a claim tell the same hash of a key, another one for another key, and the claim how many places there are", async () => {
  const project = await store.addProject();
  const ids = await Promise.all(
    [2, null].map((concurrency, n) =>
      store.addJobs(project, 1, { flow: { key: `customer ${n}`, ...(concurrency && { concurrency }) } }),
    ),
  ).then((lists) => lists.flat());
  const lane = { projectNo: project, flowClass: "production jobs", region: "us-east" } as const;
  const { rows } = await refillLanes(store.db, [{ ...lane, sinceAt: 0, room: 9 }], 0);
  const hashes = ids.map((id) => rows.find((row) => row.id === id)?.keyHash ?? Number.NaN);
  expect(new Set(hashes).size).toBe(2);
  const claims = ids.map((id) => store.claimOf(project, id));
  const answers = await claimKeyed(store.db, nodeId, claims);
  expect(answers.map((answer) => answer?.kind === "granted" && answer.attempt.key)).toEqual([
    { hash: hashes[0] as number, count: 2 },
    undefined,
  ]);
});

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

  for (const [change, refused] of [
    ["concurrency = 0", "gone"],
    ["in_use = 1", "gone"],
    ["paused = true", undefined],
    ["rate_count = 9, rate_seconds = 9", undefined],
  ] as const)
    test(`keeps what it does not let start: ${change}`, async () => {
      const project = await store.addProject();
      const [first = ""] = await store.addJobs(project, 1, { flow: { key: "a", concurrency: 1 } });
      const [other = ""] = await store.addJobs(project, 1, { flow: { key: "b", concurrency: 1 } });
      const claims = [first, other].map((id) => store.claimOf(project, id));
      const answers = await meanwhile(project, change, () => claimKeyed(store.db, nodeId, claims));
      expect(answers.map((answer) => answer?.kind)).toEqual([refused, "granted"]);
      expect(await store.onWire(project)).toBe(1);
    });

  test("calls what has come to wait by then", async () => {
    const project = await store.addProject();
    const flow = { key: "a", concurrency: 1 };
    const [first = ""] = await store.addJobs(project, 1, { flow });
    const attempt = await store.start(nodeId, project, first);
    const [second = ""] = await store.addJobs(project, 1, { flow, runAt: 4_000_000_000_000 });
    const settlement: KeyedSettlement = {
      ...{ ...settlementOf(attempt), next: { status: "succeeded" } },
      nextRunId: null,
    };
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("UPDATE flow_keys SET waiting[1] = 1 WHERE project_no = $1", [project]);
    await session.query("UPDATE open_jobs SET due_at = NULL, parked_due_at = now() WHERE job_id = $1", [
      idToUuid(second),
    ]);
    const settling = settleKeyed(store.db, nodeId, [settlement]);
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

test("a claim that parks an attempt calls what stands before it, as another creation may have left it", async () => {
  const project = await store.addProject();
  const [first = "", second = ""] = await store.addJobs(project, 2, {
    flow: { key: "a", concurrency: 1 },
    runAt: 4_000_000_000_000,
  });
  const due =
    "UPDATE open_jobs SET due_at = $2, parked_due_at = now() - $3 * interval '1 s' WHERE job_id = $1";
  await store.query(due, [idToUuid(first), null, 2]);
  await store.query(due, [idToUuid(second), new Date(), 1]);
  await store.query("UPDATE flow_keys SET waiting[1] = 1 WHERE project_no = $1", [project]);
  const called: string[] = [];
  const claims = [store.claimOf(project, second)];
  const answers = await claimKeyed(store.db, nodeId, claims, (owed) =>
    called.push(...owed.map(({ id }) => id)),
  );
  expect([answers, called]).toEqual([[{ kind: "gone" }], [first]]);
  expect(
    await store.query("SELECT in_use, waiting[1]::int AS waiting FROM flow_keys WHERE project_no = $1", [
      project,
    ]),
  ).toEqual([{ in_use: 0, waiting: 1 }]);
});

test("what is parked and locked by another is not called, and looked at again", async () => {
  const project = await store.addProject();
  const flow = { key: "a", concurrency: 1 };
  const [first = "", second = ""] = await store.addJobs(project, 2, { flow });
  const attempt = await store.start(nodeId, project, first);
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("SELECT FROM open_jobs WHERE job_id = $1 FOR UPDATE", [idToUuid(second)]);
  const { owed } = await settleKeyed(store.db, nodeId, [
    { ...settlementOf(attempt), next: { status: "succeeded" }, nextRunId: store.newRunId() },
  ]);
  await session.query("COMMIT");
  expect(owed).toEqual([]);
  expect(await store.query("SELECT gate FROM gate_calls WHERE project_no = $1", [project])).toEqual([
    { gate: "ka" },
  ]);
});
