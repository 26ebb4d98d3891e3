import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import fc from "fast-check";
import { FLOW_CLASSES, type FlowClass, kindOf } from "../../domain/flow-class.ts";
import {
  ATTEMPT_PREFIX,
  createIdSource,
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  idToUuid,
  REQUEST_PREFIX,
  WEBHOOK_PREFIX,
} from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { createWebhook } from "../resources/webhooks.ts";
import { inTime, settlementOf, startStore, type TestStore, until, WAYS, type Way } from "../test-support.ts";
import type { Claimed } from "./claim.ts";
import { claimDeliveries } from "./delivery-claim.ts";
import { settleDeliveries } from "./delivery-settle.ts";
import { CALLED_MS } from "./permits.ts";
import type { Settled } from "./settle.ts";

setDefaultTimeout(180_000);

let store: TestStore;
let way: Way;
let nodeId: number;
beforeAll(async () => {
  store = await startStore({ connections: 12 });
  nodeId = await store.addNode();
});
afterAll(() => store.stop());

const ids = createIdSource(randomBytes);
const WINDOW_MS = 48 * 3_600_000;
/** A call that is dated so much later stands for one that was made just now, however slow the test is until then. */
const CALL_HOLDS_MS = 4_000;

/** An owed attempt of a class that asks for a permit. Its id and what the claim recorded are enough to settle it. */
interface Asker {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  flowClass: FlowClass;
  id: string;
  /** The id of the run or of the delivery attempt. */
  recordId: string;
}
type Place = Partial<Pick<Asker, "environment" | "region">>;

async function addJobs(projectNo: ProjectNo, count: number, place: Place = {}): Promise<Asker[]> {
  const { environment = "production", region = "us-east" } = place;
  const jobIds = await store.addJobs(projectNo, count, { environment, region });
  const flowClass = `${environment} jobs` as const;
  return jobIds.map((id) => ({
    projectNo,
    environment,
    region,
    flowClass,
    id,
    recordId: store.newRunId(),
  }));
}

const endpoints = new Map<string, Promise<string>>();

/** One endpoint for each environment of a project. */
function endpointOf(projectNo: ProjectNo, environment: Environment): Promise<string> {
  const key = `${projectNo} ${environment}`;
  const made = endpoints.get(key) ?? makeEndpoint(projectNo, environment);
  endpoints.set(key, made);
  return made;
}

async function makeEndpoint(projectNo: ProjectNo, environment: Environment): Promise<string> {
  const id = ids.next(WEBHOOK_PREFIX, Date.now());
  const fields = {
    url: "https://hooks.example/",
    events: ["job.failed" as const],
    status: "enabled" as const,
    description: null,
  };
  const cause = { requestId: ids.next(REQUEST_PREFIX, Date.now()), keyNo: 0 };
  const webhook = { id, projectNo, environment, sealedSecret: randomBytes(40), ...fields };
  await createWebhook(store.db, webhook, cause, null);
  return id;
}

async function addDeliveries(projectNo: ProjectNo, count: number, place: Place = {}): Promise<Asker[]> {
  const { environment = "production", region = "us-east" } = place;
  const webhookId = await endpointOf(projectNo, environment);
  const eventId = ids.next(EVENT_PREFIX, Date.now());
  const deliveryIds = Array.from({ length: count }, () => ids.next(DELIVERY_PREFIX, Date.now()));
  const scope = [projectNo, environmentCode(environment), regionCode(region)];
  await store.query(
    `INSERT INTO events (occurred_at, started_at, project_no, duration_ms, environment, region, type, attempt, run_status, id, api_version)
     VALUES (now(), now(), $1, 5, $2, $3, 1, 1, 2, $4, '2026-01-01')`,
    [...scope, idToUuid(eventId)],
  );
  await store.query(
    `INSERT INTO open_deliveries (due_at, project_no, environment, region, generation, webhook_id, event_id, id)
     SELECT now(), $1, $2, $3, 0, $4, $5, unnest($6::uuid[])`,
    [...scope, idToUuid(webhookId), idToUuid(eventId), deliveryIds.map(idToUuid)],
  );
  await store.query(
    `INSERT INTO lanes (project_no, environment, region, shard, has_deliveries) VALUES ($1, $2, $3, 0, true)
         ON CONFLICT DO NOTHING`,
    scope,
  );
  const flowClass = `${environment} webhooks` as const;
  return deliveryIds.map((id) => {
    const recordId = ids.next(ATTEMPT_PREFIX, Date.now());
    return { projectNo, environment, region, flowClass, id, recordId };
  });
}

