import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { idToUuid } from "../../domain/ids.ts";
import { listLostDeliveries } from "../cell/nodes.ts";
import { noteClock } from "../database/clock-watch.ts";
import { askTime } from "../database/database.ts";
import {
  addEndpoint,
  deliveryClaimOf,
  deliverySettlementOf,
  endJobs,
  endsOf,
  failedDelivery,
  type OwedDelivery,
  permitsHeld,
  removeEndpoint,
  type StartedDelivery,
  setStatus,
  startDelivery,
} from "../delivery-test-support.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { claimDeliveries } from "./delivery-claim.ts";
import { type DeliverySettlement, settleDeliveries } from "./delivery-settle.ts";

const WINDOW_MS = 48 * 3_600_000;
const HOUR_MS = 3_600_000;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const now = () => askTime(store.db);
/** The parts of a settlement whose attempt failed and whose next one follows after `waitMs`, or after the 48 h. */
const failedAfter = (waitMs: number | null): Partial<DeliverySettlement> => ({
  ...failedDelivery("over"),
  next: { status: "pending", waitMs, waits: 1 },
});
const settle = (started: StartedDelivery, wish = {}) =>
  settleDeliveries(store.db, [deliverySettlementOf(started, wish)], WINDOW_MS);

/** A project with one endpoint to which `count` deliveries are owed. */
async function owe(count = 1) {
  const project = await store.addProject();
  const endpoint = await addEndpoint(store, project);
  return { project, endpoint, owed: await endJobs(store, nodeId, project, { count }) };
}

async function startOne() {
  const { project, endpoint, owed } = await owe();
  return { project, endpoint, started: await startDelivery(store, nodeId, owed[0] as OwedDelivery) };
}

const attemptsOf = (started: StartedDelivery) =>
  store.query(
    `SELECT attempt, status, response_status, error, duration_ms, (extract(epoch FROM started_at) * 1000)::float8 AS started_at
       FROM delivery_attempts WHERE delivery_id = $1 ORDER BY attempt`,
    [idToUuid(started.claim.deliveryId)],
  );

const endpointRow = async (endpoint: string) => {
  const [row] = await store.query<{ enabled: boolean; generation: number; failing_since: Date | null }>(
    "SELECT enabled, generation, failing_since FROM webhooks WHERE id = $1",
    [idToUuid(endpoint)],
  );
  if (row === undefined) throw new Error(`no endpoint ${endpoint}`);
  return row;
};

