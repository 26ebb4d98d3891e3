import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { JOB_STATUSES } from "../../domain/job.ts";
import { RUN_STATUSES } from "../../domain/run.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { listJobs } from "./job-list.ts";
import { listRuns } from "./run-list.ts";

setDefaultTimeout(600_000);

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

const JOBS = 60_000;
const JOBS_PER_STATEMENT = 10_000;
const PAGES_MAX = 1_500;
const PAGES_OF_RUNNING_MAX = 3_000;
const SCHEDULE_ID = "sch_01arz3ndektsv4rrffq69g5fav";
const TABLES = ["jobs", "job_tags", "job_tag_states", "open_jobs", "ended_jobs", "run_tags", "shifted_runs"];

const RUNNING = ["open_jobs_in_progress"];

/** The indexes by which each list of jobs may find its jobs, beside their keys. */
const WANTED: Record<string, string[]> = {
  list_jobs_any: [],
  list_jobs_any_of_schedule: ["jobs_of_schedule"],
  list_jobs_any_of_tag: ["job_tags_pkey"],
  list_jobs_any_of_schedule_and_tag: ["job_tags_of_schedule"],
  list_jobs_queued: [],
  list_jobs_queued_of_schedule: ["open_jobs_of_schedule"],
  list_jobs_queued_of_tag: ["job_tag_states_pkey"],
  list_jobs_queued_of_schedule_and_tag: ["job_tags_of_schedule"],
  list_jobs_running: RUNNING,
  list_jobs_running_of_schedule: RUNNING,
  list_jobs_running_of_tag: RUNNING,
  list_jobs_running_of_schedule_and_tag: RUNNING,
  list_jobs_ended: [],
  list_jobs_ended_of_schedule: ["ended_jobs_of_schedule"],
  list_jobs_ended_of_tag: ["job_tag_states_pkey"],
  list_jobs_ended_of_schedule_and_tag: ["job_tags_of_schedule"],
};
/** Jobs of a flow key are found like jobs of a tag, and a tag beside the flow key by the key of its table. */
for (const [name, wanted] of Object.entries(WANTED).filter(([name]) => name.endsWith("tag"))) {
  WANTED[name.replace("tag", "flow")] = wanted;
  const both = [...new Set([...wanted, "job_tags_pkey"])].sort();
  WANTED[name.replace("tag", "flow_and_tag")] = wanted === RUNNING ? RUNNING : both;
}
/** The same for lists of runs, beside the indexes of the tables of runs. */
const OF_TAG = ["run_tags_pkey"];
const OF_BOTH = ["run_tags_of_schedule"];
const SHIFTED = ["shifted_runs_pkey"];
const WANTED_OF_RUNS: Record<string, string[]> = {
  list_runs: [],
  find_runs_by_all_and_time: SHIFTED,
  find_runs_by_schedule: [],
  find_runs_by_schedule_and_tag: OF_BOTH,
  find_runs_by_schedule_and_tag_and_time: [...OF_BOTH, ...SHIFTED],
  find_runs_by_schedule_and_time: SHIFTED,
  find_runs_by_tag: OF_TAG,
  find_runs_by_tag_and_time: [...OF_TAG, ...SHIFTED],
};
const KEYS = ["ended_jobs_pkey", "jobs_pkey", "open_jobs_pkey"];

