import { afterAll, beforeAll, expect, test } from "bun:test";
import { INSIGHT_PERIODS } from "../../domain/insights/levels.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { settlementOf, settleShortFirst, startStore, type TestStore } from "../test-support.ts";
import { closeSome } from "./closing.ts";
import { findInsights } from "./insights.ts";
import { recountJobs } from "./new-jobs.ts";
import { Parts } from "./parts.ts";
import { purgeInsights } from "./purge.ts";
import { takeStep } from "./roll-up.ts";
import { skipToNextBucket, skipToNextJobs } from "./skipping.ts";
import { outsetOf, rollUp } from "./test-support.ts";
import { findWaiting } from "./waiting.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

/** The indexes by which each statement may find its rows. Those of runs are left out: each table of runs has its own. */
const WANTED: Record<string, string[]> = {
  find_new_runs: ["jobs_pkey"],
  count_new_jobs: ["jobs_pkey"],
  find_counted_jobs: ["insights_pkey"],
  find_insights_to_close: ["insights_pkey"],
  find_next_job: ["jobs_pkey"],
  find_next_insights: ["insights_pkey"],
  find_insights: ["insights_pkey"],
  find_insight_hosts: ["insights_pkey"],
  find_waiting: ["open_jobs_due", "open_jobs_parked", "open_jobs_gate", "open_jobs_in_progress"],
  purge_insights: ["insights_pkey"],
};

test("statements of insights that were planned with little there find their rows by the index that fits", async () => {
  const nodeId = await store.addNode();
  const project = await store.addProject();
  const [jobId = ""] = await store.addJobs(project, 3);
  await settleShortFirst(store.db, [settlementOf(await store.start(nodeId, project, jobId))]);
  await rollUp(store.db);
  await store.query("VACUUM ANALYZE");

  const { statements, db } = recordStatements(store.db);
  const scope = { projectNo: project, environment: "production" as const };
  const outset = await outsetOf(db);
  await takeStep(db, outset);
  const { progress, now } = await outsetOf(db);
  await recountJobs(db, new Parts(), progress, { fromAt: now - 600_000, untilAt: now });
  await closeSome(db, progress, 1);
  const longAgo = now - 86_400_000;
  await skipToNextJobs(db, { ...progress, createdUntil: longAgo }, { ...progress, createdUntil: now });
  await skipToNextBucket(db, 1, { fromAt: longAgo, completeUntil: now });
  for (const period of INSIGHT_PERIODS) await findInsights(db, scope, { period, region: null });
  await findWaiting(db, scope, null);
  await purgeInsights(db, 1_000, now);

  const looked = new Map<string, string[]>();
  for (const [name, { text, values }] of statements) {
    if (!(name in WANTED)) continue;
    for (const mode of ["force_generic_plan", "force_custom_plan"]) {
      const plan = await explain(store, { mode, text, values, tables: ["jobs", "insights", "open_jobs"] });
      const others = plan.indexes.filter((index) => !WANTED[name]?.includes(index));
      expect({ name, mode, others, whole: plan.wholeTables }).toEqual({ name, mode, others: [], whole: [] });
      looked.set(name, plan.indexes);
    }
  }
  expect([...looked.keys()].sort()).toEqual(Object.keys(WANTED).sort());
});
