import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { keyCause } from "../../../test/support/cause.ts";
import { createIdSource, EVENT_PREFIX, idToUuid } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import {
  addEndpoint,
  deliveryClaimOf,
  deliverySettlementOf,
  endJobs,
  newDeliveryId,
  setStatus,
} from "../delivery-test-support.ts";
import { claimDeliveries } from "../queue/delivery-claim.ts";
import { settleDeliveries } from "../queue/delivery-settle.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { oweSample, retryDelivery } from "./deliveries-by-hand.ts";
import { listDeliveries } from "./delivery-log.ts";

let store: TestStore;
beforeAll(async () => {
  store = await startStore({ connections: 16 });
});
afterAll(() => store.stop());

const ids = createIdSource(randomBytes);
const scopeOf = (projectNo: ProjectNo) => ({ projectNo, environment: "production" as const });

const owe = (projectNo: ProjectNo, webhookId: string) =>
  oweSample(
    store.db,
    scopeOf(projectNo),
    webhookId,
    {
      eventId: ids.next(EVENT_PREFIX, Date.now()),
      deliveryId: newDeliveryId(),
      apiVersion: "2026-11-01",
      region: "us-east",
      shard: 3,
      runOf: () => ({ attempt: 1, status: "succeeded", responseStatus: 200, error: null, durationMs: 5 }),
    },
    keyCause(),
    null,
  );

const retry = (projectNo: ProjectNo, webhookId: string, id: string) =>
  retryDelivery(store.db, { ...scopeOf(projectNo), sinceAt: 0 }, { webhookId, id }, keyCause(), null);

const list = async (projectNo: ProjectNo, webhookId: string) => {
  const query = { ...scopeOf(projectNo), webhookId, status: null, sinceAt: 0, beforeId: null, limit: 1_000 };
  return (await listDeliveries(store.db, query)).rows;
};

describe("a sample", () => {
  test("that was accepted while a disabling was under way is dropped and not sent", async () => {
    const projectNo = await store.addProject();
    const webhookId = await addEndpoint(store, projectNo);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("UPDATE webhooks SET enabled = false, generation = generation + 1 WHERE id = $1", [
      idToUuid(webhookId),
    ]);
    const owed = await owe(projectNo, webhookId);
    if (owed.kind !== "owed") throw new Error(owed.kind);
    const claiming = claimDeliveries(store.db, await store.addNode(), [
      deliveryClaimOf({ ...scopeOf(projectNo), ...owed.delivery }),
    ]);
    await store.untilBlocked();
    await session.query("COMMIT");
    expect(await claiming).toEqual([{ kind: "gone" }]);
    expect((await list(projectNo, webhookId)).map(({ status }) => status)).toEqual(["dropped"]);
    await expect(owe(projectNo, webhookId)).rejects.toThrow("The endpoint is disabled.");
  });

  test("is not retried while its first attempt is being claimed", async () => {
    const projectNo = await store.addProject();
    const webhookId = await addEndpoint(store, projectNo);
    const owed = await owe(projectNo, webhookId);
    if (owed.kind !== "owed") throw new Error(owed.kind);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query(
      `UPDATE open_deliveries SET node_id = 1, attempt_id = id, due_at = NULL, started_at = now() WHERE id = $1`,
      [idToUuid(owed.delivery.id)],
    );
    const retried = retry(projectNo, webhookId, owed.delivery.id).catch(({ message }) => message as string);
    await store.untilBlocked();
    await session.query("COMMIT");
    expect(await retried).toContain("in progress");
  });

  test("that has ended while its retry waited has one attempt more", async () => {
    const projectNo = await store.addProject();
    const webhookId = await addEndpoint(store, projectNo);
    const owed = await owe(projectNo, webhookId);
    if (owed.kind !== "owed") throw new Error(owed.kind);
    const session = await store.session();
    await session.query("BEGIN");
    await session.query(
      `WITH gone AS (DELETE FROM open_deliveries WHERE id = $1 RETURNING *)
       INSERT INTO ended_deliveries (ended_at, project_no, environment, region, status, attempts, id, webhook_id, event_id)
       SELECT now(), project_no, environment, region, 1, attempt, id, webhook_id, event_id FROM gone`,
      [idToUuid(owed.delivery.id)],
    );
    const retried = retry(projectNo, webhookId, owed.delivery.id);
    await store.untilBlocked();
    await session.query("COMMIT");
    expect(await retried).toMatchObject({ kind: "retried", owed: [{ attempt: 2 }] });
  });
});

