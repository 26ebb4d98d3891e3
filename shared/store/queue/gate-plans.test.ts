import { afterAll, beforeAll, expect, test } from "bun:test";
import type { Database } from "../database/database.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimWhole } from "./claim.ts";
import { claimKeyed } from "./claim-keyed.ts";
import { settleAttempts } from "./settle.ts";
import { type KeyedSettlement, settleKeyed } from "./settle-keyed.ts";
import { sweepShards } from "./sweep.ts";

const WAITING = 20_000;
/** A statement about one job, with all its parts, reads some hundred pages; the jobs that wait fill more. */
const PAGES_MAX = 400;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 1 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

/** The statement that is asked, which does not run. */
async function recordOf(ask: (db: Database) => Promise<unknown>) {
  const { statements, db } = recordStatements({ ...store.db, run: async () => [] });
  await ask(db);
  return [...statements.values()][0] as { text: string; values: unknown[] };
}

test("a key is claimed for, settled for and swept past at the same cost however many wait for it: plans that were made before, and later ones", async () => {
  const project = await store.addProject({ concurrency: 100 });
  const flow = { key: "busy", concurrency: 1 };
  const [started = "", next = ""] = await store.addJobs(project, 3, { flow });
  const attempt = await store.start(nodeId, project, started);
  const ended: KeyedSettlement = {
    ...{ ...settlementOf(attempt), next: { status: "succeeded" } },
    nextRunId: store.newRunId(),
  };
  const recorder = recordStatements(store.db);

  async function expectCheap(state: string): Promise<void> {
    // A settlement that was made before finds nothing, but locks the key and calls its next attempt.
    const settlement = settlementOf({ ...attempt, granted: { runId: store.newRunId() } }, failedWith("over"));
    await settleAttempts(recorder.db, [settlement]);
    await claimWhole(recorder.db, nodeId, [store.claimOf(project, next, { attempt: 9 })]);
    await claimKeyed(recorder.db, nodeId, [store.claimOf(project, next, { attempt: 9 })]);
    await sweepShards(recorder.db, [{ region: "us-east", shard: 0, sinceAt: 0 }], [], 0);
    // Its first attempt is settled by the plan alone, which is rolled back, so that the next one starts in its place each time.
    recorder.statements.set("settle_keyed", await recordOf((db) => settleKeyed(db, nodeId, [ended])));
    // The key has an attempt to call.
    await store.query("UPDATE flow_keys SET in_use = 0, waiting[1] = greatest(waiting[1], 1)");
    await store.query("UPDATE open_jobs SET due_at = NULL WHERE gate IS NOT NULL");
    for (const name of ["settle_whole", "settle_keyed", "claim_whole", "claim_keyed", "sweep"]) {
      const { text, values } = recorder.statements.get(name) ?? { text: "", values: [] };
      // The functions that read a gate's queue have plans of their own, which are made for any parameters, as the role's settings ask for.
      const mode = "force_generic_plan";
      const { pagesRead } = await explain(store, { mode, text, values, tables: ["open_jobs"] });
      expect({ state, name, isCheap: pagesRead < PAGES_MAX || pagesRead }).toEqual({
        state,
        name,
        isCheap: true,
      });
    }
  }

  await expectCheap("few wait");
  await store.query("VACUUM ANALYZE");
  await expectCheap("few wait, and that is known");
  await store.query(
    `INSERT INTO open_jobs (project_no, environment, region, job_id, parked_due_at, attempts_allowed, flow_key, gate)
     SELECT $1, 1, 0, gen_random_uuid(), now() + n * interval '1 ms', 5, 'busy', 'kbusy' FROM generate_series(1, $2::int) AS n`,
    [project, WAITING],
  );
  await store.query("UPDATE flow_keys SET waiting[1] = waiting[1] + $1", [WAITING]);
  await expectCheap("many wait");
  await store.query("ANALYZE");
  await expectCheap("many wait, and that is known");
  expect((await settleKeyed(store.db, nodeId, [ended])).next).toMatchObject([{ attempt: 1 }]);
});
