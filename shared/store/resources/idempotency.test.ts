import { afterAll, beforeAll, beforeEach, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { keyCause } from "../../../test/support/cause.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { settleAttempts } from "../queue/settle.ts";
import { failedWith, orRefused, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { findFirstAnswer, type KeyToTake, purgeKeys } from "./idempotency.ts";
import { createJobs, type JobToCreate } from "./job-creation.ts";
import { findAskedJobs } from "./jobs.ts";
import { retryRun } from "./jobs-by-hand.ts";
import { listRuns } from "./run-list.ts";

let store: TestStore;
let project: ProjectNo;

beforeAll(async () => {
  store = await startStore();
});
beforeEach(async () => {
  project = await store.addProject();
});
afterAll(() => store.stop());

const newKey = (): KeyToTake => ({ digest: randomBytes(32), requestHash: randomBytes(32) });
const scope = () => ({ projectNo: project, environment: "production" as const, sinceAt: 0 });
const jobsOf = (key: KeyToTake, count = 1) =>
  Array.from({ length: count }, () => ({ ...store.newJob(project), key }));
const kinds = async (jobs: JobToCreate[]) =>
  (await createJobs(store.db, jobs, new Set())).map(({ kind }) => kind);
const find = (key: KeyToTake) => findFirstAnswer(store.db, scope(), key.digest);
const setAge = (key: KeyToTake, age: string) =>
  store.query("UPDATE idempotency_keys SET created_at = now() - $2::interval WHERE digest = $1", [
    key.digest,
    age,
  ]);

async function countRows(table: "jobs" | "open_jobs"): Promise<number> {
  const [row] = await store.query<{ count: number }>(
    `SELECT count(*)::int AS count FROM ${table} WHERE project_no = $1`,
    [project],
  );
  return row?.count ?? 0;
}

describe("jobs created under a key", () => {
  test("are created once, and the key answers their ids in their order", async () => {
    const key = newKey();
    const jobs = jobsOf(key, 3).toReversed();
    expect(await kinds(jobs)).toEqual(["created", "created", "created"]);
    expect(await kinds(jobsOf({ ...key, requestHash: randomBytes(32) }, 2))).toEqual([
      "key_taken",
      "key_taken",
    ]);
    const first = await find(key);
    expect(first).toMatchObject({
      requestHash: key.requestHash,
      jobIds: jobs.map(({ id }) => id),
      run: null,
    });
    const asked = await findAskedJobs(store.db, scope(), first?.jobIds ?? []);
    expect(asked.map(({ id, runAt }) => ({ id, runAt }))).toEqual(
      jobs.map(({ id, runAt }) => ({ id, runAt })),
    );
    expect(await countRows("open_jobs")).toBe(3);
  });

  test("are the same jobs when their request is sent again after an unknown outcome", async () => {
    const jobs = jobsOf(newKey(), 2);
    await kinds(jobs);
    expect(await kinds(jobs)).toEqual(["created", "created"]);
    expect(await countRows("jobs")).toBe(2);
  });

  test("share a statement with other requests, and each request has its own answer", async () => {
    const [taken, free] = [newKey(), newKey()];
    await kinds(jobsOf(taken));
    const hobby = await store.addProject({ plan: "hobby" });
    await store.query("UPDATE flows SET month_runs = 10000 WHERE project_no = $1", [hobby]);
    const spent = newKey();
    expect(
      await kinds([
        ...jobsOf(taken),
        store.newJob(project),
        ...jobsOf(free, 2),
        { ...store.newJob(hobby), key: spent },
      ]),
    ).toEqual(["key_taken", "created", "created", "created", "quota_exceeded"]);
    // A refused request has left its key free.
    expect(await findFirstAnswer(store.db, { ...scope(), projectNo: hobby }, spent.digest)).toBeNull();
  });

  test("wait for a request that is taking the key, and are refused only if that one commits", async () => {
    for (const end of ["COMMIT", "ROLLBACK"]) {
      const key = newKey();
      const winner = await store.session();
      await winner.query("BEGIN");
      await winner.query(
        "INSERT INTO idempotency_keys VALUES (now(), $1, 1, NULL, $2, $3, ARRAY[gen_random_uuid()], NULL)",
        [project, key.digest, key.requestHash],
      );
      const waiting = kinds(jobsOf(key));
      await store.untilBlocked();
      await winner.query(end);
      expect(await waiting).toEqual([end === "COMMIT" ? "key_taken" : "created"]);
    }
    expect(await countRows("jobs")).toBe(1);
  });

  test("with many keys in common, in any order, are created once and without a deadlock", async () => {
    for (let round = 0; round < 20; round++) {
      const keys = Array.from({ length: 40 }, newKey);
      const shuffled = () => keys.toSorted(() => Math.random() - 0.5).flatMap((key) => jobsOf(key));
      const answers = await Promise.all(Array.from({ length: 4 }, () => kinds(shuffled())));
      expect(answers.flat().filter((kind) => kind === "created")).toHaveLength(40);
    }
    expect(await countRows("jobs")).toBe(800);
  });

  test("find the key free again after 24 hours, and not before", async () => {
    const key = newKey();
    await kinds(jobsOf(key));
    await setAge(key, "23 h 59 min");
    expect(await kinds(jobsOf(key))).toEqual(["key_taken"]);
    await setAge(key, "24 h 1 s");
    expect(await find(key)).toBeNull();
    const later = { ...key, requestHash: randomBytes(32) };
    const jobs = jobsOf(later);
    expect(await kinds(jobs)).toEqual(["created"]);
    expect(await find(later)).toMatchObject({
      requestHash: later.requestHash,
      jobIds: jobs.map(({ id }) => id),
    });
  });
});

describe("a manual retry under a key", () => {
  test("begins one attempt, and the key answers which", async () => {
    const nodeId = await store.addNode();
    const [jobId = ""] = await store.addJobs(project, 1);
    const attempt = await store.start(nodeId, project, jobId);
    await settleAttempts(store.db, [settlementOf(attempt, failedWith({ dueAt: Date.now() }))]);
    const key = newKey();
    const retry = (asked: KeyToTake, newRunId = store.newRunId()) =>
      retryRun(store.db, scope(), attempt.granted.runId, newRunId, keyCause(), asked);

    const runId = store.newRunId();
    const retried = await retry(key, runId);
    expect(retried).toMatchObject({ kind: "retried", run: { id: runId, attempt: 2 } });
    const startedAt = retried.kind === "retried" ? retried.run.startedAt : 0;
    expect(await find(key)).toEqual({
      requestHash: key.requestHash,
      jobIds: [jobId],
      run: { id: runId, attempt: 2 },
      answer: null,
      at: startedAt,
    });
    // Its attempt fails as well. The same key begins no third attempt; another key does.
    const second = await store.start(nodeId, project, jobId, { attempt: 2 });
    await settleAttempts(store.db, [settlementOf(second, failedWith({ dueAt: Date.now() }))]);
    expect(await retry(key)).toEqual({ kind: "key_taken" });
    const query = { ...scope(), jobId, status: null, beforeId: null, limit: 10 };
    expect((await listRuns(store.db, query)).rows).toHaveLength(2);
    expect(await retry(newKey())).toMatchObject({ kind: "retried", run: { attempt: 3 } });
  });

  test("leaves the key free if it is refused", async () => {
    const nodeId = await store.addNode();
    const [jobId = ""] = await store.addJobs(project, 1);
    const attempt = await store.start(nodeId, project, jobId);
    await settleAttempts(store.db, [settlementOf(attempt)]);
    const key = newKey();
    const retrying = retryRun(store.db, scope(), attempt.granted.runId, store.newRunId(), keyCause(), key);
    expect(await orRefused(retrying)).toEqual({ kind: "refused" });
    expect(await find(key)).toBeNull();
  });
});

describe("expired keys", () => {
  test("are purged, the oldest first and up to the limit, while others stay", async () => {
    await purgeKeys(store.db, 10_000, Date.now());
    const keys = Array.from({ length: 5 }, newKey);
    for (const [index, key] of keys.entries()) {
      await kinds(jobsOf(key));
      await setAge(key, index === 4 ? "23 h 59 min" : `${25 + index} h`);
    }
    expect(await purgeKeys(store.db, 1, Date.now())).toBe(1);
    const left = await store.query<{ digest: Buffer }>(
      "SELECT digest FROM idempotency_keys WHERE project_no = $1 ORDER BY created_at DESC",
      [project],
    );
    expect(left.map(({ digest }) => digest)).toEqual(
      [4, 0, 1, 2].map((index) => keys[index]?.digest as Buffer),
    );
    expect(await purgeKeys(store.db, 100, Date.now())).toBe(3);
    expect(await purgeKeys(store.db, 100, Date.now())).toBe(0);
    expect(await find(keys[4] as KeyToTake)).not.toBeNull();
  });
});
