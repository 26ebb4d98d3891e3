import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { keyCause } from "../../../test/support/cause.ts";
import type { EventView } from "../../contract/event.ts";
import { sampleRun } from "../../contract/event-sample.ts";
import { eventText } from "../../contract/event-text.ts";
import {
  createIdSource,
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  idToUuid,
  JOB_PREFIX,
  retypeId,
  SCHEDULE_PREFIX,
  uuidToId,
} from "../../domain/ids.ts";
import type { Environment } from "../../domain/scope.ts";
import { NEWEST_API_VERSION } from "../../domain/version.ts";
import { EVENT_TYPES } from "../../domain/webhook.ts";
import {
  addEndpoint,
  deliverySettlementOf,
  endJobs,
  failedDelivery,
  type OwedDelivery,
  setStatus,
  startDelivery,
} from "../delivery-test-support.ts";
import { oweSample } from "../resources/deliveries-by-hand.ts";
import { cancelJob, retryRun } from "../resources/jobs-by-hand.ts";
import { createSchedule, type ScheduleToCreate } from "../resources/schedules.ts";
import { failedWith, orRefused, settlementOf, startStore, type TestStore } from "../test-support.ts";
import { type DeliverySettlement, settleDeliveries } from "./delivery-settle.ts";
import { listFirings } from "./firing-ledger.ts";
import { type Firing, fireBoundSchedules, fireSchedules } from "./firings.ts";
import { settleAttempts } from "./settle.ts";
import { acquireShards, createShards, type HeldShard } from "./shards.ts";

/** Events that are not the end of an attempt: each is told once, in the statement that makes it true. */

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

/** The bodies of the deliveries owed to the project's endpoints, in the order of the endpoints, as they would be sent. */
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

