import { afterAll, beforeAll, expect, test } from "bun:test";
import { explain, recordStatements } from "../plan-test-support.ts";
import { settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimAttempts } from "./claim.ts";
import { claimOrdinary } from "./claim-ordinary.ts";
import { parkAttempts } from "./parking.ts";
import { settleAttempts } from "./settle.ts";
import { settleOrdinary } from "./settle-ordinary.ts";

const TABLES = ["open_jobs", "jobs", "flows"];
const DUE = 100_000;
const PAGES_MAX = 500;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const WANTED: Record<string, string[]> = {
  claim: ["flows_pkey", "jobs_pkey", "open_jobs_pkey"],
  claim_ordinary: ["flows_pkey", "jobs_pkey", "open_jobs_pkey"],
  claim_ordinary_one: ["flows_pkey", "jobs_pkey", "open_jobs_pkey"],
  settle: ["flows_pkey", "open_jobs_pkey"],
  settle_whole: ["flows_pkey", "jobs_pkey", "open_jobs_pkey"],
  settle_ordinary: ["flows_pkey", "open_jobs_pkey"],
  park_jobs: ["open_jobs_pkey"],
};

test("claims and settlements find each job by its key: in an empty queue, behind 100,000 due jobs, and once it has run nearly empty", async () => {
  const project = await store.addProject();
  const [claimed = "", started = ""] = await store.addJobs(project, 2);
  const attempt = await store.start(nodeId, project, started);

  async function expectPlans(state: string): Promise<void> {
    const recorder = recordStatements(store.db);
    const claim = store.claimOf(project, claimed, { attempt: 9 });
    await claimAttempts(recorder.db, nodeId, [claim]);
    await claimOrdinary(recorder.db, nodeId, [claim]);
    await claimOrdinary(recorder.db, nodeId, [claim, store.claimOf(project, started, { attempt: 9 })]);
    const settlement = settlementOf({ ...attempt, granted: { runId: store.newRunId() } });
    await settleAttempts(recorder.db, [{ ...settlement, isPlain: true }]);
    await settleAttempts(recorder.db, [settlement]);
    await settleOrdinary(recorder.db, [{ ...settlement, next: { status: "succeeded" } }]);
    const { environment, region } = claim;
    await parkAttempts(recorder.db, "jobs", [
      { projectNo: project, environment, region, id: claimed, attempt: 9, host: "h.example", url: "" },
    ]);
    expect([...recorder.statements.keys()].sort()).toEqual(Object.keys(WANTED).sort());
    for (const [name, { text, values }] of recorder.statements) {
      for (const mode of ["force_generic_plan", "force_custom_plan"]) {
        const { indexes, wholeTables, pagesRead } = await explain(store, {
          mode,
          text,
          values,
          tables: TABLES,
        });
        const plan = { state, name, mode, indexes, wholeTables, isCheap: pagesRead < PAGES_MAX };
        expect(plan).toEqual({
          state,
          name,
          mode,
          indexes: WANTED[name] ?? [],
          wholeTables: [],
          isCheap: true,
        });
      }
    }
  }

  await expectPlans("empty");
  await store.query("VACUUM ANALYZE");
  await expectPlans("empty and analyzed");
  await store.query(
    `INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
     SELECT $1, 1, 0, gen_random_uuid(), now() - n * interval '1 ms', 5 FROM generate_series(1, $2::int) AS n`,
    [project, DUE],
  );
  await expectPlans("full");
  await store.query("VACUUM ANALYZE");
  await expectPlans("full and analyzed");
  await store.query(
    "DELETE FROM open_jobs WHERE attempts_allowed = 5 AND due_at IS NOT NULL AND due_at < now()",
  );
  await store.query("VACUUM ANALYZE");
  await expectPlans("run empty");
});
