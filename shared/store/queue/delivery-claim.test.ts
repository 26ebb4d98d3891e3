import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import type pg from "pg";
import { keyCause } from "../../../test/support/cause.ts";
import { idToUuid } from "../../domain/ids.ts";
import type { ProjectNo } from "../../domain/scope.ts";
import { declareNodeDead } from "../cell/nodes.ts";
import {
  addEndpoint,
  deliveryClaimOf,
  deliverySettlementOf,
  endJobs,
  endsOf,
  failedDelivery,
  newDeliveryId,
  type OwedDelivery,
  permitsHeld,
  removeEndpoint,
  setStatus,
  startDelivery,
} from "../delivery-test-support.ts";
import { changeWebhook, rotateWebhookSecret } from "../resources/webhooks.ts";
import { startStore, type TestStore } from "../test-support.ts";
import { type Claimed, NodeDeclaredDead } from "./claim.ts";
import { claimDeliveries, type GrantedDelivery } from "./delivery-claim.ts";
import { settleDeliveries } from "./delivery-settle.ts";

const WINDOW_MS = 48 * 3_600_000;

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const claimAll = (owed: readonly OwedDelivery[], wish = {}, node = nodeId) =>
  claimDeliveries(
    store.db,
    node,
    owed.map((delivery) => deliveryClaimOf(delivery, wish)),
  );
const kindsOf = (answers: readonly Claimed<GrantedDelivery>[]) => answers.map((answer) => answer.kind);
const only = (owed: readonly OwedDelivery[]): OwedDelivery => {
  const [first, ...others] = owed;
  if (first === undefined || others.length > 0) throw new Error(`${owed.length} are owed, not one`);
  return first;
};

/** A project with one endpoint to which one delivery is owed. */
async function oweOne(options?: { concurrency?: number }) {
  const project = await store.addProject(options);
  const endpoint = await addEndpoint(store, project);
  return { project, endpoint, owed: only(await endJobs(store, nodeId, project)) };
}

