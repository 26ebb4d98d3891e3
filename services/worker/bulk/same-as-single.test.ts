import { afterAll, beforeAll, expect, test } from "bun:test";
import { idToUuid, RUN_PREFIX, SCHEDULE_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { addEndpoint } from "../../../shared/store/delivery-test-support.ts";
import { settleAttempts } from "../../../shared/store/queue/settle.ts";
import { cancelJob, retryRun } from "../../../shared/store/resources/jobs-by-hand.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { keyCause } from "../../../test/support/cause.ts";
import { askFor, ids, startWorkerOf, type TestWorker } from "./test-support.ts";

/** A bulk operation does to each job what the route for one job does, row for row. */

let store: TestStore;
let nodeId: number;
let worker: TestWorker;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  worker = await startWorkerOf(store);
});
afterAll(() => store.stop());

const SCHEDULE = ids.next(SCHEDULE_PREFIX, Date.now());
const scopeOf = (projectNo: ProjectNo) => ({ projectNo, environment: "production" as const, sinceAt: 0 });
const fail = async (
  projectNo: ProjectNo,
  id: string,
  attempt: number,
  next: Parameters<typeof failedWith>[0],
) =>
  settleAttempts(store.db, [
    settlementOf(await store.start(nodeId, projectNo, id, { attempt }), failedWith(next)),
  ]);
const lastRunOf = async (id: string) => {
  const [row] = await store.query<{ id: string }>(
    "SELECT id FROM runs WHERE job_id = $1 ORDER BY attempt DESC LIMIT 1",
    [idToUuid(id)],
  );
  return uuidToId(RUN_PREFIX, row?.id ?? "");
};
const retryByHand = async (projectNo: ProjectNo, id: string) => {
  const runId = store.newRunId();
  const retried = await retryRun(store.db, scopeOf(projectNo), await lastRunOf(id), runId, keyCause());
  expect(retried.kind).toBe("retried");
};

/** Brings a new job to where the operation finds it. */
type Prepare = (projectNo: ProjectNo, id: string) => Promise<unknown>;
const soon = () => ({ dueAt: Date.now() - 1_000 });
const CANCELED: Record<string, Prepare> = {
  "that never started": async () => undefined,
  "that waits for its next attempt": (projectNo, id) =>
    fail(projectNo, id, 1, { dueAt: Date.now() + 60_000 }),
  "whose first attempt is on the wire": (projectNo, id) => store.start(nodeId, projectNo, id),
  "whose second attempt is on the wire": async (projectNo, id) => {
    await fail(projectNo, id, 1, soon());
    await store.start(nodeId, projectNo, id, { attempt: 2 });
  },
  "that was retried by hand, and is not sent": async (projectNo, id) => {
    await fail(projectNo, id, 1, "over");
    await retryByHand(projectNo, id);
  },
};
const RETRIED: Record<string, Prepare> = {
  "that failed at once": (projectNo, id) => fail(projectNo, id, 1, "over"),
  "that is exhausted": async (projectNo, id) => {
    await fail(projectNo, id, 1, soon());
    await fail(projectNo, id, 2, "over");
  },
  "that was retried by hand before": async (projectNo, id) => {
    await fail(projectNo, id, 1, "over");
    await retryByHand(projectNo, id);
    await fail(projectNo, id, 2, "over");
  },
};

async function prepare(act: Prepare, wish: { isTagged: boolean; isHeard: boolean }) {
  const projectNo = await store.addProject();
  if (wish.isHeard)
    await addEndpoint(store, projectNo, { events: ["job.canceled", "job.failed", "quota.reached"] });
  // The next run reaches 80 % of what the plan includes.
  await store.query("UPDATE flows SET month_runs = 3999999 - 1 WHERE project_no = $1", [projectNo]);
  const job = {
    maxAttempts: 2,
    ...(wish.isTagged ? { tags: ["a", "b:c"], scheduleId: SCHEDULE } : {}),
  };
  const [id = ""] = await store.addJobs(projectNo, 1, job);
  await act(projectNo, id);
  return { projectNo, id };
}

/** Everything that is stored of a project's jobs. Ids and instants are shown as present or not, and ids of jobs are left out. */
async function rowsOf(projectNo: ProjectNo) {
  const has = (...columns: string[]) =>
    columns.map((column) => `${column} IS NOT NULL AS has_${column}`).join(", ");
  const select = (columns: string, table: string, order: string) =>
    store.query(`SELECT ${columns} FROM ${table} t WHERE project_no = $1 ORDER BY ${order}`, [projectNo]);
  return {
    open: await select(
      `region, environment, attempt, attempts_allowed, canceled, tags, ${has("due_at", "started_at", "run_id", "node_id", "parked_due_at", "schedule_id", "trace")}`,
      "open_jobs",
      "job_id",
    ),
    ended: await select(
      `region, status, attempts, ${has("schedule_id", "ended_at")}`,
      "ended_jobs",
      "job_id",
    ),
    runs: await select(
      `attempt, status, response_status, error, duration_ms, retention_class, late_ms, held_for, ${has("started_at", "next_retry_at", "schedule_id")}`,
      "runs",
      "attempt",
    ),
    tags: await select("state, tag", "job_tag_states", "tag"),
    runTags: await select(`status, tag, ${has("schedule_id")}`, "run_tags", "status, tag, id"),
    events: await select(
      `type, attempt, run_status, error, api_version, data->'attempts' AS attempts, data->'percent' AS percent, data->'run'->'status' AS status,
       data->'run'->'attempt' AS run_attempt, data->'run'->'error' AS run_error, ${has("job_id")}`,
      "events",
      "type, attempt, id",
    ),
    deliveries: await select("attempt, generation, due_at IS NOT NULL AS is_due", "open_deliveries", "id"),
    flow: await select("development_jobs, production_jobs, month_runs, waiting", "flows", "1"),
    usage: await select("region, runs", "usage_days", "1"),
    lanes: await select("region, environment, shard, has_deliveries", "lanes", "1, 2"),
  };
}

const CASES = (prepares: Record<string, Prepare>) =>
  Object.entries(prepares).flatMap(([name, act]) =>
    [false, true].flatMap((isTagged) =>
      [false, true].map((isHeard) => [name, { isTagged, isHeard }, act] as const),
    ),
  );

test.each(CASES(CANCELED))("a job is canceled %s, %p", async (_, wish, act) => {
  const [one, many] = [await prepare(act, wish), await prepare(act, wish)];
  expect((await cancelJob(store.db, scopeOf(one.projectNo), one.id, keyCause())).kind).toBe("canceled");
  await worker.finish(await askFor(store, many.projectNo, "cancel", { all: true }));
  expect(await rowsOf(many.projectNo)).toEqual(await rowsOf(one.projectNo));
  const [ended] = (await rowsOf(many.projectNo)).ended;
  expect(ended).toMatchObject({ status: 2 });
});

test.each(CASES(RETRIED))("a job is retried %s, %p", async (_, wish, act) => {
  const [one, many] = [await prepare(act, wish), await prepare(act, wish)];
  await retryByHand(one.projectNo, one.id);
  await worker.finish(await askFor(store, many.projectNo, "retry", { all: true }));
  const rows = await rowsOf(many.projectNo);
  expect(rows).toEqual(await rowsOf(one.projectNo));
  expect(rows.open).toMatchObject([{ has_run_id: true, has_due_at: true, has_node_id: false }]);
});
