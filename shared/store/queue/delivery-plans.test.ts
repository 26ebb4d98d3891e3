import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomUUID } from "node:crypto";
import { idToUuid } from "../../domain/ids.ts";
import { REGIONS } from "../../domain/scope.ts";
import { listLostDeliveries } from "../cell/nodes.ts";
import {
  addEndpoint,
  deliveryClaimOf,
  deliverySettlementOf,
  endJobs,
  failedDelivery,
  type OwedDelivery,
  startDelivery,
} from "../delivery-test-support.ts";
import { explain, recordStatements } from "../plan-test-support.ts";
import { purgeDeliveryAttempts, purgeEndedDeliveries, purgeEvents } from "../retention/delivery-purge.ts";
import { settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimDeliveries } from "./delivery-claim.ts";
import { settleDeliveries } from "./delivery-settle.ts";
import { forgetIdleLeftHosts, listParkedHosts, releaseLeft, releaseParked } from "./parked.ts";
import { parkAttempts } from "./parking.ts";
import { settleAttempts } from "./settle.ts";
import { sweepShards } from "./sweep.ts";
import { findEndpointUrls } from "./target-urls.ts";

setDefaultTimeout(600_000);

const TABLES = ["webhooks", "events", "open_deliveries", "ended_deliveries", "delivery_attempts"];
const OWED = 100_000;
/** The number of rows of each table that only grows. */
const KEPT = 50_000;
/** The log of an endpoint has some 500 pages. */
const FUNCTION_PAGES_MAX = 50;
const HOUR_MS = 3_600_000;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore();
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

test("on 100,000 owed deliveries every hot statement finds its rows by the index that is meant for it, and reads few pages", async () => {
  const project = await store.addProject();
  const endpoint = await addEndpoint(store, project);
  const [claimed, settled, succeeding] = (await endJobs(store, nodeId, project, { count: 3 })) as [
    OwedDelivery,
    OwedDelivery,
    OwedDelivery,
  ];
  await fill(project, endpoint);
  const started = await startDelivery(store, nodeId, settled);
  const good = await startDelivery(store, nodeId, succeeding);
  const [jobId = ""] = await store.addJobs(project, 1);
  const attempt = await store.start(nodeId, project, jobId);

  const recorder = recordStatements(store.db);
  await claimDeliveries(recorder.db, nodeId, [deliveryClaimOf(claimed)]);
  const failed = deliverySettlementOf(started, failedDelivery({ dueAt: Date.now() + HOUR_MS }));
  for (const settlement of [failed, deliverySettlementOf(good)]) {
    await settleDeliveries(recorder.db, [settlement], 48 * HOUR_MS);
  }
  await settleAttempts(recorder.db, [settlementOf(attempt)]);
  await listLostDeliveries(recorder.db, { beganBefore: Date.now() - 60_000, afterMs: 60_000 }, 10);
  await findEndpointUrls(recorder.db, [claimed]);
  await sweepShards(recorder.db, [{ region: "us-east", shard: 0, sinceAt: Date.now() }], [], 1_500);
  const { projectNo, environment, region, id } = claimed;
  await parkAttempts(recorder.db, "webhooks", [
    { projectNo, environment, region, id, attempt: 1, host: "h.example", url: "https://h.example" },
  ]);
  await listParkedHosts(recorder.db, "webhooks");
  const parked = { host: "held.example", regions: REGIONS, after: null, count: 10, countMin: 0 };
  await releaseParked(recorder.db, "webhooks", parked);
  await store.query(LEAVE_MANY, [project]);
  await forgetIdleLeftHosts(recorder.db, 1_000);
  await releaseLeft(
    recorder.db,
    { projectNo, environment, webhookId: endpoint, host: "left.example", url: null, leftAt: "-infinity" },
    10,
  );
  await purgeEndedDeliveries(recorder.db, 2_000, Date.now());
  await purgeDeliveryAttempts(recorder.db, 2_000, Date.now());
  await purgeEvents(recorder.db, 2_000, Date.now());

  const WANTED: Record<string, string[]> = {
    claim_deliveries: ["events_pkey", "open_deliveries_pkey", "webhooks_pkey"],
    settle_deliveries: ["open_deliveries_pkey", "webhooks_pkey"],
    settle_failed_deliveries: ["open_deliveries_pkey", "webhooks_pkey"],
    settle: ["webhooks_pkey"],
    list_lost_deliveries: ["open_deliveries_running"],
    find_endpoint_urls: ["open_deliveries_pkey", "webhooks_pkey"],
    sweep: ["open_deliveries_due"],
    park_webhooks: ["open_deliveries_pkey", "webhooks_pkey"],
    list_parked_webhooks: ["open_deliveries_parked"],
    release_webhooks: ["open_deliveries_parked", "open_deliveries_pkey"],
    release_left: ["open_deliveries_parked", "open_deliveries_pkey"],
    forget_left_host: [],
    forget_idle_left_hosts: ["open_deliveries_parked"],
    purge_ended_deliveries: ["ended_deliveries_age"],
    purge_delivery_attempts: ["delivery_attempts_pkey"],
    purge_events: ["events_age", "open_deliveries_pkey"],
  };
  expect([...recorder.statements.keys()].sort()).toEqual(Object.keys(WANTED).sort());
  for (const [name, { text, values }] of recorder.statements) {
    for (const mode of ["force_generic_plan", "force_custom_plan"]) {
      const { indexes, wholeTables, pagesRead } = await explain(store, {
        mode,
        text,
        values,
        tables: TABLES,
      });
      expect({ name, mode, indexes, wholeTables }).toEqual({
        name,
        mode,
        indexes: WANTED[name] ?? [],
        wholeTables: [],
      });
      expect({ name, mode, pagesRead, isFew: pagesRead < 1_000 }).toMatchObject({ name, mode, isFew: true });
    }
  }
});