describe("a claim of a delivery", () => {
  test("that is granted comes with the event and with where it goes, and takes a permit of its own class", async () => {
    const { project, endpoint, owed } = await oweOne();
    const askedAt = Date.now();
    const { claim, granted } = await startDelivery(store, nodeId, owed);
    expect(granted.startedAt).toBeWithin(askedAt - 1_000, Date.now() + 1_000);
    expect(granted).toMatchObject({
      deliveryId: owed.id,
      webhookId: endpoint,
      attemptId: claim.attemptId,
      byHand: false,
      isSample: false,
      endpoint: { url: "https://endpoint.example/hook" },
      event: {
        type: "job.failed",
        environment: "production",
        job: { targetUrl: "https://target.example/hook", attempts: 1, scheduleId: null },
        run: { attempt: 1, status: "failed", responseStatus: 500, error: "no", durationMs: 5 },
      },
    });
    expect(granted.endpoint?.sealedSecrets).toHaveLength(1);
    expect(granted.firstStartedAt).toBe(granted.startedAt);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 1 });
    expect(await store.flow(project)).toMatchObject({ production_jobs: 0 });
  });

  test("that is sent again after an unknown outcome is granted once more, as it was, and counted once", async () => {
    const { project, owed } = await oweOne({ concurrency: 1 });
    const first = await startDelivery(store, nodeId, owed);
    const again = await startDelivery(store, nodeId, owed);
    expect(again.granted).toEqual(first.granted);
    expect(again.granted.attemptId).not.toBe(again.claim.attemptId);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 1 });
    expect(await endsOf(store, project)).toEqual(["open"]);
  });

  test("before its time is answered with what is left, and takes nothing", async () => {
    const { project, owed } = await oweOne();
    await store.query("UPDATE open_deliveries SET due_at = now() + interval '1 min' WHERE project_no = $1", [
      project,
    ]);
    const [answer] = await claimAll([owed]);
    const waitMs = answer?.kind === "early" ? answer.waitMs : 0;
    expect(waitMs).toBeGreaterThan(50_000);
    expect(waitMs).toBeLessThanOrEqual(60_000);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
  });

  test("of a held project is blocked for a moment, and of one at its limit refused", async () => {
    const { project, owed } = await oweOne({ concurrency: 1 });
    await store.query("UPDATE flows SET held = true WHERE project_no = $1", [project]);
    const askedAt = Date.now();
    const [blocked] = await claimAll([owed]);
    expect(blocked?.kind === "blocked" && blocked.untilAt > askedAt).toBe(true);
    await store.query("UPDATE flows SET held = false WHERE project_no = $1", [project]);
    const [jobId = ""] = await store.addJobs(project, 1);
    await store.start(nodeId, project, jobId);
    expect(kindsOf(await claimAll([owed]))).toEqual(["no_permit"]);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
  });

  test("of what is not owed is gone: another attempt, scope or project, taken by another node, over, never there", async () => {
    const project = await store.addProject();
    const stranger = await store.addProject();
    await addEndpoint(store, project);
    const [owed, taken, over] = await endJobs(store, nodeId, project, { count: 3 });
    if (owed === undefined || taken === undefined || over === undefined) throw new Error("not owed");
    await startDelivery(store, await store.addNode(), taken);
    const started = await startDelivery(store, nodeId, over);
    await settleDeliveries(store.db, [deliverySettlementOf(started)], WINDOW_MS);
    const answers = [];
    for (const claim of [
      deliveryClaimOf(owed, { attempt: 2 }),
      deliveryClaimOf(owed, { environment: "development" }),
      deliveryClaimOf(owed, { region: "us-west" }),
      deliveryClaimOf({ ...owed, projectNo: stranger }),
      deliveryClaimOf(taken),
      deliveryClaimOf(over),
      deliveryClaimOf({ ...owed, id: newDeliveryId() }),
    ]) {
      answers.push(...(await claimDeliveries(store.db, nodeId, [claim])));
    }
    expect(kindsOf(answers)).toEqual(Array(7).fill("gone"));
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 1 });
    expect(await endsOf(store, project)).toEqual(["open", "open", "succeeded"]);
  });

  test("by a node that was declared dead takes nothing and tells it so", async () => {
    const { project, owed } = await oweOne();
    const dead = await store.addNode();
    await declareNodeDead(store.db, dead);
    expect(claimAll([owed], {}, dead)).rejects.toThrow(NodeDeclaredDead);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
  });

  test("of many is answered in the order of the claims, whatever they come to", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project);
    const disabled = await addEndpoint(store, project);
    const owed = await endJobs(store, nodeId, project, { count: 2 });
    await setStatus(store, project, disabled, "disabled");
    const rows = await store.query<{ id: string; webhook_id: string }>(
      "SELECT id, webhook_id FROM open_deliveries WHERE project_no = $1",
      [project],
    );
    const dropped = new Set(rows.filter((row) => row.webhook_id === idToUuid(disabled)).map((row) => row.id));
    const answers = await claimAll(owed);
    expect(kindsOf(answers)).toEqual(owed.map(({ id }) => (dropped.has(idToUuid(id)) ? "gone" : "granted")));
    for (const [index, answer] of answers.entries()) {
      if (answer.kind === "granted") expect(answer.attempt.deliveryId).toBe(owed[index]?.id ?? "");
    }
    expect(await endsOf(store, project)).toEqual(["dropped", "dropped", "open", "open"]);
  });

  test("takes the URL and the secrets as they are now, both secrets for 24 h after a rotation and then one", async () => {
    const { project, endpoint, owed } = await oweOne();
    const scope = { projectNo: project, environment: "production" as const };
    const first = await startDelivery(store, nodeId, owed);
    const url = "https://moved.example/";
    await changeWebhook(store.db, scope, endpoint, (webhook) => ({ ...webhook, url }), keyCause(), 0);
    const sealed = Buffer.from("the new one, sealed");
    await rotateWebhookSecret(store.db, scope, endpoint, sealed, keyCause(), null);
    await settleDeliveries(store.db, [deliverySettlementOf(first, failedDelivery({ dueAt: 0 }))], WINDOW_MS);
    const second = await startDelivery(store, nodeId, owed, { attempt: 2 });
    expect(second.granted.endpoint).toEqual({
      url,
      sealedSecrets: [sealed, first.granted.endpoint?.sealedSecrets[0] as Buffer],
    });
    expect(second.granted.firstStartedAt).toBe(first.granted.startedAt);
    expect(second.granted.event).toEqual(first.granted.event);
    await settleDeliveries(store.db, [deliverySettlementOf(second, failedDelivery({ dueAt: 0 }))], WINDOW_MS);
    await store.query("UPDATE webhooks SET old_secret_until = now() WHERE project_no = $1", [project]);
    const third = await startDelivery(store, nodeId, owed, { attempt: 3 });
    expect(third.granted.endpoint?.sealedSecrets).toEqual([sealed]);
  });
});