const add = (projectNo: ProjectNo, flowClass: FlowClass, count: number, region: Region = "us-east") => {
  const environment: Environment = flowClass.startsWith("development") ? "development" : "production";
  return (kindOf(flowClass) === "jobs" ? addJobs : addDeliveries)(projectNo, count, { environment, region });
};

/** Claims in one statement. All askers are of one kind, as in the service. */
async function claim(askers: readonly Asker[]): Promise<Claimed<unknown>[]> {
  const [first] = askers;
  if (first === undefined) return [];
  return kindOf(first.flowClass) === "jobs"
    ? way.claim(
        store.db,
        nodeId,
        askers.map(({ id, recordId, ...asker }) => ({ ...asker, jobId: id, attempt: 1, runId: recordId })),
      )
    : claimDeliveries(
        store.db,
        nodeId,
        askers.map(({ id, recordId, ...asker }) => ({
          ...asker,
          deliveryId: id,
          attempt: 1,
          attemptId: recordId,
        })),
      );
}

const kinds = async (askers: readonly Asker[]) => (await claim(askers)).map(({ kind }) => kind);

/** Claims in one statement and answers the askers that were granted. */
async function grantedOf(askers: readonly Asker[]): Promise<Asker[]> {
  const answers = await claim(askers);
  return askers.filter((_, index) => answers[index]?.kind === "granted");
}

/** Settles as succeeded, in one statement for each kind. */
async function settle(askers: readonly Asker[]): Promise<Settled["freed"]> {
  const jobs = askers.filter(({ flowClass }) => kindOf(flowClass) === "jobs");
  const deliveries = askers.filter(({ flowClass }) => kindOf(flowClass) === "webhooks");
  const freed: Settled["freed"] = [];
  if (jobs.length > 0) {
    const settlements = jobs.map(({ id, recordId, ...asker }) =>
      settlementOf({
        claim: { ...asker, jobId: id, attempt: 1, runId: recordId },
        granted: { runId: recordId },
      }),
    );
    freed.push(...(await way.settle(store.db, settlements)).freed);
  }
  if (deliveries.length > 0) {
    const settlements = deliveries.map(({ id, recordId, projectNo, environment, region }) => ({
      ...{ projectNo, environment, region, shard: 0, deliveryId: id, attemptId: recordId },
      ...{ status: "succeeded" as const, responseStatus: 200, error: null, isOurFault: false, durationMs: 5 },
      next: { status: "succeeded" as const },
    }));
    freed.push(...(await settleDeliveries(store.db, settlements, WINDOW_MS)).freed);
  }
  return freed;
}

/** Dates the calls that wait for a class so much later. */
const dateCalls = (projectNo: ProjectNo, laterMs: number) =>
  store.query(
    `UPDATE flows SET called_at = ARRAY(SELECT CASE WHEN at = '-infinity' THEN at ELSE now() + $2 * interval '1 ms' END
                                          FROM unnest(called_at) WITH ORDINALITY AS call (at, place) ORDER BY place)
      WHERE project_no = $1`,
    [projectNo, laterMs],
  );

/** Settles askers of a project, and holds the calls that come of it. */
async function settleAndHold(askers: readonly Asker[]): Promise<Settled["freed"]> {
  const freed = await settle(askers);
  for (const { projectNo } of askers.slice(0, 1)) await dateCalls(projectNo, CALL_HOLDS_MS);
  return freed;
}

async function inUse(projectNo: ProjectNo): Promise<Record<FlowClass, number>> {
  const [row] = await store.query<{ in_use: number[] }>(
    `SELECT ARRAY[development_jobs, production_jobs, development_webhooks, production_webhooks] AS in_use
       FROM flows WHERE project_no = $1`,
    [projectNo],
  );
  return Object.fromEntries(FLOW_CLASSES.map((name, index) => [name, row?.in_use[index] ?? 0])) as never;
}

