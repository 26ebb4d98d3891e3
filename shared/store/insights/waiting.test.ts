import { afterAll, beforeAll, expect, test } from "bun:test";
import { countWaiting } from "../../domain/insights/waiting.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { findWaiting } from "./waiting.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

test("retries by hand are told apart wherever they wait, since a spent quota does not keep them", async () => {
  const project = await store.addProject();
  await store.query(
    `INSERT INTO open_jobs (project_no, environment, region, job_id, attempts_allowed, run_id, due_at, parked_due_at, parked_host, flow_key, gate)
     SELECT $1, 1, 0, gen_random_uuid(), 1, CASE WHEN n <= by_hand THEN gen_random_uuid() END, due_at, parked_due_at, host, flow, gate
       FROM (VALUES (3, 1, now(), NULL, NULL, NULL, NULL),
                    (5, 2, NULL, now(), 'full.example', NULL, NULL),
                    (7, 3, NULL, now(), NULL, NULL, 'hdown.example'),
                    (9, 4, NULL, now(), NULL, 'a', 'ka')) AS places (count, by_hand, due_at, parked_due_at, host, flow, gate)
      CROSS JOIN generate_series(1, count) AS n`,
    [project],
  );
  await store.query("UPDATE flows SET month_runs_max = 0 WHERE project_no = $1", [project]);
  const { found } = await findWaiting(store.db, { projectNo: project, environment: "production" }, "us-east");
  expect(found.regions).toMatchObject([
    { due: 3, parked: 12, parkedAtFlows: 9, byHand: { due: 1, parked: 5, parkedAtFlows: 4 } },
  ]);
  const regions = found.regions.map((region) => ({ ...region, hasWorker: true, hasDelivery: true }));
  expect(Object.fromEntries(countWaiting({ ...found, regions }).byReason)).toEqual({
    ...{ quota: 14, turn: 1, host: 5, flow: 4 },
  });
});