describe("a settlement of a delivery", () => {
  test("of a success ends it, records the attempt and gives the permit back", async () => {
    const { project, started } = await startOne();
    const before = await store.flow(project);
    const { items } = await settle(started, { responseStatus: 202, durationMs: 12.6 });
    expect(items).toEqual([{ attempt: 1, status: "succeeded", nextAttemptAt: null, isDisabling: false }]);
    expect(await attemptsOf(started)).toEqual([
      {
        attempt: 1,
        status: 1,
        response_status: 202,
        error: null,
        duration_ms: 13,
        started_at: started.granted.startedAt,
      },
    ]);
    expect(await endsOf(store, project)).toEqual(["succeeded"]);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
    expect((await store.flow(project)).returned).toBe(before.returned + 1);
  });

  test("of a failure owes the next attempt after the wait it says", async () => {
    const { project, started } = await startOne();
    const askedAt = await now();
    const { items } = await settle(started, failedAfter(5_000));
    const dueAt = items[0]?.nextAttemptAt as number;
    expect(dueAt).toBeWithin(askedAt + 5_000, (await now()) + 5_001);
    expect(items).toEqual([{ attempt: 1, status: "pending", nextAttemptAt: dueAt, isDisabling: false }]);
    const [row] = await store.query(
      `SELECT attempt, node_id, attempt_id, started_at, (extract(epoch FROM due_at) * 1000)::float8 AS due_at,
              (extract(epoch FROM first_started_at) * 1000)::float8 AS first_started_at
         FROM open_deliveries WHERE project_no = $1`,
      [project],
    );
    expect(row).toEqual({
      attempt: 2,
      node_id: null,
      attempt_id: null,
      started_at: null,
      due_at: dueAt,
      first_started_at: started.granted.startedAt,
    });
    await store.query("UPDATE open_deliveries SET due_at = now() WHERE project_no = $1", [project]);
    const second = await startDelivery(store, nodeId, owedOf(started), { attempt: 2 });
    expect([started.granted.waits, second.granted.waits]).toEqual([0, 1]);
    await settle(second, failedAfter(0));
    expect((await attemptsOf(started)).map((attempt) => attempt.attempt)).toEqual([1, 2]);
  });

  test.each([
    ["waits", 5_000, 100_000_000],
    ["waits no longer than the 48 h", 5_000, 172_799_000],
    ["waits for the end of the 48 h after the last wait", null, 100_000_000],
    ["is due at once after the 48 h", null, 172_900_000],
    ["is due at once after the 48 h, whatever its wait", 5_000, 172_900_000],
  ])("of a failure that %s", async (_, waitMs, agoMs) => {
    const { project, started } = await startOne();
    await store.query(
      "UPDATE open_deliveries SET first_started_at = now() - $2 * interval '1 ms' WHERE project_no = $1",
      [project, agoMs],
    );
    const [open] = await store.query<{ first_started_at: number }>(
      "SELECT (extract(epoch FROM first_started_at) * 1000)::float8 AS first_started_at FROM open_deliveries WHERE project_no = $1",
      [project],
    );
    const lastAt = (open?.first_started_at as number) + WINDOW_MS;
    const askedAt = await now();
    const { items } = await settle(started, failedAfter(waitMs));
    const answeredAt = await now();
    const nextAt = items[0]?.nextAttemptAt as number;
    const within = (at: number) => Math.max(at, Math.min(at + (waitMs ?? Number.POSITIVE_INFINITY), lastAt));
    expect(nextAt).toBeWithin(within(askedAt), within(answeredAt) + 0.001);
    if (nextAt > answeredAt && waitMs === null) expect(nextAt).toBe(lastAt);
  });

  test.each([
    ["leapt within the 48 h", "steady_since = now() - interval '47 h', seen_at = now()", false],
    [
      "leapt by 30 days, and no worker has noted it yet",
      "steady_since = '-infinity', seen_at = now() - interval '30 days'",
      false,
    ],
    [
      "was set back, and no worker has noted it yet",
      "steady_since = '-infinity', seen_at = now() + interval '1 h'",
      false,
    ],
    ["has run evenly for longer", "steady_since = now() - interval '49 h', seen_at = now()", true],
  ])("disables no endpoint by a clock that is not trusted: it %s", async (_, watch, isDisabling) => {
    await noteClock(store.db, null);
    await store.query(`UPDATE clock_watch SET ${watch}`);
    const { started } = await startOne();
    await store.query("UPDATE open_deliveries SET started_at = now() - interval '30 days' WHERE id = $1", [
      idToUuid(started.claim.deliveryId),
    ]);
    const { items } = await settle(started, failedDelivery("over"));
    await store.query("DELETE FROM clock_watch");
    expect(items[0]?.isDisabling).toBe(isDisabling);
  });

  test("of the last failure ends it as failed", async () => {
    const { project, started } = await startOne();
    expect((await settle(started, failedDelivery("over"))).items[0]).toMatchObject({
      status: "failed",
      nextAttemptAt: null,
    });
    expect(await endsOf(store, project)).toEqual(["failed"]);
  });

  test("that is sent again counts once, and so does a rescue of the same attempt", async () => {
    const { project, started } = await startOne();
    const lostAfter = async (afterMs: number) =>
      (await listLostDeliveries(store.db, { beganBefore: Date.now() + 1_000, afterMs }, 500)).filter(
        (delivery) => delivery.projectNo === project,
      );
    await noteClock(store.db, null);
    // The caller's clock is ahead, and Postgres' clock says that the attempt has only begun.
    expect(await lostAfter(600_000)).toEqual([]);
    const [lost] = await lostAfter(0);
    expect(lost).toMatchObject({
      deliveryId: started.claim.deliveryId,
      attemptId: started.granted.attemptId,
      attempt: 1,
      startedAt: started.granted.startedAt,
      firstStartedAt: started.granted.startedAt,
      byHand: false,
      nodeDead: false,
    });
    const rescued = { ...lost, ...failedDelivery({ dueAt: 0 }), isOurFault: true, durationMs: 1 } as never;
    const [first, second, third] = [
      await settleDeliveries(store.db, [rescued], WINDOW_MS),
      await settle(started),
      await settleDeliveries(store.db, [rescued], WINDOW_MS),
    ];
    expect(first.items[0]?.status).toBe("pending");
    expect([second.items, third.items]).toEqual([[null], [null]]);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
    expect(await attemptsOf(started)).toHaveLength(1);
  });

  test("of many is answered in their order, and gives each environment its own permits back", async () => {
    const project = await store.addProject();
    const started: StartedDelivery[] = [];
    for (const environment of ["development", "production"] as const) {
      await addEndpoint(store, project, { environment });
      for (const owed of await endJobs(store, nodeId, project, { count: 2, environment }))
        started.push(await startDelivery(store, nodeId, owed));
    }
    expect(await permitsHeld(store, project)).toEqual({ development: 2, production: 2 });
    const [first, second, third, fourth] = started as [
      StartedDelivery,
      StartedDelivery,
      StartedDelivery,
      StartedDelivery,
    ];
    const { items } = await settleDeliveries(
      store.db,
      [
        deliverySettlementOf(fourth, failedDelivery("over")),
        deliverySettlementOf(first),
        deliverySettlementOf({
          ...third,
          granted: { ...third.granted, attemptId: fourth.granted.attemptId },
        }),
        deliverySettlementOf(second, failedDelivery({ dueAt: 0 })),
      ],
      WINDOW_MS,
    );
    expect(items.map((item) => item?.status ?? null)).toEqual(["failed", "succeeded", null, "pending"]);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 1 });
  });

  test("of an attempt that was found lost after months is recorded all the same", async () => {
    const { started } = await startOne();
    await settle(started, { durationMs: 90 * 24 * HOUR_MS });
    expect(await attemptsOf(started)).toMatchObject([{ duration_ms: 2_147_483_647 }]);
  });

  test("that frees a permit names the shards where one was refused", async () => {
    const project = await store.addProject({ concurrency: 1 });
    await addEndpoint(store, project);
    const [one] = (await endJobs(store, nodeId, project)) as [OwedDelivery];
    const [other] = (await endJobs(store, nodeId, project)) as [OwedDelivery];
    const started = await startDelivery(store, nodeId, one);
    const [refused] = await claimDeliveries(store.db, nodeId, [deliveryClaimOf(other)]);
    const { freed } = await settle(started);
    expect(refused?.kind).toBe("no_permit");
    expect(freed).toEqual([
      { projectNo: project, region: "us-east", shard: 0, returned: (await store.flow(project)).returned },
    ]);
  });
});