describe.each(WAYS)("the next permit within one statement, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("goes to the class that holds fewer at the moment, whichever asked first", async () => {
    const project = await store.addProject({ concurrency: 6 });
    expect(await kinds(await addJobs(project, 3))).toEqual(["granted", "granted", "granted"]);
    const production = await addJobs(project, 4);
    const development = await addJobs(project, 4, { environment: "development" });
    const granted = await grantedOf([...production, ...development]);
    expect(granted.map(({ flowClass }) => flowClass)).toEqual(Array(3).fill("development jobs"));
    expect(granted.map(({ id }) => id)).toEqual(development.slice(0, 3).map(({ id }) => id));
  });

  test("follows the rule applied one permit at a time, for any number held, asked for and free", async () => {
    const wish = fc.record({
      kind: fc.constantFrom("jobs", "webhooks"),
      held: fc.tuple(fc.nat(4), fc.nat(4)),
      asks: fc.tuple(fc.nat(5), fc.nat(5)),
      free: fc.nat(8),
    });
    await fc.assert(
      fc.asyncProperty(wish, async ({ kind, held, asks, free }) => {
        const names = [`development ${kind}`, `production ${kind}`] as FlowClass[];
        const project = await store.addProject({ concurrency: held[0] + held[1] + free });
        for (const [index, name] of names.entries()) await claim(await add(project, name, held[index] ?? 0));
        const askers = (
          await Promise.all(names.map((name, index) => add(project, name, asks[index] ?? 0)))
        ).flat();
        const [flow] = await store.query<{ last_class: number }>(
          "SELECT last_class FROM flows WHERE project_no = $1",
          [project],
        );
        await claim(askers);
        let last = flow?.last_class ?? 0;
        const [has, wants] = [[...held], [...asks]];
        for (let permit = 0; permit < free; permit++) {
          const lateness = (index: number) =>
            (FLOW_CLASSES.indexOf(names[index] as FlowClass) - last + 3) % 4;
          const [next] = [0, 1]
            .filter((index) => (wants[index] ?? 0) > 0)
            .sort((a, b) => (has[a] ?? 0) - (has[b] ?? 0) || lateness(a) - lateness(b));
          if (next === undefined) break;
          has[next] = (has[next] ?? 0) + 1;
          wants[next] = (wants[next] ?? 0) - 1;
          last = FLOW_CLASSES.indexOf(names[next] as FlowClass);
        }
        const holds = await inUse(project);
        expect(names.map((name) => holds[name])).toEqual(has);
      }),
      { numRuns: 30 },
    );
  });

  test("alternates between environments that hold equally many", async () => {
    const project = await store.addProject({ concurrency: 1 });
    let production = await addJobs(project, 4);
    let development = await addJobs(project, 4, { environment: "development" });
    const order: string[] = [];
    for (let turn = 0; turn < 6; turn++) {
      const [granted] = await grantedOf([...production, ...development]);
      if (granted === undefined) throw new Error("nothing was granted");
      order.push(granted.environment);
      await settle([granted]);
      production = production.filter((asker) => asker !== granted);
      development = development.filter((asker) => asker !== granted);
    }
    expect(order.slice(0, 2).sort()).toEqual(["development", "production"]);
    expect(order.slice(2)).toEqual([...order.slice(0, 2), ...order.slice(0, 2)]);
  });
});

/** A project whose jobs hold all of its permits, while further jobs and deliveries are known to wait. */
async function makeFullProject(concurrency: number) {
  const project = await store.addProject({ concurrency });
  const running = await grantedOf(await addJobs(project, concurrency));
  const jobs = await addJobs(project, 4 * concurrency);
  const deliveries = await addDeliveries(project, 4 * concurrency);
  expect(await kinds(jobs.slice(0, 1))).toEqual(["no_permit"]);
  expect(await kinds(deliveries.slice(0, 1))).toEqual(["no_permit"]);
  return { project, running, jobs, deliveries };
}

