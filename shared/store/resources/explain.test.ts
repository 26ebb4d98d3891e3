import { afterAll, beforeAll, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../../domain/plan.ts";
import { addEndpoint } from "../delivery-test-support.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { findExplained } from "./explain.ts";
import { createJobs } from "./job-creation.ts";

const EVENTS = 1_000;
/** To look all events up for all endpoints takes some 300,000 pages. */
const PAGES_MAX = 40_000;

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

test("who goes before a job at its flow key is counted by the index of gates, however many wait", async () => {
  const project = await store.addProject();
  const waiting = 20_000;
  const flow = { key: "a", concurrency: 1 };
  const jobs = Array.from({ length: 3 }, () => store.newJob(project, { flow }));
  await createJobs(store.db, jobs, new Set());
  const last = jobs.at(-1)?.id ?? "";
  await store.query(
    `INSERT INTO open_jobs (project_no, environment, region, job_id, attempts_allowed, flow_key, gate, parked_due_at)
     SELECT $1, 1, 0, gen_random_uuid(), 1, 'a', 'ka', now() - interval '1 h' FROM generate_series(1, $2::int)`,
    [project, waiting],
  );
  await store.query("ANALYZE open_jobs");
  const recorder = recordStatements(store.db);
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
  expect((await findExplained(recorder.db, scope, last))?.owed).toMatchObject({
    parkedFor: "flow",
    ahead: null,
  });
  const statement = recorder.statements.get("explain_job");
  if (statement === undefined) throw new Error("it was not asked");
  for (const mode of ["force_generic_plan", "force_custom_plan"]) {
    const plan = await explain(store, { mode, ...statement, tables: ["open_jobs"] });
    expect(plan.indexes).toContain("open_jobs_gate");
    expect([mode, plan.wholeTables, plan.pagesRead < waiting / 4 || plan.pagesRead]).toEqual([
      mode,
      [],
      true,
    ]);
  }
});

test("what the ramp of a host has put off until its next second waits for the host", async () => {
  const project = await store.addProject();
  const host = "target.example";
  const jobs = await store.addJobs(project, 4);
  await store.query(
    "INSERT INTO target_hosts (project_no, environment, host, state, by, parked) VALUES ($1, 1, $2, 1, 0, 2)",
    [project, host],
  );
  const stand = (job: string | undefined, at: string | null) =>
    store.query(
      "UPDATE open_jobs SET parked_due_at = due_at, gate = $2, due_at = now() + $3::interval WHERE job_id = $1",
      [idToUuid(job ?? ""), `h${host}`, at],
    );
  const [called, putOff, parked, other] = jobs;
  await stand(called, "0");
  await stand(putOff, "1 h");
  await stand(parked, null);
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
  const found = await Promise.all(
    [called, putOff, parked, other].map((job) => findExplained(store.db, scope, job ?? "")),
  );
  expect(found.map((each) => [each?.owed?.parkedFor, each?.owed?.ahead])).toEqual([
    [null, 1],
    ["host", 1],
    ["host", 2],
    [null, 0],
  ]);
});

test("who goes before a job among thousands of one instant is counted, unless thousands of older jobs are due later", async () => {
  const project = await store.addProject();
  const [jobId = ""] = await store.addJobs(project, 1);
  const add = (count: number, { isOlder, dueIn }: { isOlder: boolean; dueIn: string }) =>
    store.query(
      `INSERT INTO open_jobs (project_no, environment, region, job_id, attempts_allowed, due_at)
       SELECT project_no, environment, region, overlay(gen_random_uuid()::text PLACING $2 FROM 1 FOR 8)::uuid, 1, due_at + $3::interval
         FROM open_jobs, generate_series(1, $4::int) WHERE job_id = $1`,
      [idToUuid(jobId), isOlder ? "00000000" : "ffffffff", dueIn, count],
    );
  const ahead = async () => {
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    return (await findExplained(store.db, scope, jobId))?.owed?.ahead;
  };
  await add(6_000, { isOlder: false, dueIn: "0" });
  await add(2, { isOlder: true, dueIn: "0" });
  expect(await ahead()).toBe(2);
  await add(1_000, { isOlder: true, dueIn: "0" });
  expect(await ahead()).toBeNull();
  await add(50_000, { isOlder: true, dueIn: "1 h" });
  expect(await ahead()).toBe("unknown");
});

test("a job with a thousand events and fifty endpoints is explained in a bounded number of pages", async () => {
  const project = await store.addProject();
  const [jobId = ""] = await store.addJobs(project, 1);
  for (let n = 0; n < WEBHOOK_ENDPOINTS_MAX; n++)
    await addEndpoint(store, project, { environment: "production" });
  await store.query(
    `WITH run AS (
       INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, started_at, duration_ms)
       SELECT gen_random_uuid(), $2, $1, 1, 3, n, 2, now(), 0 FROM generate_series(1, ${EVENTS}) AS n
       RETURNING id, attempt)
     INSERT INTO events (id, project_no, environment, region, type, job_id, attempt, run_status, started_at, duration_ms,
                         occurred_at, api_version)
     SELECT id, $1, 1, 0, 1, $2, attempt, 2, now(), 0, now() - attempt * interval '1 s', '2026-11-01' FROM run`,
    [project, idToUuid(jobId)],
  );
  // Other deliveries to the endpoints. The job's events are not among them, so each event is looked for at every endpoint.
  await store.query(
    `INSERT INTO ended_deliveries (id, project_no, environment, region, webhook_id, event_id, status, attempts, ended_at)
     SELECT gen_random_uuid(), $1, 1, 0, w.id, gen_random_uuid(), 0, 1, now() FROM webhooks w, generate_series(1, 1000)
      WHERE w.project_no = $1`,
    [project],
  );
  await store.query("ANALYZE");
  const recorder = recordStatements(store.db);
  const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
  const found = await findExplained(recorder.db, scope, jobId);
  expect(found?.events).toHaveLength(EVENTS);
  const statement = recorder.statements.get("explain_job");
  if (statement === undefined) throw new Error("it was not asked");
  const { pagesRead } = await explain(store, { mode: "auto", ...statement, tables: ["ended_deliveries"] });
  expect(pagesRead).toBeLessThan(PAGES_MAX);
});