describe("an attempt that ends after its endpoint was disabled or deleted", () => {
  test.each(["disabled", "enabled again", "deleted"])("has no other after it: %s", async (what) => {
    const { project, endpoint, started } = await startOne();
    if (what === "deleted") await removeEndpoint(store, project, endpoint);
    else await setStatus(store, project, endpoint, "disabled");
    if (what === "enabled again") await setStatus(store, project, endpoint, "enabled");
    const { items } = await settle(started, failedDelivery({ dueAt: Date.now() + 5_000 }));
    expect(items).toEqual([{ attempt: 1, status: "dropped", nextAttemptAt: null, isDisabling: false }]);
    expect(await endsOf(store, project)).toEqual(["dropped"]);
    expect(await attemptsOf(started)).toHaveLength(1);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
  });

  test("tells nothing about it: neither its failure nor its success counts once it is enabled again", async () => {
    const { project, endpoint, owed } = await owe(2);
    const [failing, succeeding] = [
      await startDelivery(store, nodeId, owed[0] as OwedDelivery),
      await startDelivery(store, nodeId, owed[1] as OwedDelivery),
    ];
    await store.query(
      "UPDATE open_deliveries SET started_at = now() - interval '60 h' WHERE project_no = $1",
      [project],
    );
    await setStatus(store, project, endpoint, "disabled");
    await setStatus(store, project, endpoint, "enabled");
    await settle(failing, failedDelivery({ dueAt: 0 }));
    expect(await endpointRow(endpoint)).toEqual({ enabled: true, generation: 1, failing_since: null });
    const [next] = await endJobs(store, nodeId, project);
    await settle(await startDelivery(store, nodeId, next as OwedDelivery), failedDelivery({ dueAt: 0 }));
    const { failing_since } = await endpointRow(endpoint);
    expect(failing_since).not.toBeNull();
    await settle(succeeding);
    expect(await endpointRow(endpoint)).toEqual({ enabled: true, generation: 1, failing_since });
  });
});