describe.each(WAYS)("a class that was called to a free permit, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("hears of it, and finds its permit although another class asks first", async () => {
    await inTime(CALLED_MS, async (begin) => {
      const { project, running, jobs, deliveries } = await makeFullProject(2);
      expect(await settle(running.slice(0, 1))).toEqual([
        expect.objectContaining({ region: "us-east", shard: 0, returned: 1 }),
      ]);
      begin();
      await dateCalls(project, 0);
      const [early] = await claim(jobs.slice(0, 1));
      expect(early?.kind).toBe("early");
      const waitMs = early?.kind === "early" ? early.waitMs : Number.NaN;
      expect(waitMs).toBeGreaterThan(0);
      expect(waitMs).toBeLessThanOrEqual(CALLED_MS);
      await dateCalls(project, CALL_HOLDS_MS);
      expect(await kinds(deliveries.slice(0, 2))).toEqual(["granted", "no_permit"]);
    });
  });

  test("is kept no permit by a call that lies in the future because the clock was set back", async () => {
    const { project, running, jobs } = await makeFullProject(2);
    await settle(running);
    await store.query(
      "UPDATE flows SET called_at = array_fill(now() + interval '1 h', ARRAY[4]) WHERE project_no = $1",
      [project],
    );
    expect(await kinds(jobs.slice(0, 3))).toEqual(["granted", "granted", "no_permit"]);
  });

  test("is kept only what the rule gives it, and the other class is granted the rest at once", async () => {
    await inTime(CALL_HOLDS_MS, async (begin) => {
      const { running, jobs, deliveries } = await makeFullProject(6);
      // Two jobs go on. The deliveries are owed as many of the four free permits as make the shares equal.
      begin();
      await settleAndHold(running.slice(0, 4));
      expect((await kinds(jobs.slice(0, 4))).filter((kind) => kind === "granted").length).toBe(1);
      expect((await grantedOf(deliveries.slice(0, 4))).length).toBe(3);
    });
  });

  test("delays the others by CALLED_MS at most if it does not come, although others settle and are called meanwhile", async () => {
    const { project, running, jobs } = await makeFullProject(8);
    const settlingAt = performance.now();
    await settle(running.slice(0, 4));
    const settledAt = performance.now();
    let left = running.slice(4);
    // Each of these settlements calls the jobs again, which come each time; the deliveries never come.
    let lateCount = 0;
    let asked = jobs;
    await until(async () => {
      if (asked.length < 3) asked = [...asked, ...(await addJobs(project, 32))];
      if (performance.now() > settledAt + CALLED_MS) lateCount++;
      const answers = await claim(asked.slice(0, 3));
      const granted = asked.filter((_, index) => answers[index]?.kind === "granted");
      asked = asked.filter((asker) => !granted.includes(asker));
      const isBeyondShare = left.length + granted.length > 4;
      await settle([...left.slice(0, 1), ...granted.slice(1)]);
      left = [...left.slice(1), ...granted.slice(0, 1)];
      return isBeyondShare;
    });
    expect(performance.now()).toBeGreaterThan(settlingAt + CALLED_MS);
    expect(lateCount).toBeLessThanOrEqual(1);
  });

  test("is kept its permit although the next settlement calls others", async () => {
    await inTime(CALL_HOLDS_MS, async (begin) => {
      const { running, jobs, deliveries } = await makeFullProject(2);
      begin();
      await settleAndHold(running.slice(0, 1));
      // The jobs come at once and are refused, so the next settlement calls the jobs.
      expect(await kinds(jobs.slice(0, 2))).toEqual(["early", "no_permit"]);
      await settleAndHold(running.slice(1));
      // Each class gets one of the two free permits.
      expect((await grantedOf(jobs.slice(0, 2))).length).toBe(1);
      expect(await kinds(deliveries.slice(0, 2))).toEqual(["granted", "no_permit"]);
    });
  });

  test("is called again when the free permit had been kept for another class", async () => {
    await inTime(CALL_HOLDS_MS, async (begin) => {
      const { running, jobs, deliveries } = await makeFullProject(2);
      begin();
      await settleAndHold(running.slice(0, 1));
      expect(await kinds(jobs.slice(0, 1))).toEqual(["early"]);
      const [granted] = await grantedOf(deliveries.slice(0, 1));
      if (granted === undefined) throw new Error("not granted");
      // No claim was refused for want of a permit since then. The job that was put off has to hear of the next permit.
      await settleAndHold([granted]);
      expect(await kinds(deliveries.slice(1, 3))).toEqual(["granted", "no_permit"]);
      const freed = await settleAndHold(running.slice(1));
      expect(freed.length).toBe(1);
      expect(await kinds(deliveries.slice(2, 4))).not.toContain("granted");
      expect(await kinds(jobs.slice(0, 1))).toEqual(["granted"]);
    });
  });
});