test("an attempt that is hastened gives back the wait that it did not wait for, and one that is due has none to give", async () => {
  const projectNo = await store.addProject();
  const webhookId = await addEndpoint(store, projectNo);
  const owed = await owe(projectNo, webhookId);
  if (owed.kind !== "owed") throw new Error(owed.kind);
  const { id } = owed.delivery;
  const waits = async (dueIn: string) => {
    await store.query(
      `UPDATE open_deliveries SET by_hand = false, waits = 3, due_at = now() + interval '${dueIn}' WHERE id = $1`,
      [idToUuid(id)],
    );
    await retry(projectNo, webhookId, id);
    return store.query("SELECT waits FROM open_deliveries WHERE id = $1", [idToUuid(id)]);
  };
  expect(await waits("5 min")).toEqual([{ waits: 2 }]);
  expect(await waits("-1 s")).toEqual([{ waits: 3 }]);
});

describe("what clients ask for by hand", () => {
  test("meets jobs that end, claims, settlements and disablings without a deadlock, and every delivery stays one", async () => {
    const nodeId = await store.addNode();
    const projectNo = await store.addProject();
    const endpoints = [await addEndpoint(store, projectNo), await addEndpoint(store, projectNo)];
    let madeCount = 0;
    const refusals: string[] = [];
    const refusable = (asked: Promise<unknown>) => asked.catch(({ message }) => refusals.push(message));
    for (let round = 0; round < 25; round++) {
      await Promise.all([
        endJobs(store, nodeId, projectNo, { count: 3 }).then(({ length }) => {
          madeCount += length;
        }),
        ...endpoints.flatMap((webhookId) => [
          refusable(
            owe(projectNo, webhookId).then(() => {
              madeCount++;
            }),
          ),
          list(projectNo, webhookId).then(async (rows) => {
            for (const { id } of rows.slice(0, 3)) await refusable(retry(projectNo, webhookId, id));
          }),
          list(projectNo, webhookId).then(async (rows) => {
            const waiting = rows.filter(({ nextAttemptAt }) => nextAttemptAt !== null);
            const claims = waiting.map(({ id, region, attempts }) =>
              deliveryClaimOf({ ...scopeOf(projectNo), region, id }, { attempt: attempts.length + 1 }),
            );
            const answers = await claimDeliveries(store.db, nodeId, claims);
            const settlements = claims.flatMap((claim, n) => {
              const answer = answers[n];
              return answer?.kind === "granted"
                ? [deliverySettlementOf({ claim, granted: answer.attempt })]
                : [];
            });
            if (settlements.length > 0) await settleDeliveries(store.db, settlements, 1_000_000);
          }),
        ]),
        setStatus(store, projectNo, endpoints[round % 2] ?? "", round % 3 === 0 ? "disabled" : "enabled"),
      ]);
    }
    expect([...new Set(refusals)].filter((message) => !/is disabled|in progress/.test(message))).toEqual([]);
    const rows = (await Promise.all(endpoints.map((webhookId) => list(projectNo, webhookId)))).flat();
    expect(new Set(rows.map(({ id }) => id)).size).toBe(rows.length);
    expect(rows).toHaveLength(madeCount);
    expect(rows.some(({ attempts }) => attempts.length > 1)).toBe(true);
    for (const { attempts } of rows)
      expect(attempts.map(({ attempt }) => attempt)).toEqual(attempts.map((_, n) => n + 1));
  });
});