describe("what is owed to an endpoint that was disabled or deleted since", () => {
  const turnOffAndOn = async (project: ProjectNo, endpoint: string) => {
    await setStatus(store, project, endpoint, "disabled");
    await setStatus(store, project, endpoint, "enabled");
  };
  test.each([
    ["disabled", (project: ProjectNo, endpoint: string) => setStatus(store, project, endpoint, "disabled")],
    ["disabled and enabled again", turnOffAndOn],
    ["deleted", (project: ProjectNo, endpoint: string) => removeEndpoint(store, project, endpoint)],
  ])("is dropped by its next claim and takes no permit: %s", async (_, turnOff) => {
    const { project, endpoint, owed } = await oweOne();
    await turnOff(project, endpoint);
    expect(kindsOf(await claimAll([owed]))).toEqual(["gone"]);
    expect(await endsOf(store, project)).toEqual(["dropped"]);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
    expect(kindsOf(await claimAll([owed]))).toEqual(["gone"]);
    expect(await endsOf(store, project)).toEqual(["dropped"]);
  });

  test("is dropped although it is not due for hours, and says how many attempts it had", async () => {
    const { project, endpoint, owed } = await oweOne();
    const started = await startDelivery(store, nodeId, owed);
    const dueAt = Date.now() + 3_600_000;
    await settleDeliveries(store.db, [deliverySettlementOf(started, failedDelivery({ dueAt }))], WINDOW_MS);
    await setStatus(store, project, endpoint, "disabled");
    expect(kindsOf(await claimAll([owed], { attempt: 2 }))).toEqual(["gone"]);
    const rows = await store.query(
      "SELECT status, attempts, first_started_at IS NOT NULL AS has_begun FROM ended_deliveries WHERE project_no = $1",
      [project],
    );
    expect(rows).toEqual([{ status: 2, attempts: 1, has_begun: true }]);
  });

  test("goes to its end where it was on the wire, and a claim whose answer was lost is still granted", async () => {
    const { project, endpoint, owed } = await oweOne();
    const started = await startDelivery(store, nodeId, owed);
    await setStatus(store, project, endpoint, "disabled");
    const again = await startDelivery(store, nodeId, owed);
    expect(again.granted.attemptId).toBe(started.granted.attemptId);
    await removeEndpoint(store, project, endpoint);
    const orphaned = await startDelivery(store, nodeId, owed);
    expect(orphaned.granted.endpoint).toBeNull();
    const settled = await settleDeliveries(store.db, [deliverySettlementOf(started)], WINDOW_MS);
    expect(settled.items).toMatchObject([{ status: "succeeded", isDisabling: false }]);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
  });
});

