import { afterEach, beforeEach, expect, test } from "bun:test";
import { PROJECT_PREFIX, uuidToId } from "../../../shared/domain/ids.ts";
import type { Plan } from "../../../shared/domain/plan.ts";
import type { ProjectNo } from "../../../shared/domain/scope.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { settleAttempts } from "../../../shared/store/queue/settle.ts";
import { changeProject } from "../../../shared/store/resources/projects.ts";
import { findRun } from "../../../shared/store/resources/runs.ts";
import { listRunMoves } from "../../../shared/store/retention/run-moves.ts";
import { settlementOf, startStore, type TestStore } from "../../../shared/store/test-support.ts";
import { testCause } from "../../../test/support/cause.ts";
import { openTestDatabase } from "../../../test/support/database.ts";
import { retainRuns } from "./retention.ts";

const DAY_MS = 86_400_000;
const log = createLog({ name: "test", level: "silent" });

let store: TestStore;
let nodeId: number;
beforeEach(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterEach(() => store.stop());

async function settleRun(projectNo: ProjectNo): Promise<string> {
  const [jobId = ""] = await store.addJobs(projectNo, 1);
  const attempt = await store.start(nodeId, projectNo, jobId);
  await settleAttempts(store.db, [settlementOf(attempt)]);
  return attempt.granted.runId;
}

async function setPlan(projectNo: ProjectNo, plan: Plan): Promise<void> {
  const [row] = await store.query<{ id: string }>("SELECT id FROM projects WHERE no = $1", [projectNo]);
  await changeProject(store.db, uuidToId(PROJECT_PREFIX, row?.id ?? ""), { plan }, testCause());
}

const isKept = async (projectNo: ProjectNo, runId: string) =>
  (await findRun(store.db, { projectNo, environment: "production", sinceAt: 0 }, runId)) !== null;
/** Runs the duty until there is nothing more to make or to drop. */
async function retain(days: number): Promise<void> {
  const now = Date.now() + days * DAY_MS;
  const countTables = async () =>
    (await store.query("SELECT string_agg(inhrelid::text, ',') AS tables FROM pg_inherits"))[0]?.tables;
  for (let before: string | null = null; before !== (await countTables()); ) {
    before = await countTables();
    await retainRuns(store.db, { now, log });
  }
}

test("keeps what a plan keeps, and what an upgrade has saved, from one day to the next", async () => {
  const plans: Plan[] = ["hobby", "pro", "hobby", "pro"];
  const projects = await Promise.all(plans.map((plan) => store.addProject({ plan })));
  const runs = await Promise.all(projects.map(settleRun));
  const [, , upgraded = 0, downgraded = 0] = projects;
  await setPlan(upgraded, "pro");
  await setPlan(downgraded, "hobby");
  const kept = () => Promise.all(projects.map((project, n) => isKept(project, runs[n] ?? "")));
  for (let day = 0; day <= 3; day++) await retain(day);
  expect(await kept()).toEqual([true, true, true, true]);
  await retain(6);
  // Runs that the downgraded project may no longer see go with the tables of its former plan.
  expect(await kept()).toEqual([false, true, true, true]);
  await retain(45);
  expect(await kept()).toEqual([false, false, false, false]);
});

test("forgets an upgrade once nothing can be written any more where its runs stood", async () => {
  const project = await store.addProject({ plan: "hobby" });
  await settleRun(project);
  await setPlan(project, "enterprise");
  await retain(0);
  expect(await listRunMoves(store.db, 10)).toHaveLength(1);
  await store.query("UPDATE run_moves SET noted_at = noted_at - interval '61 s'");
  await retain(0);
  expect(await listRunMoves(store.db, 10)).toEqual([]);
});

test("does no harm when two workers do it at once, over and over", async () => {
  const mates = [1, 2].map(() => openTestDatabase(store.url, 2, "silent"));
  const projects = await Promise.all(Array.from({ length: 5 }, () => store.addProject({ plan: "hobby" })));
  const runs = await Promise.all(projects.map(settleRun));
  try {
    for (const project of projects) await setPlan(project, "scale");
    for (let day = 0; day < 20; day += 2) {
      const now = Date.now() + day * DAY_MS;
      await Promise.all(mates.map((mate) => retainRuns(mate, { now, log })));
    }
    for (const [n, project] of projects.entries()) expect(await isKept(project, runs[n] ?? "")).toBe(true);
    const tables = await store.query<{ plan: string }>(
      "SELECT DISTINCT inhparent::regclass::text AS plan FROM runs JOIN pg_inherits ON inhrelid = runs.tableoid",
    );
    expect(tables).toEqual([{ plan: "runs_scale" }]);
  } finally {
    for (const mate of mates) await mate.close();
  }
});