describe("events of schedules", () => {
  const SHARD = 3;
  const MINUTE_MS = 60_000;
  const ids = createIdSource(randomBytes);
  const LAST_MINUTE = Math.floor(Date.now() / MINUTE_MS) * MINUTE_MS;
  let held: HeldShard;
  beforeAll(async () => {
    await createShards(store.db, ["us-east"], SHARD + 1);
    const [acquired] = await acquireShards(store.db, nodeId, [{ region: "us-east", shard: SHARD }], 600_000);
    if (acquired === undefined) throw new Error("the shard was not to be had");
    held = acquired;
  });

  /** A schedule whose next instant is `nextRunAt`, as its owner would fire it now. */
  async function addDue(
    projectNo: number,
    nextRunAt: number,
    missed: Firing["missed"] = null,
    environment: Environment = "production",
    wish: Partial<Pick<ScheduleToCreate, "overlap" | "tags">> = {},
  ): Promise<Firing> {
    const id = ids.next(SCHEDULE_PREFIX, Date.now());
    const made = {
      ...{ id, projectNo, environment, name: `of ${id}`, cron: "* * * * *", timezone: "UTC" },
      ...{ targetUrl: "https://target.example/hook", payload: "{}", nextRunAt, shard: SHARD, activeMax: 100 },
      retryPolicy: { maxAttempts: 1, baseSeconds: 1, capSeconds: 1 },
      ...{ overlap: null, spreadSeconds: null, paused: false, tags: null, flow: null, ...wish },
    };
    await createSchedule(store.db, made, keyCause(), null);
    return {
      ...{ projectNo, environment, scheduleId: id, held, cron: "* * * * *", timezone: "UTC", nextRunAt },
      ...{ firedFor: LAST_MINUTE, thenAt: LAST_MINUTE + MINUTE_MS, missed, trace: null },
      jobId: ids.next(JOB_PREFIX, Date.now()),
    };
  }

  const stretch = (minutes: number) => {
    const fromAt = LAST_MINUTE - minutes * MINUTE_MS;
    return { fromAt, toAt: LAST_MINUTE - MINUTE_MS, count: minutes };
  };

  test("schedule.firing_missed is told once for all instants that an outage cost, together with the firing", async () => {
    const project = await store.addProject();
    const endpoint = await addEndpoint(store, project, { events: ["schedule.firing_missed"] });
    await addEndpoint(store, project);
    const missed = stretch(5);
    const firing = await addDue(project, missed.fromAt, missed);
    const fired = await Promise.all(Array.from({ length: 6 }, () => fireSchedules(store.db, [firing])));
    expect(fired.flat().filter(({ kind }) => kind === "fired").length).toBe(1);
    expect(
      await store.query("SELECT webhook_id FROM open_deliveries WHERE project_no = $1", [project]),
    ).toEqual([{ webhook_id: idToUuid(endpoint) }]);
    // The first job of the project has made the lane in which the sweep finds the delivery.
    expect(await store.query("SELECT has_deliveries FROM lanes WHERE project_no = $1", [project])).toEqual([
      { has_deliveries: true },
    ]);
    const [event] = await bodiesOf(project);
    expect(event).toMatchObject({
      type: "schedule.firing_missed",
      data: {
        schedule: { id: firing.scheduleId, name: `of ${firing.scheduleId}` },
        firing: { from: new Date(missed.fromAt).toISOString(), count: 5, status: "missed_outage" },
      },
    });
  });

  test("schedule.firing_missed is told where every due instant is too late, and needs no lane of before", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project, { events: ["schedule.firing_missed"], environment: "development" });
    const at = LAST_MINUTE - 60 * MINUTE_MS;
    const firing = await addDue(project, at, { fromAt: at, toAt: at, count: 1 }, "development");
    expect(await fireSchedules(store.db, [{ ...firing, firedFor: null }])).toEqual([{ kind: "skipped" }]);
    expect(
      await store.query("SELECT shard, has_deliveries FROM lanes WHERE project_no = $1", [project]),
    ).toEqual([{ shard: SHARD, has_deliveries: true }]);
    const [event] = await bodiesOf(project);
    expect(event).toMatchObject({
      environment: "development",
      data: { firing: { at: new Date(at).toISOString(), status: "missed_outage", job_id: null } },
    });
  });

  test("many are told by one statement, of schedules with and without a firing, in lanes that are new and old", async () => {
    const projects = await Promise.all(Array.from({ length: 6 }, () => store.addProject()));
    const firings: Firing[] = [];
    for (const [index, project] of projects.entries()) {
      await addEndpoint(store, project, { events: ["schedule.firing_missed"] });
      if (index % 2 === 0) await store.addJobs(project, 1);
      for (let count = 1; count <= 3; count++) {
        const missed = stretch(count);
        firings.push(await addDue(project, missed.fromAt, count === 2 ? null : missed));
      }
    }
    const fired = await fireSchedules(store.db, firings);
    expect(fired.every(({ kind }) => kind === "fired")).toBe(true);
    for (const project of projects) {
      const events = await bodiesOf(project);
      expect(events.map(({ type }) => type)).toEqual(["schedule.firing_missed", "schedule.firing_missed"]);
    }
  });

  test("schedule.firing_missed is told by no statement that moves nothing, and to nobody who did not ask", async () => {
    const project = await store.addProject();
    await addEndpoint(store, project);
    const missed = stretch(3);
    const firing = await addDue(project, missed.fromAt, missed);
    const stale = { ...firing, held: { ...held, epoch: held.epoch + 1 } };
    expect(await fireSchedules(store.db, [stale])).toEqual([{ kind: "gone" }]);
    await fireSchedules(store.db, [firing]);
    expect(await countEvents(project)).toBe(0);
  });

  test("schedule.firing_skipped is told once of each instant that made no job for want of quota", async () => {
    const project = await store.addProject({ plan: "hobby" });
    await addEndpoint(store, project, { events: ["schedule.firing_skipped", "schedule.firing_missed"] });
    await store.query("UPDATE flows SET month_runs = month_runs_max WHERE project_no = $1", [project]);
    const missed = stretch(2);
    const [plain, late] = [await addDue(project, LAST_MINUTE), await addDue(project, missed.fromAt, missed)];
    const fired = await Promise.all(Array.from({ length: 4 }, () => fireSchedules(store.db, [plain, late])));
    expect(fired.flat().filter(({ kind }) => kind === "skipped").length).toBe(2);
    const events = await bodiesOf(project);
    const told = events.map((event) => [
      event.type,
      "schedule" in event.data && event.data.schedule.id,
      "firing" in event.data && event.data.firing.status,
    ]);
    expect(told.sort()).toEqual(
      [
        ["schedule.firing_missed", late.scheduleId, "missed_outage"],
        ["schedule.firing_skipped", late.scheduleId, "skipped_quota"],
        ["schedule.firing_skipped", plain.scheduleId, "skipped_quota"],
      ].sort(),
    );
    // The instant is that of the ledger's row.
    const rows = await listFirings(store.db, plain.scheduleId, { fromAt: 0, toAt: Date.now() + MINUTE_MS });
    expect(events).toContainEqual(
      expect.objectContaining({
        data: {
          schedule: { id: plain.scheduleId, name: `of ${plain.scheduleId}` },
          firing: {
            at: new Date(rows[0]?.firedFor ?? 0).toISOString(),
            status: "skipped_quota",
            job_id: null,
          },
        },
      }),
    );
  });

  test.each([
    ["fireSchedules", fireSchedules],
    ["fireBoundSchedules", fireBoundSchedules],
  ])(
    "schedule.firing_skipped is told once of an instant that skips for a job that is not over: %s",
    async (_, run) => {
      const project = await store.addProject();
      await addEndpoint(store, project, { events: ["schedule.firing_skipped"] });
      await addEndpoint(store, project);
      const firing = await addDue(project, LAST_MINUTE, null, "production", { overlap: "skip" });
      await store.addJobs(project, 1, { scheduleId: firing.scheduleId });
      const fired = await Promise.all(Array.from({ length: 4 }, () => run(store.db, [firing])));
      expect(fired.flat().filter(({ kind }) => kind === "skipped").length).toBe(1);
      const events = await bodiesOf(project);
      expect(events.map(({ type, data }) => ({ type, data }))).toEqual([
        {
          type: "schedule.firing_skipped",
          data: {
            schedule: { id: firing.scheduleId, name: `of ${firing.scheduleId}` },
            firing: { at: new Date(firing.nextRunAt).toISOString(), status: "skipped_overlap", job_id: null },
          },
        },
      ]);
    },
  );

  test("job.canceled is told once of each job that a firing replaces, beside what else the firing tells", async () => {
    const project = await store.addProject();
    const endpoint = await addEndpoint(store, project, {
      events: ["job.canceled", "schedule.firing_missed"],
    });
    await addEndpoint(store, project);
    await addEndpoint(store, project, { events: ["job.canceled"], environment: "development" });
    const missed = stretch(2);
    const firing = await addDue(project, missed.fromAt, missed, "production", { overlap: "replace" });
    const { scheduleId } = firing;
    const replaced = await store.addJobs(project, 3, { scheduleId, tags: ["nightly"] });
    const [started = ""] = await store.addJobs(project, 1, { scheduleId, tags: ["nightly"] });
    await store.addJobs(project, 1);
    await store.start(nodeId, project, started);
    const fired = await Promise.all(Array.from({ length: 4 }, () => fireBoundSchedules(store.db, [firing])));
    expect(fired.flat().filter(({ kind }) => kind === "fired").length).toBe(1);
    for (const id of replaced) {
      expect(await orRefused(cancelJob(store.db, scopeOf(project), id, keyCause()))).not.toMatchObject({
        kind: "canceled",
      });
    }
    const owed = await store.query<{ webhook_id: string }>(
      "SELECT DISTINCT webhook_id FROM open_deliveries WHERE project_no = $1",
      [project],
    );
    expect(owed).toEqual([{ webhook_id: idToUuid(endpoint) }]);
    const events = await bodiesOf(project);
    const canceled = events.filter(({ type }) => type === "job.canceled");
    expect(canceled).toHaveLength(3);
    expect(events.map(({ type }) => type)).toContain("schedule.firing_missed");
    expect(events).toHaveLength(4);
    const told = canceled.map(({ data }) => "job" in data && data.job.id);
    expect(told.sort()).toEqual(replaced.sort());
    for (const { data } of canceled) {
      expect(data).toMatchObject({
        job: { status: "canceled", attempts: 0, schedule_id: scheduleId, tags: ["nightly"] },
        run: null,
      });
    }
    // The tag's rows show the replaced jobs as canceled, and the one that has started as open.
    const states = await store.query<{ job_id: string; state: number }>(
      "SELECT job_id, state FROM job_tag_states WHERE project_no = $1",
      [project],
    );
    expect(new Map(states.map(({ job_id, state }) => [uuidToId(JOB_PREFIX, job_id), state]))).toEqual(
      new Map([...replaced.map((id): [string, number] => [id, 2]), [started, -1]]),
    );
  });

  test("schedule.firing_skipped is told of no instant that fires, or that had fired before", async () => {
    const project = await store.addProject({ plan: "hobby" });
    await addEndpoint(store, project, { events: ["schedule.firing_skipped"] });
    const firing = await addDue(project, LAST_MINUTE);
    expect((await fireSchedules(store.db, [firing]))[0]?.kind).toBe("fired");
    await store.query("UPDATE schedules SET next_run_at = $2 WHERE id = $1", [
      idToUuid(firing.scheduleId),
      new Date(firing.nextRunAt),
    ]);
    await store.query("UPDATE flows SET month_runs = month_runs_max WHERE project_no = $1", [project]);
    expect(await fireSchedules(store.db, [firing])).toEqual([{ kind: "skipped" }]);
    expect(await countEvents(project)).toBe(0);
  });
});