describe("an endpoint of which everything has failed", () => {
  const backdate = (deliveries: readonly StartedDelivery[], hours: number) =>
    store.query(
      "UPDATE open_deliveries SET started_at = now() - $2::float8 * interval '1 h' WHERE id = ANY ($1)",
      [deliveries.map(({ claim }) => idToUuid(claim.deliveryId)), hours],
    );

  test("is disabled by the first failure 48 h after the first attempt began, and what is owed to it is dropped", async () => {
    const { project, endpoint, owed } = await owe(4);
    const [first, second, third, fourth] = owed as [OwedDelivery, OwedDelivery, OwedDelivery, OwedDelivery];
    const early = await startDelivery(store, nodeId, first);
    await backdate([early], 47.9);
    expect((await settle(early, failedDelivery({ dueAt: 0 }))).items[0]).toMatchObject({
      isDisabling: false,
    });
    const running = await startDelivery(store, nodeId, second);
    await store.query("UPDATE webhooks SET failing_since = failing_since - interval '6 min' WHERE id = $1", [
      idToUuid(endpoint),
    ]);
    const last = await startDelivery(store, nodeId, third);
    expect((await settle(last, failedDelivery({ dueAt: Date.now() + 5_000 }))).items).toEqual([
      { attempt: 1, status: "dropped", nextAttemptAt: null, isDisabling: true },
    ]);
    expect(await endpointRow(endpoint)).toMatchObject({ enabled: false, generation: 1 });
    // A delivery that was claimed before may end. Waiting deliveries are not claimed.
    expect((await settle(running)).items[0]).toMatchObject({ status: "succeeded" });
    const claims = [deliveryClaimOf(first, { attempt: 2 }), deliveryClaimOf(fourth)];
    expect((await claimDeliveries(store.db, nodeId, claims)).map(({ kind }) => kind)).toEqual([
      "gone",
      "gone",
    ]);
    expect(await endsOf(store, project)).toEqual(["dropped", "dropped", "dropped", "succeeded"]);
    expect(await endJobs(store, nodeId, project)).toEqual([]);
  });

  test("is disabled by its last attempt, which ends as failed and not as dropped", async () => {
    const { project, endpoint, started } = await startOne();
    await backdate([started], 49);
    const { items } = await settle(started, failedDelivery("over"));
    expect(items).toEqual([{ attempt: 1, status: "failed", nextAttemptAt: null, isDisabling: true }]);
    expect((await endpointRow(endpoint)).enabled).toBe(false);
    expect(await endsOf(store, project)).toEqual(["failed"]);
  });

  test("is not disabled for what failed by our own fault, which begins no 48 hours either", async () => {
    const { endpoint, started } = await startOne();
    await backdate([started], 49);
    const { items } = await settle(started, { ...failedDelivery("over"), isOurFault: true });
    expect(items[0]).toMatchObject({ status: "failed", isDisabling: false });
    expect(await endpointRow(endpoint)).toEqual({ enabled: true, generation: 0, failing_since: null });
  });

  test("is not disabled for what failed by hand, but lives on by what has succeeded by hand", async () => {
    const { project, endpoint, owed } = await owe(3);
    const [failing, sample, last] = await Promise.all(owed.map((one) => startDelivery(store, nodeId, one)));
    if (failing === undefined || sample === undefined || last === undefined) throw new Error("too few");
    await backdate([failing], 49);
    const byHand = "UPDATE open_deliveries SET by_hand = true WHERE id = $1";
    await store.query(byHand, [idToUuid(failing.claim.deliveryId)]);
    await store.query(byHand, [idToUuid(sample.claim.deliveryId)]);
    expect((await settle(failing, failedDelivery("over"))).items[0]).toMatchObject({ isDisabling: false });
    expect(await endpointRow(endpoint)).toMatchObject({ enabled: true, failing_since: null });
    await store.query("UPDATE webhooks SET failing_since = now() - interval '49 h' WHERE id = $1", [
      idToUuid(endpoint),
    ]);
    await settle(sample);
    expect((await settle(last, failedDelivery("over"))).items[0]).toMatchObject({ isDisabling: false });
    expect(await endsOf(store, project)).toEqual(["failed", "failed", "succeeded"]);
  });

  test("begins new 48 hours when it is enabled again", async () => {
    const { project, endpoint, started } = await startOne();
    await backdate([started], 49);
    await settle(started, failedDelivery("over"));
    await setStatus(store, project, endpoint, "enabled");
    const [owed] = await endJobs(store, nodeId, project);
    const next = await startDelivery(store, nodeId, owed as OwedDelivery);
    expect((await settle(next, failedDelivery({ dueAt: 0 }))).items[0]).toMatchObject({
      status: "pending",
      isDisabling: false,
    });
    expect(await endpointRow(endpoint)).toMatchObject({ enabled: true, generation: 1 });
  });

  test("stays enabled where a success is settled together with the failure, or began after what failed", async () => {
    const { endpoint, owed } = await owe(3);
    const [failing, succeeding, late] = await Promise.all(
      owed.map((delivery) => startDelivery(store, nodeId, delivery)),
    );
    if (failing === undefined || succeeding === undefined || late === undefined) throw new Error("not owed");
    await backdate([failing, late], 60);
    await backdate([succeeding], 50);
    const both = [deliverySettlementOf(failing, failedDelivery("over")), deliverySettlementOf(succeeding)];
    const { items } = await settleDeliveries(store.db, both, WINDOW_MS);
    expect(items.map((item) => item?.isDisabling)).toEqual([false, false]);
    expect((await settle(late, failedDelivery("over"))).items[0]?.isDisabling).toBe(false);
    expect(await endpointRow(endpoint)).toEqual({ enabled: true, generation: 0, failing_since: null });
  });

  test("has failed since what another settlement records while an earlier success waits for the flow", async () => {
    const { project, endpoint, owed } = await owe(3);
    const [first, succeeding, later] = await Promise.all(
      owed.map((one) => startDelivery(store, nodeId, one)),
    );
    if (first === undefined || succeeding === undefined || later === undefined) throw new Error("not owed");
    await backdate([first], 10);
    await backdate([succeeding], 5);
    await settle(first, failedDelivery("over"));
    const session = await store.session();
    await session.query("BEGIN");
    await session.query("SELECT FROM flows WHERE project_no = $1 FOR UPDATE", [project]);
    const settled = settle(succeeding);
    await store.untilBlocked();
    const { rows } = await session.query(
      `INSERT INTO delivery_attempts (delivery_id, webhook_id, attempt, status, started_at, duration_ms)
       VALUES ($1, $2, 1, 2, now() - interval '2 h', 1) RETURNING started_at`,
      [idToUuid(later.claim.deliveryId), idToUuid(endpoint)],
    );
    await session.query("COMMIT");
    await settled;
    expect((await endpointRow(endpoint)).failing_since).toEqual(rows[0].started_at);
  });

  test("is told apart from its project's other endpoints", async () => {
    const project = await store.addProject();
    const [failing, other] = [await addEndpoint(store, project), await addEndpoint(store, project)];
    const owed = await endJobs(store, nodeId, project);
    const started = await Promise.all(owed.map((delivery) => startDelivery(store, nodeId, delivery)));
    await backdate(started, 49);
    const { items } = await settleDeliveries(
      store.db,
      started.map((one) =>
        deliverySettlementOf(one, one.granted.webhookId === failing ? failedDelivery("over") : {}),
      ),
      WINDOW_MS,
    );
    expect(items.map((item) => item?.isDisabling).sort()).toEqual([false, true]);
    expect((await endpointRow(failing)).enabled).toBe(false);
    expect(await endpointRow(other)).toEqual({ enabled: true, generation: 0, failing_since: null });
  });
});

const owedOf = ({ claim }: StartedDelivery): OwedDelivery => ({ ...claim, id: claim.deliveryId });