test("a settlement's function finds an endpoint's first failure among 50,000 attempts by few pages", async () => {
  const endpoint = randomUUID();
  await store.query(LOG, [endpoint, KEPT]);
  await store.query("VACUUM ANALYZE delivery_attempts");
  for (const mode of ["force_generic_plan", "force_custom_plan"]) {
    const read = () =>
      explain(store, {
        mode,
        text: "SELECT first_failure($1, now() - interval '1 h')",
        values: [endpoint],
        tables: TABLES,
      });
    // The first call reads what Postgres itself keeps of the function.
    await read();
    const { pagesRead } = await read();
    expect({ mode, isFew: pagesRead < FUNCTION_PAGES_MAX || pagesRead }).toEqual({ mode, isFew: true });
  }
});

/** Hosts that nothing is parked at. */
const LEAVE_MANY = `
INSERT INTO left_hosts (project_no, environment, webhook_id, host)
SELECT $1, 1, gen_random_uuid(), 'left-' || n FROM generate_series(1, 200) n`;

/** Attempts of an endpoint that failed, one a second. */
const LOG = `
INSERT INTO delivery_attempts (started_at, duration_ms, attempt, status, delivery_id, webhook_id)
SELECT now() - ($2::int - n) * interval '1 s', 1, 1, 2, gen_random_uuid(), $1 FROM generate_series(1, $2::int) AS n`;

/** Fills the tables with deliveries that are owed later, and with deliveries that have ended. */
async function fill(project: number, endpoint: string): Promise<void> {
  const uuid = idToUuid(endpoint);
  await store.query(
    `INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, due_at)
     SELECT $1, 1, 0, gen_random_uuid(), $2, gen_random_uuid(), 0, now() + n * interval '1 s' FROM generate_series(1, $3::int) AS n`,
    [project, uuid, OWED],
  );
  await store.query(
    `INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, parked_host, parked_due_at)
     SELECT $1, 1, 0, gen_random_uuid(), $2, gen_random_uuid(), 0, 'held.example', now() - n * interval '1 s'
       FROM generate_series(1, $3::int) AS n`,
    [project, uuid, OWED],
  );
  await store.query(
    `INSERT INTO events (occurred_at, started_at, project_no, duration_ms, environment, region, type, attempt, run_status,
                         id, api_version)
     SELECT now() - ($2::int - n) * interval '1 s', now(), $1, 1, 1, 0, 1, 1, 2, gen_random_uuid(), '2026-11-01'
       FROM generate_series(1, $2::int) AS n`,
    [project, KEPT],
  );
  await store.query(
    `INSERT INTO ended_deliveries (ended_at, project_no, environment, region, status, attempts, id, webhook_id, event_id)
     SELECT now() - ($3::int - n) * interval '1 s', $1, 1, 0, 1, 1, gen_random_uuid(), $2, gen_random_uuid()
       FROM generate_series(1, $3::int) AS n`,
    [project, uuid, KEPT],
  );
  await store.query(LOG, [uuid, KEPT]);
  await store.query("VACUUM ANALYZE");
}