describe("webhook.disabled", () => {
  const DISABLED = { events: ["webhook.disabled" as const] };

  /** A project with a failing endpoint that also hears of disabled endpoints, and others of which one has to be told. */
  async function prepare() {
    const project = await store.addProject();
    const failing = await addEndpoint(store, project, { events: ["job.failed", "webhook.disabled"] });
    const told = await addEndpoint(store, project, DISABLED);
    await addEndpoint(store, project, { ...DISABLED, environment: "development" });
    await addEndpoint(store, project, { events: ["job.canceled"] });
    await setStatus(store, project, await addEndpoint(store, project), "disabled");
    await store.query("DELETE FROM open_deliveries WHERE project_no = $1", [project]);
    await store.query("DELETE FROM events WHERE project_no = $1", [project]);
    return { project, failing, told };
  }

  const owedTo = (project: number) =>
    store.query("SELECT webhook_id FROM open_deliveries WHERE project_no = $1 AND node_id IS NULL", [
      project,
    ]);

  test("is told once to the others by the settlement that disables an endpoint", async () => {
    const { project, failing, told } = await prepare();
    const [owed] = await endJobs(store, nodeId, project);
    const started = await startDelivery(store, nodeId, owed as OwedDelivery);
    const settlement = deliverySettlementOf(started, failedDelivery({ dueAt: Date.now() }));
    const settled = await Promise.all(
      Array.from({ length: 4 }, () => settleDeliveries(store.db, [settlement], 0)),
    );
    expect(settled.flatMap(({ items }) => items).filter((item) => item?.isDisabling).length).toBe(1);
    expect(await owedTo(project)).toEqual([{ webhook_id: idToUuid(told) }]);
    const [event] = await bodiesOf(project);
    expect(event).toMatchObject({
      type: "webhook.disabled",
      data: { webhook: { id: failing, url: "https://endpoint.example/hook", reason: "failing" } },
    });
  });

  test("is told by no settlement that leaves the endpoint enabled, or finds it disabled", async () => {
    const { project, failing } = await prepare();
    const [first, second] = await endJobs(store, nodeId, project, { count: 2 });
    const starts = [];
    for (const owed of [first, second]) starts.push(await startDelivery(store, nodeId, owed as OwedDelivery));
    const [one, other] = starts.map((started) => deliverySettlementOf(started, failedDelivery("over")));
    const before = await countEvents(project);
    await settleDeliveries(store.db, [one as DeliverySettlement], 3_600_000);
    expect(await countEvents(project)).toBe(before);
    await store.query("UPDATE webhooks SET enabled = false, generation = generation + 1 WHERE id = $1", [
      idToUuid(failing),
    ]);
    await settleDeliveries(store.db, [other as DeliverySettlement], 0);
    expect(await countEvents(project)).toBe(before);
  });

  test("is told once to the others by the request that disables an endpoint, also where nothing was ever sent", async () => {
    const { project, failing, told } = await prepare();
    await store.query("DELETE FROM lanes WHERE project_no = $1", [project]);
    await Promise.all(Array.from({ length: 4 }, () => setStatus(store, project, failing, "disabled")));
    expect(await owedTo(project)).toEqual([{ webhook_id: idToUuid(told) }]);
    expect(
      await store.query("SELECT region, has_deliveries FROM lanes WHERE project_no = $1", [project]),
    ).toEqual([{ region: 0, has_deliveries: true }]);
    const [event] = await bodiesOf(project);
    expect(event).toMatchObject({
      type: "webhook.disabled",
      data: { webhook: { id: failing, url: "https://endpoint.example/hook", reason: "patched" } },
    });
    await setStatus(store, project, failing, "enabled");
    expect(await countEvents(project)).toBe(1);
    await setStatus(store, project, failing, "disabled");
    expect(await countEvents(project)).toBe(2);
  });
});

describe("a sample", () => {
  test.each([...EVENT_TYPES])("of %s is sent from its own row alone", async (type) => {
    const project = await store.addProject();
    const endpoint = await addEndpoint(store, project, { events: [type] });
    const eventId = createIdSource(randomBytes).next(EVENT_PREFIX, Date.now());
    const sample = {
      ...{ eventId, deliveryId: retypeId(eventId, DELIVERY_PREFIX), apiVersion: NEWEST_API_VERSION },
      ...{ region: "us-east" as const, shard: 0, runOf: sampleRun },
    };
    await oweSample(store.db, scopeOf(project), endpoint, sample, keyCause(), null);
    const owed = {
      projectNo: project,
      environment: "production",
      region: "us-east",
      id: sample.deliveryId,
    } as const;
    const { granted } = await startDelivery(store, nodeId, owed);
    expect([granted.isSample, granted.event.type, granted.event.id]).toEqual([true, type, eventId]);
    expect(JSON.parse(eventText(granted.event))).toMatchObject({ id: eventId, type });
  });
});
