import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { keyCause } from "../../../test/support/cause.ts";
import { type EventView, eventText } from "../../contract/event.ts";
import { DELIVERY_PREFIX, idToUuid, uuidToId } from "../../domain/ids.ts";
import type { Environment } from "../../domain/scope.ts";
import { addEndpoint, setStatus, startDelivery } from "../delivery-test-support.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { failedWith, orRefused, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { settleAttempts } from "./settle.ts";

/** Events that are not the end of an attempt: each is told in the statement that makes it true, and once. */

setDefaultTimeout(60_000);

let store: TestStore;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const scopeOf = (projectNo: number, environment: Environment = "production") => ({
  projectNo,
  environment,
  sinceAt: 0,
});

/** The bodies of what is owed to the project's endpoints, in the order of the endpoints, as they would be sent. */
async function bodiesOf(projectNo: number): Promise<EventView[]> {
  const rows = await store.query<{ id: string; environment: number }>(
    "SELECT id, environment FROM open_deliveries WHERE project_no = $1 AND node_id IS NULL ORDER BY webhook_id, id",
    [projectNo],
  );
  const bodies: EventView[] = [];
  for (const { id, environment } of rows) {
    const started = await startDelivery(store, nodeId, {
      projectNo,
      environment: environment === 0 ? "development" : "production",
      region: "us-east",
      id: uuidToId(DELIVERY_PREFIX, id),
    });
    bodies.push(JSON.parse(eventText(started.granted.event)));
  }
  return bodies;
}

const countEvents = async (projectNo: number) =>
  (await store.query("SELECT FROM events WHERE project_no = $1", [projectNo])).length;

describe("job.canceled", () => {
  const cancel = (project: number, id: string) => cancelJob(store.db, scopeOf(project), id, keyCause());

  test("tells of a job that was never started, to those alone who ask for it", async () => {
    const project = await store.addProject();
    const endpoint = await addEndpoint(store, project, { events: ["job.canceled"] });
    await addEndpoint(store, project);
    await addEndpoint(store, project, { events: ["job.canceled"], environment: "development" });
    await setStatus(
      store,
      project,
      await addEndpoint(store, project, { events: ["job.canceled"] }),
      "disabled",
    );
    const [id = ""] = await store.addJobs(project, 1);
    const canceled = await cancel(project, id);
    expect(canceled).toMatchObject({ kind: "canceled", owed: [{ attempt: 1, region: "us-east" }] });
    const rows = await store.query("SELECT webhook_id FROM open_deliveries WHERE project_no = $1", [project]);
    expect(rows).toEqual([{ webhook_id: idToUuid(endpoint) }]);
    const [event] = await bodiesOf(project);
    expect(event).toMatchObject({
      type: "job.canceled",
      environment: "production",
      data: { job: { id, status: "canceled", attempts: 0, schedule_id: null }, run: null },
    });
  });

  test("shows the run before it, of a job that waits for its next attempt", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project, { events: ["job.canceled"] });
    const [id = ""] = await store.addJobs(project, 1);
    const first = await store.start(nodeId, project, id);
    await settleAttempts(store.db, [settlementOf(first, failedWith({ dueAt: Date.now() + 60_000 }))]);
    await cancel(project, id);
    const [event] = await bodiesOf(project);
    expect(event?.data).toMatchObject({
      job: { id, status: "canceled", attempts: 1 },
      run: { id: first.granted.runId, job_id: id, attempt: 1, status: "failed", next_retry_at: null },
    });
  });

  test("shows the run in progress, whose end is told to nobody", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project, { events: ["job.canceled", "job.failed", "job.succeeded"] });
    const [id = ""] = await store.addJobs(project, 1);
    const attempt = await store.start(nodeId, project, id);
    await cancel(project, id);
    await settleAttempts(store.db, [settlementOf(attempt)]);
    expect(await countEvents(project)).toBe(1);
    const [event] = await bodiesOf(project);
    expect(event?.data).toMatchObject({
      job: { status: "canceled", attempts: 1 },
      run: { id: attempt.granted.runId, status: "running", duration_ms: null, response_status: null },
    });
  });

  test("is told once more of no job: of one that was reopened by hand, once in all, with the run that was never sent", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project, { events: ["job.canceled"] });
    const [id = ""] = await store.addJobs(project, 1, { maxAttempts: 1 });
    const first = await store.start(nodeId, project, id);
    await settleAttempts(store.db, [settlementOf(first, failedWith("over"))]);
    const runId = store.newRunId();
    await retryRun(store.db, scopeOf(project), first.granted.runId, runId, keyCause());
    const outcomes = await Promise.all(Array.from({ length: 8 }, () => orRefused(cancel(project, id))));
    expect(outcomes.filter((it) => typeof it === "object" && it.kind === "canceled").length).toBe(1);
    expect(await countEvents(project)).toBe(1);
    const [event] = await bodiesOf(project);
    expect(event?.data).toMatchObject({
      job: { attempts: 2 },
      run: { id: runId, attempt: 2, status: "failed", error: "canceled before it was sent", duration_ms: 0 },
    });
  });

  test("leaves nothing where nobody asks for it", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project);
    const [id = ""] = await store.addJobs(project, 1);
    expect(await cancel(project, id)).toMatchObject({ owed: [] });
    expect(await countEvents(project)).toBe(0);
  });
});
