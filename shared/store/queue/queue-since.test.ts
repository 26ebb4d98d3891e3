import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimWhole } from "./claim.ts";
import { claimKeyed } from "./claim-keyed.ts";
import { emptyGateCalls } from "./gate-calls.ts";
import { releaseParked } from "./parked.ts";
import { parkAttempts } from "./parking.ts";
import { type KeyedSettlement, settleKeyed } from "./settle-keyed.ts";
import { SWEEP_LAG_MS } from "./sweep.ts";

/** The low-water mark of a flow key's queue (claim-keyed.ts). */

const KEY = "a";
const HOST = "jobs.example.com";
const DUE_SECONDS_AGO = 60;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 1 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

/** Jobs of the key that were due a minute ago, a second after each other, and stand in its queue. */
async function addQueue(project: ProjectNo, count: number, concurrency: number): Promise<string[]> {
  const flow = { key: KEY, concurrency };
  const jobs = await store.addJobs(project, count, { flow, runAt: 4_000_000_000_000 });
  await setDue(jobs, (index) => DUE_SECONDS_AGO - index);
  return jobs;
}

async function setDue(jobs: readonly string[], secondsAgo: (index: number) => number): Promise<void> {
  for (const [index, id] of jobs.entries())
    await store.query(
      "UPDATE open_jobs SET due_at = at, parked_due_at = at FROM (SELECT now() - $2 * interval '1 s' AS at) d WHERE job_id = $1",
      [idToUuid(id), secondsAgo(index)],
    );
}

/** Which of the jobs the short way grants, asked about all of them at once. */
async function claim(project: ProjectNo, jobs: readonly string[]): Promise<boolean[]> {
  const answers = await claimKeyed(
    store.db,
    nodeId,
    jobs.map((id) => store.claimOf(project, id)),
  );
  return answers.map((answer) => answer?.kind === "granted");
}

/** How many seconds ago the key's mark is, rounded; null if there is none. */
async function markOf(project: ProjectNo): Promise<number | null> {
  const [row] = await store.query<{ ago: number | null }>(
    `SELECT CASE WHEN queue_since > '-infinity' THEN round(extract(epoch FROM now() - queue_since))::int END AS ago
       FROM flow_keys WHERE project_no = $1`,
    [project],
  );
  return row?.ago ?? null;
}

describe("a claim with nothing before it moves the mark", () => {
  test("to its own due time, if that is longer ago than a statement may take", async () => {
    const project = await store.addProject();
    const [first = "", second = ""] = await addQueue(project, 3, 10);
    expect(await claim(project, [second])).toEqual([true]);
    expect(await markOf(project)).toBeNull();
    expect(await claim(project, [first])).toEqual([true]);
    expect(await markOf(project)).toBe(DUE_SECONDS_AGO);
  });

  test("and otherwise to as long ago as a statement may take", async () => {
    const project = await store.addProject();
    const jobs = await addQueue(project, 1, 10);
    await setDue(jobs, () => 1);
    expect(await claim(project, jobs)).toEqual([true]);
    expect(await markOf(project)).toBe(SWEEP_LAG_MS / 1_000);
  });
});

test("a claim reads no index entries of attempts that started before, which no vacuum may remove", async () => {
  const started = 10_000;
  const project = await store.addProject({ concurrency: 100 });
  const [first = "", second = "", third = ""] = await addQueue(project, 3, 100);
  const snapshot = await store.session();
  await snapshot.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
  await snapshot.query("SELECT 1");
  await store.query(
    `INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, parked_due_at, attempts_allowed, flow_key, gate)
     SELECT $1, 1, 0, gen_random_uuid(), at, at, 5, $2, 'k' || $2
       FROM (SELECT now() - interval '1 day' + n * interval '1 ms' AS at FROM generate_series(1, $3::int) AS n) dues`,
    [project, KEY, started],
  );
  await store.query("DELETE FROM open_jobs WHERE parked_due_at < now() - interval '1 hour'");
  const recorder = recordStatements(store.db);
  const pagesOf = async (job: string) => {
    await claimKeyed(recorder.db, nodeId, [store.claimOf(project, job, { attempt: 9 })]);
    const { text, values } = recorder.statements.get("claim_keyed") ?? { text: "", values: [] };
    const asked = { mode: "force_generic_plan", text, values, tables: ["open_jobs"] };
    return (await explain(store, asked)).pagesRead;
  };
  const before = await pagesOf(second);
  expect(await claim(project, [first])).toEqual([true]);
  const after = await pagesOf(second);
  expect(before).toBeGreaterThan(after + 50);
  // While a call tells of an attempt of the project that has come back, a claim looks at all entries.
  const call =
    "INSERT INTO gate_calls (project_no, environment, gate, comes_back) VALUES ($1, 1, 'kother', $2)";
  await store.query(call, [project, false]);
  expect(await pagesOf(third)).toBeLessThan(after + 10);
  await store.query(call, [project, true]);
  expect(await pagesOf(third)).toBeGreaterThan(after + 50);
  await snapshot.query("COMMIT");
});

