import { afterAll, beforeAll, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { FLOW_KEYS_KEPT_MAX } from "../../domain/flow-key.ts";
import { idToUuid } from "../../domain/ids.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { purgeFlowKeys } from "../queue/flow-key-purge.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { changeFlowKey, findFlowKey, listFlowKeys } from "./flow-keys.ts";
import { listTargetHosts, openHost } from "./target-hosts.ts";

const KEYS = 20_000;
const WAITING_OF_ONE = 20_000;
const LIMIT = 51;
/** The place of `pinned` among the parameters of change_flow_key. */
const PINS_AT = 12;
/** A list looks into four queues of each key of a page, and reads a few pages of an index for each queue. */
const PAGES_MAX_OF_LIST = 800;
const PAGES_MAX = 60;
/** All keys that an environment keeps are counted before it keeps one more. */
const PAGES_MAX_OF_COUNT = 800;

let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

test("flow keys and hosts are listed, found, changed and purged at the same cost among 20,000 of them", async () => {
  const project = await store.addProject();
  const scope = { projectNo: project, environment: "production" as const };
  const page = { after: null, limit: LIMIT };
  const recorder = recordStatements(store.db);
  await listFlowKeys(recorder.db, scope, page);
  await listTargetHosts(recorder.db, scope, { ...page, state: null });
  await findFlowKey(recorder.db, scope, "key 10000");
  const cause = keyCause();
  await changeFlowKey(recorder.db, scope, "key 10000", { concurrency: 2, pinned: false }, cause);
  const { text, values } = recorder.statements.get("change_flow_key") ?? { text: "", values: [] };
  recorder.statements.set("change_flow_key that pins", { text, values: values.with(PINS_AT, true) });
  await openHost(recorder.db, scope, "10000.example", cause, null, 0);
  await purgeFlowKeys(recorder.db, LIMIT, Date.now());

  async function expectCheap(state: string): Promise<void> {
    for (const [name, { text, values: asked }] of recorder.statements) {
      // Each run has a request id of its own, because the id of an audit entry is unique.
      const requestId = crypto.randomUUID();
      const values = asked.map((value) => (value === idToUuid(cause.requestId) ? requestId : value));
      const most = name.startsWith("list_")
        ? PAGES_MAX_OF_LIST
        : name.endsWith("pins")
          ? PAGES_MAX_OF_COUNT
          : PAGES_MAX;
      const { pagesRead, scanned } = await explain(store, {
        mode: "force_generic_plan",
        text,
        values,
        tables: [],
      });
      expect({ state, name, scanned, isCheap: pagesRead < most || pagesRead }).toEqual({
        ...{ state, name },
        ...{ scanned: [], isCheap: true },
      });
    }
  }

  await expectCheap("empty");
  await store.query(
    `INSERT INTO flow_keys (project_no, environment, flow_key, concurrency, pinned)
     SELECT $1, 1, 'key ' || n, 1, n <= $3 FROM generate_series(1, $2::int) AS n ON CONFLICT DO NOTHING`,
    [project, KEYS, FLOW_KEYS_KEPT_MAX - 1],
  );
  await store.query(
    `INSERT INTO target_hosts (project_no, environment, host, state, by, parked)
     SELECT $1, 1, n || '.example', n % 2, 1, 1 FROM generate_series(1, $2::int) AS n ON CONFLICT DO NOTHING`,
    [project, KEYS],
  );
  // One key has a queue. Its due attempts are in their lane, as a caller that died would leave them.
  await store.query(
    `INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, parked_due_at, attempts_allowed, flow_key, gate)
     SELECT $1, 1, 0, gen_random_uuid(), now(), now() + n * interval '1 ms', 5, 'key 1', 'kkey 1' FROM generate_series(1, $2::int) AS n`,
    [project, WAITING_OF_ONE],
  );
  await expectCheap("full");
  await store.query("VACUUM ANALYZE");
  await expectCheap("full, and that is known");
});