describe("a claim against a change of the endpoint in another session", () => {
  /** Locks the project's flow as every change of an endpoint does, and makes that change. */
  async function beginChange(project: ProjectNo, endpoint: string, change: string): Promise<pg.Client> {
    const changing = await store.session();
    await changing.query("BEGIN");
    await changing.query("SELECT FROM flows WHERE project_no = $1 FOR NO KEY UPDATE", [project]);
    await changing.query(`${change} WHERE id = $1`, [idToUuid(endpoint)]);
    return changing;
  }

  test.each([
    ["disabled", "UPDATE webhooks SET enabled = false, generation = generation + 1"],
    ["deleted", "DELETE FROM webhooks"],
  ])("that began before it and comes after it claims nothing: %s", async (_, change) => {
    const { project, endpoint, owed } = await oweOne();
    const changing = await beginChange(project, endpoint, change);
    const claiming = claimAll([owed]);
    await store.untilBlocked();
    await changing.query("COMMIT");
    expect(kindsOf(await claiming)).toEqual(["gone"]);
    expect(await endsOf(store, project)).toEqual(["dropped"]);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 0 });
  });

  test("that comes before it is waited for, and what it claimed goes on", async () => {
    const { project, endpoint, owed } = await oweOne();
    const claiming = await store.session();
    await claiming.query("BEGIN");
    const run = async (_name: string, text: string, values: unknown[]) =>
      (await claiming.query(text, values)).rows;
    const claim = deliveryClaimOf(owed);
    const [answer] = await claimDeliveries({ ...store.db, run: run as typeof store.db.run }, nodeId, [claim]);
    if (answer?.kind !== "granted") throw new Error("not granted");
    let isDisabled = false;
    const disabling = setStatus(store, project, endpoint, "disabled").then(() => {
      isDisabled = true;
    });
    await store.untilBlocked();
    expect(isDisabled).toBe(false);
    await claiming.query("COMMIT");
    await disabling;
    const settlement = deliverySettlementOf({ claim, granted: answer.attempt });
    expect((await settleDeliveries(store.db, [settlement], WINDOW_MS)).items).toMatchObject([
      { status: "succeeded" },
    ]);
  });

  test("takes nothing once it was answered, however many claim meanwhile", async () => {
    const project = await store.addProject();
    const endpoint = await addEndpoint(store, project);
    const owed = await endJobs(store, nodeId, project, { count: 60 });
    let answeredAt = Number.POSITIVE_INFINITY;
    const dbNow = async () => {
      const [row] = await store.query<{ at: number }>(
        "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS at",
      );
      return row?.at ?? 0;
    };
    const claims = owed.map(async (delivery, index) => {
      if (index === 20) {
        await setStatus(store, project, endpoint, "disabled");
        answeredAt = await dbNow();
      }
      return claimAll([delivery]);
    });
    const answers = (await Promise.all(claims)).flat();
    const startedAts = answers.flatMap((answer) =>
      answer.kind === "granted" ? [answer.attempt.startedAt] : [],
    );
    expect(startedAts.filter((at) => at > answeredAt)).toEqual([]);
    expect(kindsOf(await claimAll(owed)).filter((kind) => kind === "granted")).toHaveLength(
      startedAts.length,
    );
    expect((await endsOf(store, project)).filter((end) => end === "open")).toHaveLength(startedAts.length);
    expect(await permitsHeld(store, project)).toEqual({ development: 0, production: startedAts.length });
  });
});

test("a delivery whose event has no row is dropped, and those that are claimed with it are granted", async () => {
  const { project, owed } = await oweOne();
  const [lost] = await endJobs(store, nodeId, project);
  await store.query(
    `DELETE FROM events WHERE project_no = $1
        AND id = (SELECT event_id FROM open_deliveries WHERE project_no = $1 AND id = $2)`,
    [project, idToUuid((lost as OwedDelivery).id)],
  );
  expect(kindsOf(await claimAll([lost as OwedDelivery, owed]))).toEqual(["gone", "granted"]);
  expect(await endsOf(store, project)).toEqual(["dropped", "open"]);
  expect(await permitsHeld(store, project)).toEqual({ development: 0, production: 1 });
});
