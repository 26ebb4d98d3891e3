import { afterAll, beforeAll, expect, test } from "bun:test";
import { createIdSource, SCHEDULE_PREFIX } from "../../domain/ids.ts";
import journal from "../database/migrations/meta/_journal.json" with { type: "json" };
import { settleAttempts } from "../queue/settle.ts";
import { listJobs } from "../resources/job-list.ts";
import { listRuns } from "../resources/run-list.ts";
import { createRunPartitions } from "../retention/retention.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { migrate } from "./migrate.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const scheduleId = createIdSource((count) => new Uint8Array(count)).next(SCHEDULE_PREFIX, Date.now());

/** When the migration of the indexes was made. This migration and those after it are applied again. */
const begunAnewFrom = journal.entries.find(({ tag }) => tag === "0021_tags")?.when;

const WITHOUT_INDEX = `
SELECT t.relid::regclass::text AS name FROM pg_partition_tree('runs') t
 WHERE NOT EXISTS (SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
                    WHERE i.indrelid = t.relid AND i.indisvalid AND pg_get_indexdef(i.indexrelid) LIKE '%(schedule_id, status, id)%')`;

test("jobs and runs of schedules from before are found by schedule, however often the migration begins anew", async () => {
  const nodeId = await store.addNode();
  const project = await store.addProject();
  const wish = { scheduleId, maxAttempts: 1 };
  const [queued = "", running = "", ended = ""] = await store.addJobs(project, 3, wish);
  await store.start(nodeId, project, running);
  const failed = await store.start(nodeId, project, ended);
  await settleAttempts(store.db, [settlementOf(failed, failedWith("over"))]);
  await store.addJobs(project, 1, { region: "us-west" });
  for (const table of ["open_jobs", "ended_jobs", "runs"])
    await store.query(`UPDATE ${table} SET schedule_id = NULL`);
  const [leaf] = await store.query<{ name: string }>(
    "SELECT relid::regclass::text AS name FROM pg_partition_tree('runs') WHERE isleaf LIMIT 1",
  );
  // The database is as a process leaves it that dies in between.
  await store.query("DROP INDEX runs_of_schedule");
  await store.query(`CREATE INDEX ${leaf?.name}_of_schedule ON ${leaf?.name} (id)`);

  for (let round = 0; round < 2; round++) {
    await store.query("DELETE FROM drizzle.__drizzle_migrations WHERE created_at >= $1", [begunAnewFrom]);
    await migrate(store.url);
    const scope = {
      projectNo: project,
      environment: "production" as const,
      sinceAt: 0,
      beforeId: null,
      limit: 5,
    };
    const found = async (status: "queued" | "running" | "failed" | null) =>
      (await listJobs(store.db, { ...scope, region: null, status, scheduleId })).rows.map(({ id }) => id);
    expect([await found("queued"), await found("running"), await found("failed")]).toEqual([
      [queued],
      [running],
      [ended],
    ]);
    const runs = await listRuns(store.db, { ...scope, jobId: null, status: "failed", scheduleId });
    expect(runs.rows.map(({ id }) => id)).toEqual([failed.granted.runId]);
    expect(await store.query(WITHOUT_INDEX)).toEqual([]);
  }
});

test("a table of runs that is made later has the index from the beginning", async () => {
  const made = await createRunPartitions(store.db, Date.now() + 40 * 86_400_000);
  expect(made.names).not.toEqual([]);
  expect(await store.query(WITHOUT_INDEX)).toEqual([]);
});
