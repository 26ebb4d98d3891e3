import { afterAll, beforeAll, expect, test } from "bun:test";
import type { ProjectNo } from "../../domain/scope.ts";
import { HOST_CODES } from "../queue/host-gates.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { openFailingHosts, openLeftHosts, watchHosts } from "./target-hosts.ts";

const { DOWN, OPENING, BREAKER, HAND } = HOST_CODES;

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

/** A project with hosts that are down, one of them parked by hand. */
async function addProject(isParking: boolean, count: number): Promise<ProjectNo> {
  const project = await store.addProject();
  await store.query("UPDATE projects SET park_failing_hosts = $2 WHERE no = $1", [project, isParking]);
  await watchHosts(store.db, project);
  await store.query(
    `INSERT INTO target_hosts (project_no, environment, host, state, by)
     SELECT $1, 1, n || '.example', $2, CASE WHEN n = 0 THEN $4::smallint ELSE $3::smallint END FROM generate_series(0, $5::int) n`,
    [project, DOWN, BREAKER, HAND, count],
  );
  return project;
}

async function statesOf(project: ProjectNo) {
  const rows = await store.query<{ state: number; by: number; count: number }>(
    "SELECT state, by, count(*)::int AS count FROM target_hosts WHERE project_no = $1 GROUP BY 1, 2 ORDER BY 1, 2",
    [project],
  );
  return rows.map(({ state, by, count }) => `${count} ${state} ${by}`).sort();
}

test("hosts that the breaker took down are opened where failing hosts are not parked any more, however many they are", async () => {
  const [off, on] = [await addProject(false, 250), await addProject(true, 2)];
  await openFailingHosts(store.db, off);
  expect(await statesOf(off)).toEqual(
    [`100 ${OPENING} ${BREAKER}`, `150 ${DOWN} ${BREAKER}`, `1 ${DOWN} ${HAND}`].sort(),
  );
  await openLeftHosts(store.db);
  expect(await statesOf(off)).toEqual([`250 ${OPENING} ${BREAKER}`, `1 ${DOWN} ${HAND}`].sort());
  expect(await statesOf(on)).toEqual([`2 ${DOWN} ${BREAKER}`, `1 ${DOWN} ${HAND}`].sort());
  const called = await store.query("SELECT FROM gate_calls WHERE project_no = $1", [off]);
  expect(called.length).toBe(250);
});

test("a host that another statement has locked is left, and opened by the next look", async () => {
  const project = await addProject(false, 2);
  const session = await store.session();
  await session.query("BEGIN");
  await session.query("SELECT FROM target_hosts WHERE project_no = $1 AND host = '1.example' FOR UPDATE", [
    project,
  ]);
  await openLeftHosts(store.db);
  expect(await statesOf(project)).toContain(`1 ${DOWN} ${BREAKER}`);
  await session.query("COMMIT");
  await openLeftHosts(store.db);
  expect(await statesOf(project)).toEqual([`2 ${OPENING} ${BREAKER}`, `1 ${DOWN} ${HAND}`].sort());
});
