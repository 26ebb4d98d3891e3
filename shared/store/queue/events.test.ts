import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { EVENT_PREFIX, idToUuid, retypeId } from "../../domain/ids.ts";
import {
  addEndpoint,
  deliveriesOf,
  deliveryClaimOf,
  endJobs,
  endsOf,
  type OwedDelivery,
  removeEndpoint,
  setStatus,
  startDelivery,
} from "../delivery-test-support.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { claimDeliveries } from "./delivery-claim.ts";
import { settleAttempts } from "./settle.ts";

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

describe("a job that ends", () => {
  const eventsOf = (project: number) =>
    store.query<{ id: string; type: number; job_id: string; environment: number }>(
      "SELECT id, type, job_id, environment FROM events WHERE project_no = $1 ORDER BY id",
      [project],
    );

  test("is told once to each enabled endpoint of its environment that subscribed to that, and to nobody else", async () => {
    const project = await store.addProject();
    const stranger = await store.addProject();
    const both = await addEndpoint(store, project);
    const failures = await addEndpoint(store, project, { events: ["job.failed"] });
    await addEndpoint(store, project, { environment: "development" });
    await setStatus(store, project, await addEndpoint(store, project), "disabled");
    await removeEndpoint(store, project, await addEndpoint(store, project));
    await addEndpoint(store, stranger);
    const [owedSuccess, owedFailure] = [
      await endJobs(store, nodeId, project, { type: "job.succeeded" }),
      await endJobs(store, nodeId, project),
    ];
    const rows = await store.query<{ webhook_id: string; id: string }>(
      "SELECT id, webhook_id FROM open_deliveries WHERE project_no = $1",
      [project],
    );
    const heardBy = (owed: readonly OwedDelivery[]) =>
      owed.map(({ id }) => rows.find((row) => row.id === idToUuid(id))?.webhook_id).sort();
    expect(rows).toHaveLength(3);
    expect(heardBy(owedSuccess)).toEqual([idToUuid(both)]);
    expect(heardBy(owedFailure)).toEqual([both, failures].map(idToUuid).sort());
    expect((await eventsOf(project)).map(({ type }) => type)).toEqual([0, 1]);
    expect(await eventsOf(stranger)).toEqual([]);
  });

  test("has the event of its last run: none while it is retried, none where nobody listens, none when it was canceled", async () => {
    const project = await store.addProject();
    const endpoint = await addEndpoint(store, project, { events: ["job.failed"] });
    const [failing = "", canceled = "", succeeding = ""] = await store.addJobs(project, 3);
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    const first = await store.start(nodeId, project, failing);
    await settleAttempts(store.db, [settlementOf(first, failedWith({ dueAt: 0 }))]);
    const stopped = await store.start(nodeId, project, canceled);
    await cancelJob(store.db, scope, canceled, keyCause());
    await settleAttempts(store.db, [settlementOf(stopped, failedWith("over"))]);
    await settleAttempts(store.db, [settlementOf(await store.start(nodeId, project, succeeding))]);
    expect(await eventsOf(project)).toEqual([]);
    const second = await store.start(nodeId, project, failing, { attempt: 2 });
    const deliveries = deliveriesOf(
      await settleAttempts(store.db, [settlementOf(second, failedWith("over"))]),
    );
    expect(await eventsOf(project)).toMatchObject([
      { id: idToUuid(second.granted.runId), job_id: idToUuid(failing) },
    ]);
    const started = await startDelivery(store, nodeId, deliveries[0] as OwedDelivery);
    expect(started.granted.event.id).toBe(retypeId(second.granted.runId, EVENT_PREFIX));
    expect(started.granted.webhookId).toBe(endpoint);
  });

  test("and is reopened by a manual retry has a second event when it ends again", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project);
    const [jobId = ""] = await store.addJobs(project, 1, { maxAttempts: 1 });
    const scope = { projectNo: project, environment: "production" as const, sinceAt: 0 };
    const first = await store.start(nodeId, project, jobId);
    const ended = await settleAttempts(store.db, [settlementOf(first, failedWith("over"))]);
    await retryRun(store.db, scope, first.granted.runId, store.newRunId(), keyCause());
    const second = await store.start(nodeId, project, jobId, { attempt: 2 });
    const endedAgain = await settleAttempts(store.db, [settlementOf(second)]);
    expect([ended, endedAgain].map((it) => deliveriesOf(it).length)).toEqual([1, 1]);
    expect((await eventsOf(project)).map(({ id, type }) => [id, type])).toEqual([
      [idToUuid(first.granted.runId), 1],
      [idToUuid(second.granted.runId), 0],
    ]);
  });

  test("and is settled twice is told once", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project);
    const [jobId = ""] = await store.addJobs(project, 1);
    const settlement = settlementOf(await store.start(nodeId, project, jobId));
    const settled = await Promise.all([
      settleAttempts(store.db, [settlement]),
      settleAttempts(store.db, [settlement]),
      settleAttempts(store.db, [settlement]),
    ]);
    expect(settled.flatMap(deliveriesOf)).toHaveLength(1);
    expect(await eventsOf(project)).toHaveLength(1);
  });

  test("while an endpoint is being made is told to it or not, but never has an event that is owed to nobody", async () => {
    const project = await store.addProject();
    const jobs = await store.addJobs(project, 40);
    const attempts = await Promise.all(jobs.map((jobId) => store.start(nodeId, project, jobId)));
    const settling = attempts.map((attempt) => settleAttempts(store.db, [settlementOf(attempt)]));
    await addEndpoint(store, project);
    await Promise.all(settling);
    const [astray] = await store.query(
      `SELECT count(*) FILTER (WHERE o.id IS NULL)::int AS unowed, count(*) FILTER (WHERE e.id IS NULL)::int AS untold
         FROM (SELECT * FROM events WHERE project_no = $1) e
         FULL JOIN (SELECT * FROM open_deliveries WHERE project_no = $1) o ON o.event_id = e.id`,
      [project],
    );
    expect(astray).toEqual({ unowed: 0, untold: 0 });
    expect(await endJobs(store, nodeId, project)).toHaveLength(1);
  });

  test("while its endpoint is being disabled owes nothing that would ever be sent", async () => {
    const project = await store.addProject();
    const endpoint = await addEndpoint(store, project);
    const [jobId = ""] = await store.addJobs(project, 1);
    const attempt = await store.start(nodeId, project, jobId);
    const disabling = await store.session();
    await disabling.query("BEGIN");
    await disabling.query("SELECT FROM flows WHERE project_no = $1 FOR NO KEY UPDATE", [project]);
    await disabling.query("UPDATE webhooks SET enabled = false, generation = generation + 1 WHERE id = $1", [
      idToUuid(endpoint),
    ]);
    const settling = settleAttempts(store.db, [settlementOf(attempt)]);
    await store.untilBlocked();
    await disabling.query("COMMIT");
    const claims = deliveriesOf(await settling).map((owed) => deliveryClaimOf(owed));
    await claimDeliveries(store.db, nodeId, claims);
    expect((await endsOf(store, project)).filter((end) => end !== "dropped")).toEqual([]);
  });
});
