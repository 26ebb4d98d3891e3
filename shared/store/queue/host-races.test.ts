import { afterAll, beforeAll, beforeEach, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { updateProject } from "../resources/projects.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { settleAttempts } from "./settle.ts";

/** A settlement meets a row of its host that was committed after the settlement's statement had begun. */

const HOST = "api.example.com";

let store: TestStore;
let nodeId: number;
let project: ProjectNo;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
beforeEach(async () => {
  project = await store.addProject();
  await updateProject(store.db, project, { parksFailingHosts: true }, keyCause());
});
afterAll(() => store.stop());

/** Settles a failed attempt at the host, while a row of the host with these columns is made and committed. */
async function settleBeside(columns: string, values: string): Promise<unknown> {
  const [jobId = ""] = await store.addJobs(project, 1, { targetUrl: `https://${HOST}/hook` });
  const started = await store.start(nodeId, project, jobId);
  const session = await store.session();
  await session.query("BEGIN");
  await session.query(
    `INSERT INTO target_hosts (project_no, environment, host, ${columns}) VALUES ($1, 1, $2, ${values})`,
    [project, HOST],
  );
  const met = { host: HOST, nobody: true };
  const settled = settleAttempts(store.db, [
    settlementOf(started, { ...failedWith("over"), isPlain: false, met }),
  ]);
  await store.untilBlocked();
  await session.query("COMMIT");
  await settled;
  const [row] = await store.query(
    "SELECT state, by, failures, parked::int AS parked, failing_since <= now() - interval '1 h' AS is_old FROM target_hosts WHERE project_no = $1",
    [project],
  );
  return row;
}

test("a host that a request has parked meanwhile stays parked, with what is parked there", async () => {
  expect(await settleBeside("state, by, parked", "0, 1, 3")).toEqual({
    ...{ state: 0, by: 1, failures: 0, parked: 3, is_old: null },
  });
});

test("the first failures of two settlements count together, from the earlier one on", async () => {
  expect(await settleBeside("failures, failing_since", "7, now() - interval '2 h'")).toEqual({
    ...{ state: null, by: null, failures: 8, parked: 0, is_old: true },
  });
});
