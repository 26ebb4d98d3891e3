import { afterAll, beforeAll, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { DELIVERY_PREFIX, idToUuid, uuidToId } from "../../domain/ids.ts";
import {
  addEndpoint,
  deliveryClaimOf,
  deliverySettlementOf,
  failedDelivery,
  permitsHeld,
  removeEndpoint,
  type StartedDelivery,
  setStatus,
} from "../delivery-test-support.ts";
import { retryDelivery } from "../resources/deliveries-by-hand.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimDeliveries } from "./delivery-claim.ts";
import { settleDeliveries } from "./delivery-settle.ts";
import { settleAttempts } from "./settle.ts";

const JOBS = 150;
const JOBS_PER_ROUND = 6;
const SENDERS = 3;
const WINDOW_MS = 48 * 3_600_000;

let store: TestStore;
let nodeIds: number[];
beforeAll(async () => {
  store = await startStore({ connections: 16 });
  nodeIds = await Promise.all(Array.from({ length: SENDERS }, () => store.addNode()));
});
afterAll(() => store.stop());

/** The time from the answer to a disabling or deletion until the request that enables again, by the database's clock. */
interface Silence {
  endpoint: string;
  from: number;
  to: number;
}

test("while jobs end, deliveries go, are retried by hand, and endpoints come and go, each event is owed once and nothing is sent to a silent endpoint", async () => {
  const project = await store.addProject({ concurrency: 40 });
  const witness = await addEndpoint(store, project);
  const toggled = await addEndpoint(store, project);
  const silences: Silence[] = [];
  let isEnding = true;
  const pick = <T>(members: readonly T[]) => members[Math.floor(Math.random() * members.length)];

  async function endJobs(): Promise<void> {
    for (let count = 0; count < JOBS; count += JOBS_PER_ROUND) {
      const jobs = await store.addJobs(project, JOBS_PER_ROUND);
      const attempts = [];
      // Deliveries may hold every permit at the moment.
      for (const jobId of jobs)
        attempts.push(await untilGranted(() => store.start(nodeIds[0] ?? 0, project, jobId)));
      await settleAttempts(
        store.db,
        attempts.map((attempt) => settlementOf(attempt, Math.random() < 0.5 ? {} : failedWith("over"))),
      );
    }
    isEnding = false;
  }

  async function send(nodeId: number): Promise<void> {
    for (;;) {
      const due = await store.query<{ id: string; attempt: number }>(
        `SELECT id, attempt FROM open_deliveries WHERE project_no = $1 AND due_at <= now() ORDER BY random() LIMIT 15`,
        [project],
      );
      if (due.length === 0 && !isEnding) return;
      const claims = due.map(({ id, attempt }) => deliveryClaimOf(placeOf(id), { attempt }));
      const answers = await claimDeliveries(store.db, nodeId, claims);
      const started = answers.flatMap((answer, index): StartedDelivery[] => {
        const claim = claims[index];
        return answer.kind === "granted" && claim !== undefined ? [{ claim, granted: answer.attempt }] : [];
      });
      const settlements = started.map((one) => {
        const chance = Math.random();
        if (chance < 0.6) return deliverySettlementOf(one);
        return deliverySettlementOf(one, failedDelivery(chance < 0.9 ? { dueAt: 0 } : "over"));
      });
      const { items } = await settleDeliveries(store.db, settlements, WINDOW_MS);
      expect(items).not.toContain(null);
    }
  }
  const placeOf = (id: string) => ({
    projectNo: project,
    environment: "production" as const,
    region: "us-east" as const,
    id: uuidToId(DELIVERY_PREFIX, id),
  });

  async function untilMoreIsSent(): Promise<void> {
    const count = async () =>
      (await store.query<{ count: number }>("SELECT count(*)::int AS count FROM delivery_attempts"))[0]
        ?.count ?? 0;
    const before = await count();
    while (isEnding && (await count()) < before + SENDERS);
  }

  async function turnOffAndOn(): Promise<void> {
    while (isEnding) {
      await setStatus(store, project, toggled, "disabled");
      const from = await now();
      await untilMoreIsSent();
      silences.push({ endpoint: toggled, from, to: await now() });
      await setStatus(store, project, toggled, "enabled");
      const passing = await addEndpoint(store, project);
      await untilMoreIsSent();
      await removeEndpoint(store, project, passing);
      silences.push({ endpoint: passing, from: await now(), to: Number.POSITIVE_INFINITY });
    }
  }

  async function retryByHand(): Promise<void> {
    while (isEnding) {
      const rows = await store.query<{ id: string; webhook_id: string }>(
        "SELECT id, webhook_id FROM ended_deliveries WHERE project_no = $1 AND attempts < 5",
        [project],
      );
      const row = pick(rows.filter(({ webhook_id }) => webhook_id === idToUuid(witness)));
      if (row === undefined) continue;
      const ids = { webhookId: witness, id: uuidToId(DELIVERY_PREFIX, row.id) };
      const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
      // A delivery that is on the wire again by now is refused.
      await retryDelivery(store.db, scope, ids, keyCause(), null).catch((error) => {
        if (!String(error).includes("in progress")) throw error;
      });
    }
  }

  await Promise.all([endJobs(), ...nodeIds.map(send), turnOffAndOn(), retryByHand()]);
  // Sends the deliveries that were asked for by hand in the last moment.
  await send(nodeIds[0] ?? 0);

  const [sums] = await store.query(
    `SELECT (SELECT count(*)::int FROM events WHERE project_no = $1) AS events,
            (SELECT count(*)::int FROM open_deliveries WHERE project_no = $1) AS open,
            (SELECT count(*)::int FROM ended_deliveries WHERE project_no = $1 AND webhook_id = $2) AS told,
            (SELECT count(*)::int FROM (SELECT FROM ended_deliveries WHERE project_no = $1
                                         GROUP BY event_id, webhook_id HAVING count(*) > 1) d) AS twice,
            (SELECT count(*)::int FROM ended_deliveries d WHERE d.project_no = $1
                AND d.attempts <> (SELECT count(*) FROM delivery_attempts a WHERE a.delivery_id = d.id)) AS unlogged`,
    [project, idToUuid(witness)],
  );
  expect(sums).toEqual({ events: JOBS, open: 0, told: JOBS, twice: 0, unlogged: 0 });
  expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
  expect(silences.length).toBeGreaterThan(10);
  for (const { endpoint, from, to } of silences) {
    const sent = await store.query(
      `SELECT started_at FROM delivery_attempts WHERE webhook_id = $1
          AND started_at > to_timestamp($2::float8 / 1000) AND started_at < to_timestamp($3::float8 / 1000)`,
      [idToUuid(endpoint), from, to],
    );
    expect(sent).toEqual([]);
  }
  const ends = await store.query<{ status: number }>(
    "SELECT DISTINCT status FROM ended_deliveries WHERE project_no = $1 ORDER BY status",
    [project],
  );
  // All ends have occurred; otherwise nothing was raced.
  expect(ends.map(({ status }) => status)).toEqual([0, 1, 2]);
});

async function now(): Promise<number> {
  const [row] = await store.query<{ at: number }>(
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS at",
  );
  return row?.at ?? 0;
}

async function untilGranted<T>(start: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await start();
    } catch (error) {
      if (!/no_permit|early/.test(String(error))) throw error;
    }
  }
}
