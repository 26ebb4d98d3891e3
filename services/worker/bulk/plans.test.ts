import { afterAll, beforeAll, expect, test } from "bun:test";
import type { BulkAction, BulkFilter } from "../../../shared/domain/bulk.ts";
import { idToUuid, SCHEDULE_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { explain, recordStatements } from "../../../shared/store/plan-test-support.ts";
import { LOOKED_AT_MAX } from "../../../shared/store/queue/bulk/candidates.ts";
import { startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { askFor, bulkOf, startWorkerOf, type TestWorker } from "./test-support.ts";

/** A page of a bulk operation reads what it looks at, however many other jobs and runs there are. */

const JOBS = 40_000;
const SCHEDULE = "00000000-0000-0000-0000-00000000000a";
/** A look into an index reads some pages; the rows of the job, of its end and of its run are a page each. */
const PAGES_PER_JOB = 60;

let store: TestStore;
let project: ProjectNo;
let worker: TestWorker;
const statements = new Map<string, { text: string; values: unknown[] }>();

beforeAll(async () => {
  store = await startStore();
  project = await store.addProject();
  // Half of the jobs are open and half have failed; every 40th has the tag and the schedule.
  await store.query(
    `WITH job AS (
       INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds, schedule_id, tags)
       SELECT (lpad(to_hex(n), 12, '0') || left(md5(n::text), 20))::uuid, $1::int, 1, 0, 'https://target.example/', '{}', now(), 1, 1, 1,
              CASE WHEN n % 40 < 2 THEN $3::uuid END, CASE WHEN n % 40 < 2 THEN ARRAY['a'] END
         FROM generate_series(1, $2::int) n RETURNING *, ('x' || left(id::text, 8))::bit(32)::int * 65536 + ('x' || substr(id::text, 10, 4))::bit(16)::int AS n),
     open AS (
       INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed, schedule_id, tags)
       SELECT project_no, environment, region, id, now() + interval '1 day', 1, schedule_id, tags FROM job WHERE n % 2 = 0),
     ended AS (
       INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
       SELECT project_no, environment, region, id, 1, 1, now(), schedule_id FROM job WHERE n % 2 = 1),
     run AS (
       INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, error, started_at, duration_ms)
       SELECT (lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint), 12, '0') || left(md5('run' || id), 20))::uuid, id, project_no, environment, 2, 1, 2, 500, 'it broke', now(), 1
         FROM job WHERE n % 2 = 1)
     INSERT INTO job_tag_states (project_no, environment, state, region, job_id, tag)
     SELECT project_no, environment, CASE WHEN n % 2 = 0 THEN -1 ELSE 1 END, region, id, 'a' FROM job WHERE tags IS NOT NULL`,
    [project, JOBS, SCHEDULE],
  );
  await store.query("ANALYZE");
  const recorded = recordStatements(store.db);
  worker = await startWorkerOf(store, { db: recorded.db });
  const schedule_id = uuidToId(SCHEDULE_PREFIX, SCHEDULE);
  const asked: [BulkAction, BulkFilter][] = [
    ["cancel", { all: true }],
    ["cancel", { schedule_id }],
    ["cancel", { tag: "a" }],
    ["retry", { error_contains: "nothing", target_host: "nothing.example" }],
    ["retry", { schedule_id, error_contains: "nothing" }],
    ["retry", { tag: "a", error_contains: "nothing" }],
  ];
  for (const [action, filter] of asked) await worker.count(await askFor(store, project, action, filter));
  for (const action of ["cancel", "retry"] as const) {
    const own = await store.addProject();
    const id = await askFor(store, own, action, { all: true });
    await worker.countAll(id);
    await worker.judge(id);
  }
  for (const [name, statement] of recorded.statements) {
    if (/candidates|bulk_members/.test(name)) statements.set(name, statement);
  }
});
afterAll(() => store.stop());

test.each([
  "find_cancel_candidates_by_all",
  "find_cancel_candidates_by_schedule",
  "find_cancel_candidates_by_tag",
  "find_retry_candidates_by_all",
  "find_retry_candidates_by_schedule",
  "find_retry_candidates_by_tag",
  "count_bulk_members",
  "cancel_bulk_members",
  "retry_bulk_members",
])("%s reads no table as a whole, and no more than a page looks at", async (name) => {
  const statement = statements.get(name);
  if (statement === undefined) throw new Error(`${name} was not asked`);
  const tables = ["jobs", "open_jobs", "ended_jobs", "runs", "job_tag_states", "bulk_members"];
  for (const mode of ["force_generic_plan", "force_custom_plan"]) {
    const { wholeTables, pagesRead } = await explain(store, { mode, ...statement, tables });
    expect({ mode, wholeTables }).toEqual({ mode, wholeTables: [] });
    expect(pagesRead).toBeLessThan(LOOKED_AT_MAX * PAGES_PER_JOB);
  }
});

test("jobs of a schedule are found among many that wait for an attempt asked for by hand, which are not read for each page", async () => {
  const crowded = await store.addProject();
  const waiting = 150_000;
  const jobs = await store.addJobs(crowded, 3);
  const others = uuidToId(SCHEDULE_PREFIX, SCHEDULE.replace("a", "b"));
  await store.query("UPDATE open_jobs SET schedule_id = $2 WHERE project_no = $1", [
    crowded,
    idToUuid(others),
  ]);
  await store.query(
    `INSERT INTO open_jobs (project_no, environment, region, job_id, run_id, due_at, attempts_allowed, schedule_id)
     SELECT $1, 1, 0, gen_random_uuid(), gen_random_uuid(), now(), 1, $3 FROM generate_series(1, $2::int)`,
    [crowded, waiting, SCHEDULE],
  );
  await store.query("UPDATE open_jobs SET run_id = gen_random_uuid() WHERE project_no = $1 AND job_id = $2", [
    crowded,
    idToUuid(jobs[1] ?? ""),
  ]);
  await store.query("ANALYZE open_jobs");
  const recorded = recordStatements(store.db);
  const { countAll } = await startWorkerOf(store, { db: recorded.db });
  const id = await askFor(store, crowded, "cancel", { schedule_id: others });
  await countAll(id);
  expect(await bulkOf(store, crowded, id)).toMatchObject({ matched: 3, sample: jobs });
  const statement = recorded.statements.get("find_cancel_candidates_by_schedule");
  if (statement === undefined) throw new Error("it was not asked");
  for (const mode of ["force_generic_plan", "force_custom_plan"]) {
    const { wholeTables, pagesRead } = await explain(store, { mode, ...statement, tables: ["open_jobs"] });
    expect({ mode, wholeTables }).toEqual({ mode, wholeTables: [] });
    expect(pagesRead).toBeLessThan(LOOKED_AT_MAX * 20);
  }
});
