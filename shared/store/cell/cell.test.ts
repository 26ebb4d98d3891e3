import { afterAll, beforeAll, expect, test } from "bun:test";
import { REGIONS } from "../../domain/scope.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { lookAtCell } from "./cell.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

test("the state of the cell sums the permits in use of all projects by class", async () => {
  const nodeId = await store.addNode();
  const [one, other] = [await store.addProject(), await store.addProject()];
  for (const project of [one, other, other]) {
    const [job = ""] = await store.addJobs(project, 1);
    await store.start(nodeId, project, job);
  }
  const [sample = ""] = await store.addJobs(one, 1, { environment: "development" });
  await store.start(nodeId, one, sample, { environment: "development" });
  await store.query(
    "UPDATE flows SET development_webhooks = 5, production_webhooks = 7 WHERE project_no = $1",
    [other],
  );
  expect((await lookAtCell(store.db)).permitsInUse).toEqual({
    "development jobs": 1,
    "production jobs": 3,
    "development webhooks": 5,
    "production webhooks": 7,
  });
});

test("the state of the cell counts due deliveries up to a bound per lane, and none that is on the wire", async () => {
  const [project, large] = [await store.addProject(), await store.addProject()];
  await store.addJobs(project, 1);
  await store.addJobs(large, 1);
  const owe = (projectNo: number, count: number, due: string) =>
    store.query(
      `INSERT INTO open_deliveries (due_at, project_no, environment, region, generation, id, webhook_id, event_id)
       SELECT ${due}, l.project_no, l.environment, l.region, 0, gen_random_uuid(), gen_random_uuid(), gen_random_uuid()
         FROM lanes l, generate_series(1, $2) WHERE l.project_no = $1`,
      [projectNo, count],
    );
  await owe(project, 3, "now() - interval '1 s'");
  await owe(project, 4, "now() + interval '1 h'");
  await owe(project, 5, "NULL");
  expect((await lookAtCell(store.db)).webhookDeliveriesDue).toBe(0);
  await store.query("UPDATE lanes SET has_deliveries = true");
  expect((await lookAtCell(store.db)).webhookDeliveriesDue).toBe(3);
  await owe(large, 1_200, "now() - interval '1 s'");
  expect((await lookAtCell(store.db)).webhookDeliveriesDue).toBe(1_003);
});

test("the state of the cell calls a node silent once it has missed its beats, and leaves out a dead node", async () => {
  await store.query("UPDATE nodes SET dead = true");
  const ids = [await store.addNode(), await store.addNode(), await store.addNode()];
  await store.query("UPDATE nodes SET seen_at = now() - interval '6 s' WHERE id = $1", [ids[0]]);
  await store.query("UPDATE nodes SET kind = 'worker' WHERE id = $1", [ids[1]]);
  expect((await lookAtCell(store.db)).nodes).toEqual([
    { kind: "worker", alive: 1, silent: 0 },
    { kind: "delivery", alive: 1, silent: 1 },
  ]);
});

test("the state of the cell counts shards as unowned whose lease has been over for a while, or whose owner is dead", async () => {
  const [living = 0, dead = 0] = [await store.addNode(), await store.addNode()];
  await store.query("UPDATE nodes SET dead = true WHERE id = $1", [dead]);
  await store.query("DELETE FROM shards");
  await store.query(
    `INSERT INTO shards (region, shard, owner, lease_until)
     VALUES (0, 0, $1, now() + interval '1 min'), (0, 1, $1, now() - interval '6 s'), (0, 2, $2, now() + interval '1 min'),
            (0, 3, NULL, '-infinity'), (1, 0, $1, now() + interval '1 min'), (1, 1, $1, now())`,
    [living, dead],
  );
  expect((await lookAtCell(store.db)).shardsUnowned).toEqual([
    { region: REGIONS[0], count: 3 },
    { region: REGIONS[1], count: 0 },
  ]);
});

test("the state of the cell counts due jobs, and the held regions, projects and hosts", async () => {
  await store.query("DELETE FROM open_jobs");
  const project = await store.addProject();
  await store.addJobs(project, 3);
  await store.addJobs(project, 4, { runAt: Date.now() + 3_600_000 });
  const before = await lookAtCell(store.db);
  expect([before.jobsDue, before.holds]).toEqual([3, { region: 0, project: 0, host: 0 }]);
  await store.query(
    `UPDATE open_jobs SET parked_host = 'example.com', parked_due_at = due_at, due_at = NULL
      WHERE job_id = (SELECT job_id FROM open_jobs WHERE due_at <= now() LIMIT 1)`,
  );
  const parked = await lookAtCell(store.db);
  expect([parked.jobsDue, parked.attemptsParked]).toEqual([2, { jobs: 1, webhooks: 0 }]);
  await store.query("INSERT INTO held_regions (region) VALUES (1)");
  await store.query("UPDATE flows SET held = true WHERE project_no = $1", [project]);
  await store.query("INSERT INTO host_limits (host, requests) VALUES ('example.com', 0), ('example.org', 9)");
  expect((await lookAtCell(store.db)).holds).toEqual({ region: 1, project: 1, host: 1 });
});

test("the state of the cell counts overdue firings from the oldest one due, leaving out paused and future ones", async () => {
  const overdue = async () => (await lookAtCell(store.db)).firingsOverdueSeconds;
  expect(await overdue()).toBe(0);
  const project = await store.addProject();
  const add = (shard: number, nextRunAt: string) =>
    store.query(
      `INSERT INTO schedules (next_run_at, project_no, base_seconds, cap_seconds, environment, shard, max_attempts, id, name, cron, timezone, target_url, payload)
       VALUES (${nextRunAt}, $1, 1, 1, 1, $2, 1, gen_random_uuid(), gen_random_uuid()::text, '* * * * *', 'UTC', 'u', '{}')`,
      [project, shard],
    );
  await add(0, "now() + interval '1 h'");
  await add(1, "NULL");
  expect(await overdue()).toBe(0);
  await add(1, "now() - interval '90 s'");
  await add(0, "now() - interval '30 s'");
  const seconds = await overdue();
  expect(seconds).toBeGreaterThanOrEqual(90);
  expect(seconds).toBeLessThan(150);
});

test("the state of the cell says for how long run tables stand ready: for days, and for 0 s once one plan has none", async () => {
  expect((await lookAtCell(store.db)).runTablesReadySeconds).toBeGreaterThan(86_400);
  const [row] = await store.query<{ drops: string }>(
    `SELECT string_agg(format('DROP TABLE %s', inhrelid::regclass), ';') AS drops FROM pg_inherits
      WHERE inhparent = 'runs_hobby'::regclass AND inhrelid <> 'runs_hobby_default'::regclass`,
  );
  await store.query(row?.drops ?? "");
  expect((await lookAtCell(store.db)).runTablesReadySeconds).toBe(0);
});