test("each filter, and every two, read few pages of what was empty, grew to 60,000 jobs, half of them retried by hand, and was analyzed", async () => {
  const project = await store.addProject();
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
  const page = { ...scope, beforeId: null, limit: 51 };
  const recorder = recordStatements(store.db);
  for (const filters of [
    {},
    { tag: "rare" },
    { scheduleId: SCHEDULE_ID },
    { tag: "rare", scheduleId: SCHEDULE_ID },
    { flowKey: "rare" },
    { flowKey: "rare", scheduleId: SCHEDULE_ID },
    { flowKey: "rare", tag: "common" },
    { flowKey: "rare", tag: "common", scheduleId: SCHEDULE_ID },
  ]) {
    for (const status of [null, ...JOB_STATUSES])
      await listJobs(recorder.db, { ...page, region: null, status, ...filters });
    if ("flowKey" in filters) continue;
    for (const status of [null, ...RUN_STATUSES])
      for (const times of [{}, { startedAfter: 0, startedBefore: Date.now() + 1 }])
        await listRuns(recorder.db, { ...page, jobId: null, status, ...filters, ...times });
  }
  expect([...recorder.statements.keys()].sort()).toEqual(
    [...Object.keys(WANTED), ...Object.keys(WANTED_OF_RUNS)].sort(),
  );

  async function expectPlans(state: string): Promise<void> {
    for (const [name, { text, values }] of recorder.statements) {
      for (const mode of ["force_generic_plan", "force_custom_plan"]) {
        const plan = await explain(store, { mode, text, values, tables: TABLES });
        const wanted = WANTED[name] ?? WANTED_OF_RUNS[name] ?? [];
        // Runs in progress are read from open_jobs, unless the plan knows that none are asked for.
        const usual = name in WANTED ? KEYS : ["open_jobs_in_progress"];
        const others = plan.indexes.filter((index) => !usual.includes(index) || wanted.includes(index));
        const most = wanted === RUNNING ? PAGES_OF_RUNNING_MAX : PAGES_MAX;
        const isCheap = plan.pagesRead < most || plan.pagesRead;
        expect({ state, name, mode, whole: plan.scanned, isCheap }).toEqual({
          ...{ state, name, mode },
          ...{ whole: [], isCheap: true },
        });
        expect({ state, name, mode, others }).toEqual({ state, name, mode, others: wanted });
      }
    }
  }

  await expectPlans("empty");
  // In parts, since one statement for all might come to its time limit.
  for (let from = 1; from <= JOBS; from += JOBS_PER_STATEMENT)
    await store.query(SEED, [project, JOBS, from, from + JOBS_PER_STATEMENT - 1]);
  await expectPlans("full");
  await store.query("VACUUM ANALYZE");
  await expectPlans("full and analyzed");
});

const uuidAt = (random: string) =>
  `(lpad(to_hex((extract(epoch FROM now()) * 1000)::bigint - $2::int + n), 12, '0') || left(md5(n || '${random}'), 20))::uuid`;

/**
 * Half of the jobs have succeeded; for most others an attempt that was asked for by hand waits. Half have a tag, and a
 * third belong to the schedule. The oldest jobs have the rare tag.
 */
const SEED = `
WITH made AS MATERIALIZED (
  SELECT n, ${uuidAt("job")} AS id, ${uuidAt("run")} AS run_id, CASE WHEN n % 97 = 0 THEN -1 WHEN n < 400 THEN n % 3 WHEN n % 4 < 2 THEN -2 ELSE 0 END AS state,
         CASE WHEN n % 3 = 0 THEN '01563e3a-b5d3-d676-4c61-efb99302bd5b'::uuid END AS schedule_id,
         CASE WHEN n < 200 THEN ARRAY['common', 'rare'] WHEN n % 2 = 0 THEN ARRAY['common'] END AS tags,
         CASE WHEN n < 200 THEN 'rare' END AS flow_key
    FROM generate_series($3::int, $4::int) AS n
), asked AS (
  INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds, schedule_id, tags)
  SELECT id, $1, 1, 0, 'https://target.example', rpad('{', 200), now(), 5, 1, 1, schedule_id, tags FROM made
), tag AS (
  INSERT INTO job_tags (project_no, environment, region, job_id, schedule_id, tag)
  SELECT $1, 1, 0, id, schedule_id, unnest(array_remove(tags || (' ' || flow_key), NULL)) FROM made
), state AS (
  INSERT INTO job_tag_states (project_no, environment, region, job_id, state, tag) SELECT $1, 1, 0, id, greatest(state, -1), unnest(array_remove(tags || (' ' || flow_key), NULL)) FROM made
), open AS (
  INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed, schedule_id, tags, flow_key, run_id, started_at)
  SELECT $1, 1, 0, id, now() + interval '1 day', 5, schedule_id, tags, flow_key, CASE state WHEN -2 THEN run_id END, CASE state WHEN -2 THEN now() END
    FROM made WHERE state < 0
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT $1, 1, 0, id, state, 1, now(), schedule_id FROM made WHERE state >= 0
), ran AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, started_at, duration_ms, schedule_id)
  SELECT run_id, id, $1, 1, 2, 1, 1 + state % 2, now(), 5, schedule_id FROM made WHERE state >= 0
)
INSERT INTO run_tags (ended_on, project_no, environment, status, id, schedule_id, tag)
SELECT now(), $1, 1, 1 + state % 2, run_id, schedule_id, unnest(tags) FROM made WHERE state >= 0`;