describe("a settlement that hands a place on", () => {
  /** Hands the place of one attempt on to another, which is due so many ms after the mark. Answers by how many ms the mark has moved. */
  async function handOn(mark: string, dueMsAfter: number): Promise<number> {
    const project = await store.addProject();
    const [first = "", second = ""] = await addQueue(project, 2, 1);
    const started = await store.start(nodeId, project, first);
    const [before] = await store.query<{ mark: string }>(
      `UPDATE flow_keys SET queue_since = now() + $2::interval WHERE project_no = $1 RETURNING queue_since::text AS mark`,
      [project, mark],
    );
    await store.query(
      "UPDATE open_jobs SET due_at = at, parked_due_at = at FROM (SELECT $2::timestamptz + $3 * interval '1 ms' AS at) d WHERE job_id = $1",
      [idToUuid(second), before?.mark, dueMsAfter],
    );
    const settlement: KeyedSettlement = {
      ...{ ...settlementOf(started), next: { status: "succeeded" } },
      nextRunId: store.newRunId(),
    };
    const { next } = await settleKeyed(store.db, nodeId, [settlement]);
    expect(next[0]?.granted.jobId).toBe(second);
    const [after] = await store.query<{ moved: number }>(
      "SELECT extract(epoch FROM queue_since - $2::timestamptz)::float8 * 1000 AS moved FROM flow_keys WHERE project_no = $1",
      [project, before?.mark],
    );
    return after?.moved ?? Number.NaN;
  }

  test("moves the mark on, but not for a short step", async () => {
    expect([await handOn("-1 min", 99), await handOn("-1 min", 100)]).toEqual([0, 100]);
  });

  test("moves the mark back at once", async () => {
    // A mark of the future, from before the clock was set back.
    expect(await handOn("1 hour", -3_700_000)).toBe(-3_700_000);
  });
});

test("a claim of a key without a limit leaves the mark, since it does not look for what stands before", async () => {
  const project = await store.addProject();
  const [, second = ""] = await addQueue(project, 2, 10);
  await store.query("UPDATE flow_keys SET concurrency = NULL WHERE project_no = $1", [project]);
  expect(await claim(project, [second])).toEqual([true]);
  expect(await markOf(project)).toBeNull();
});

describe("an attempt that comes back to its queue comes before later ones", () => {
  /** A key with one place whose queue has a mark, and two jobs: the first was due before the mark and is elsewhere. */
  async function withMark() {
    const project = await store.addProject();
    const [first = "", second = "", last = ""] = await addQueue(project, 3, 1);
    await setDue([last], () => 2 * DUE_SECONDS_AGO);
    return { project, first, second, last };
  }

  test("released by a node, at once and after the call was taken", async () => {
    const { project, first, second, last } = await withMark();
    const place = { projectNo: project, environment: "production", region: "us-east" } as const;
    const url = `https://${HOST}/`;
    await parkAttempts(store.db, "jobs", [{ ...place, id: first, attempt: 1, host: HOST, url }]);
    await emptyGateCalls(store.db);
    await setDue([last], () => DUE_SECONDS_AGO / 2);
    expect(await claim(project, [second])).toEqual([true]);
    expect(await markOf(project)).toBe(DUE_SECONDS_AGO - 1);
    await store.query("UPDATE flow_keys SET in_use = 0 WHERE project_no = $1", [project]);
    const asked = { host: HOST, regions: ["us-east"], after: null, count: 10, countMin: 1 } as const;
    const { attempts } = await releaseParked(store.db, "jobs", asked);
    expect(attempts.map(({ id }) => id)).toEqual([first]);
    expect(await claim(project, [last])).toEqual([false]);
    await emptyGateCalls(store.db);
    expect(await markOf(project)).toBeNull();
    expect(await claim(project, [last])).toEqual([false]);
  });

  test("from the gate of a host", async () => {
    const { project, first, second, last } = await withMark();
    await store.query("UPDATE open_jobs SET gate = 'h' || $2 WHERE job_id = $1", [idToUuid(first), HOST]);
    await setDue([last], () => DUE_SECONDS_AGO / 2);
    expect(await claim(project, [second])).toEqual([true]);
    expect(await markOf(project)).toBe(DUE_SECONDS_AGO - 1);
    const [answer] = await claimWhole(store.db, nodeId, [store.claimOf(project, first)]);
    expect(answer?.kind).not.toBe("granted");
    expect(await markOf(project)).toBeNull();
    await store.query("UPDATE flow_keys SET in_use = 0 WHERE project_no = $1", [project]);
    expect(await claim(project, [last])).toEqual([false]);
  });
});

test("jobs that are due before the mark, since the clock was set back, are counted all the same", async () => {
  const project = await store.addProject();
  const [first = "", second = "", third = ""] = await addQueue(project, 3, 1);
  await store.query("UPDATE flow_keys SET queue_since = now() + interval '1 hour' WHERE project_no = $1", [
    project,
  ]);
  expect(await claim(project, [third, second])).toEqual([false, false]);
  expect(await claim(project, [third, second, first])).toEqual([false, false, true]);
  expect(await markOf(project)).toBe(DUE_SECONDS_AGO);
});