describe.each(WAYS)("jobs and deliveries that are claimed by separate statements, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  test("end with equal shares and keep them, whichever class asks first", async () => {
    await inTime(CALL_HOLDS_MS, async (begin) => {
      const { project, running, jobs, deliveries } = await makeFullProject(10);
      const onWire = [...running];
      const waiting = { jobs: [...jobs], deliveries: [...deliveries] };
      async function ask(kind: "jobs" | "deliveries") {
        const asked = waiting[kind].slice(0, 2);
        const granted = await grantedOf(asked);
        waiting[kind] = waiting[kind].filter((asker) => !granted.includes(asker));
        onWire.push(...granted);
      }
      for (let round = 0; round < 40; round++) {
        begin();
        const [ended] = onWire.splice(Math.floor(Math.random() * onWire.length), 1);
        if (ended !== undefined) await settleAndHold([ended]);
        await ask("jobs");
        await ask("deliveries");
        if (round < 12) continue;
        const holds = await inUse(project);
        expect(Math.abs(holds["production jobs"] - holds["production webhooks"])).toBeLessThanOrEqual(2);
      }
    });
  });

  test("take turns where there is one permit", async () => {
    await inTime(CALL_HOLDS_MS, async (begin) => {
      const { running, jobs, deliveries } = await makeFullProject(1);
      const waiting = [jobs, deliveries];
      let [ended] = running;
      const order: string[] = [];
      for (let turn = 0; turn < 8; turn++) {
        begin();
        if (ended === undefined) throw new Error("nothing was granted");
        await settleAndHold([ended]);
        ended = undefined;
        for (const askers of waiting) {
          const [granted] = await grantedOf(askers.slice(0, 2));
          if (granted === undefined) continue;
          ended = granted;
          askers.splice(askers.indexOf(granted), 1);
          order.push(kindOf(granted.flowClass));
        }
      }
      expect(order).toEqual(Array.from({ length: 8 }, (_, turn) => (turn % 2 === 0 ? "webhooks" : "jobs")));
    });
  });
});

describe.each(WAYS)("sessions that claim and settle all four classes in two regions, %s", (_name, theirs) => {
  beforeAll(() => {
    way = theirs;
  });

  const LIMIT = 7;
  const PER_LANE = 60;
  const LOOK_EVERY_MS = 5;
  const REGIONS: Region[] = ["us-east", "eu-central"];

  test("keep the permits in use equal to what is on the wire and within the limit, without a deadlock", async () => {
    const projects = await Promise.all([1, 2, 3].map(() => store.addProject({ concurrency: LIMIT })));
    const waiting: Asker[] = [];
    for (const project of projects) {
      for (const flowClass of FLOW_CLASSES) {
        for (const region of REGIONS) waiting.push(...(await add(project, flowClass, PER_LANE, region)));
      }
    }
    const total = waiting.length;
    let endedCount = 0;
    let lookCount = 0;
    let isOver = false;
    async function session() {
      const onWire: Asker[] = [];
      while (endedCount < total && !isOver) {
        const kind = Math.random() < 0.5 ? "jobs" : "webhooks";
        const picked: Asker[] = [];
        for (let count = 0; count < 12 && waiting.length > 0; count++) {
          const [asker] = waiting.splice(Math.floor(Math.random() * waiting.length), 1);
          if (asker !== undefined) picked.push(asker);
        }
        const asked = picked.filter(({ flowClass }) => kindOf(flowClass) === kind);
        // This session goes on once the attempts of the other sessions have ended.
        if (asked.length === 0 && onWire.length === 0) await Bun.sleep(1);
        const granted = new Set(await grantedOf(asked));
        onWire.push(...granted);
        waiting.push(...picked.filter((asker) => !granted.has(asker)));
        const ended = onWire.splice(0, Math.ceil(Math.random() * onWire.length));
        await settle(ended);
        endedCount += ended.length;
      }
    }
    async function look() {
      for (; endedCount < total && !isOver; await Bun.sleep(LOOK_EVERY_MS)) {
        const rows = await store.query<{ in_use: number[]; on_wire: number[]; concurrency: number }>(
          `SELECT f.concurrency, ARRAY[development_jobs, production_jobs, development_webhooks, production_webhooks] AS in_use,
                  ARRAY(SELECT (SELECT count(*)::int FROM (
                                  SELECT environment AS class, project_no, node_id FROM open_jobs
                                   UNION ALL SELECT environment + 2, project_no, node_id FROM open_deliveries) o
                                 WHERE o.project_no = f.project_no AND o.class = c AND node_id IS NOT NULL)
                          FROM generate_series(0, 3) c ORDER BY c) AS on_wire
             FROM flows f WHERE project_no = ANY ($1::int[])`,
          [projects],
        );
        for (const { in_use, on_wire, concurrency } of rows) {
          expect(in_use).toEqual(on_wire);
          expect(in_use.reduce((sum, count) => sum + count)).toBeLessThanOrEqual(concurrency);
        }
        lookCount++;
      }
    }
    const working = [...Array.from({ length: 5 }, session), look()];
    try {
      await Promise.all(working);
    } finally {
      isOver = true;
      await Promise.allSettled(working);
    }
    expect(endedCount).toBe(total);
    expect(lookCount).toBeGreaterThan(10);
    for (const project of projects) expect(Object.values(await inUse(project))).toEqual([0, 0, 0, 0]);
  });
});
