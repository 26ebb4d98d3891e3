import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createIdSource, idToUuid } from "../../shared/domain/ids.ts";
import type { ProjectNo } from "../../shared/domain/scope.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import { type Database, StoreUnavailable } from "../../shared/store/database/database.ts";
import { STUCK_AFTER_MS } from "../../shared/store/database/turns.ts";
import { inTime, settlementOf, startStore, type TestStore } from "../../shared/store/test-support.ts";
import type { OwedItem } from "./attempt-kind.ts";
import { createJobAttempts } from "./job-attempts.ts";
import { openOutbound } from "./outbound.ts";
import { createStoreRetries } from "./retry-until-answered.ts";

/** Attempts that a settlement starts in the place of the settled one. */

const log = createLog({ name: "test", level: "silent" });
const FLOW = { key: "a", concurrency: 1 };
let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

type Run = Database["run"];

/** Attempts of jobs as a node has them. `around` runs each statement. `asked` names those that were asked since its last call. */
async function startJobs(around: (name: string, run: () => ReturnType<Run>) => ReturnType<Run>) {
  const names: string[] = [];
  const run = ((name, text, values) => {
    names.push(name);
    return around(name, () => store.db.run(name, text, values));
  }) as Run;
  const clock = { now: Date.now, stop: () => undefined };
  const nodeId = await store.addNode();
  const jobs = createJobAttempts(
    {
      ...{ db: { ...store.db, run }, clock, log, metrics: createMetrics(), traces: NO_TRACES },
      bus: createInProcessBus(log),
    },
    {
      ...{ nodeId, ids: createIdSource(randomBytes), retries: createStoreRetries(log, () => 0) },
      sender: {
        outbound: openOutbound({ allowInsecure: true, own: [] }),
        ...{ clock, shutdown: new AbortController().signal, timeoutMs: 1_000 },
      },
      secretsOf: async () => [],
    },
  );
  /** A project with two jobs of a key with one place. The first has been claimed. */
  async function claimFirst() {
    const projectNo = await store.addProject();
    const [first = "", second = ""] = await store.addJobs(projectNo, 2, { flow: FLOW });
    const claimed = await jobs.claim(itemOf(projectNo, first));
    if (claimed.kind !== "granted") throw new Error(`it is ${claimed.kind}`);
    names.splice(0);
    return { projectNo, second, sent: sentOf(projectNo, first, claimed.attempt) };
  }
  return { jobs, nodeId, claimFirst, asked: () => names.splice(0) };
}

const itemOf = (projectNo: ProjectNo, id: string): OwedItem => ({
  ...{ projectNo, environment: "production", region: "us-east", shard: 0, flowClass: "production jobs" },
  ...{ id, attempt: 1, dueAt: Date.now(), isGated: true },
});

function sentOf(projectNo: ProjectNo, id: string, granted: Parameters<typeof settlementOf>[0]["granted"]) {
  const settlement = settlementOf(
    { claim: store.claimOf(projectNo, id), granted },
    { isPlain: false, isKeyed: true },
  );
  return { projectNo, attempt: 1, host: null, endedAt: 0, span: null, settlement };
}

const stateOf = async (id: string) => {
  const [row] = await store.query<{ run_id: string | null; node_id: number | null; is_in_lane: boolean }>(
    "SELECT run_id, node_id, due_at IS NOT NULL AS is_in_lane FROM open_jobs WHERE job_id = $1",
    [idToUuid(id)],
  );
  return row;
};

test("one statement settles an attempt and starts the next of its key, and so on to the end of the queue", async () => {
  const { jobs, nodeId, claimFirst, asked } = await startJobs((_, run) => run());
  const { projectNo, second, sent } = await claimFirst();
  const next = await jobs.settle(sent, true);
  expect(asked()).toEqual(["settle_keyed"]);
  expect(next?.item).toMatchObject({ ...itemOf(projectNo, second), dueAt: expect.any(Number) });
  const { jobId, runId, askedAt } = next?.attempt ?? {};
  expect([jobId, await stateOf(second)]).toEqual([
    second,
    { run_id: idToUuid(runId ?? ""), node_id: nodeId, is_in_lane: false },
  ]);
  expect(askedAt).toBeWithin(performance.now() - 10_000, performance.now());
  expect(next?.isLeft()).toBe(true);
  if (next === null) return;
  expect(await jobs.settle(sentOf(projectNo, second, next.attempt), true)).toBeNull();
  expect(await store.onWire(projectNo)).toBe(0);
});

test("a node that may take no other attempt settles, and the next is called to its lane", async () => {
  const { jobs, claimFirst } = await startJobs((_, run) => run());
  const { second, sent } = await claimFirst();
  expect(await jobs.settle(sent, false)).toBeNull();
  expect(await stateOf(second)).toMatchObject({ node_id: null, is_in_lane: true });
});

test("if the answer is lost, the attempt that was started is found by its run id", async () => {
  let isLost = false;
  const { jobs, nodeId, claimFirst, asked } = await startJobs(async (name, run) => {
    const rows = await run();
    if (name !== "settle_keyed" || isLost) return rows;
    isLost = true;
    throw new StoreUnavailable("the answer was lost");
  });
  const { second, sent } = await claimFirst();
  const next = await jobs.settle(sent, true);
  expect(asked()).toEqual(["settle_keyed", "settle_whole", "find_started"]);
  expect(await stateOf(second)).toMatchObject({ node_id: nodeId });
  expect(next?.attempt).toMatchObject({ jobId: second, askedAt: null });
  expect(next?.isLeft()).toBe(true);
});

test("if the statement was not done, the attempt is settled without a next one", async () => {
  const { jobs, claimFirst } = await startJobs((name, run) =>
    name === "settle_keyed" ? Promise.reject(new StoreUnavailable("not done")) : run(),
  );
  const { second, sent } = await claimFirst();
  expect(await jobs.settle(sent, true)).toBeNull();
  expect(await stateOf(second)).toMatchObject({ node_id: null, is_in_lane: true });
});

test("a claim that gets the started attempt before the answer of the settlement arrives has it alone", async () => {
  const [committed, arrived] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  const { jobs, claimFirst } = await startJobs(async (name, run) => {
    const rows = await run();
    if (name !== "settle_keyed") return rows;
    committed.resolve();
    await arrived.promise;
    return rows;
  });
  const { projectNo, second, sent } = await claimFirst();
  const settling = jobs.settle(sent, true);
  await committed.promise;
  expect((await jobs.claim(itemOf(projectNo, second))).kind).toBe("granted");
  arrived.resolve();
  const next = await settling;
  expect(next?.attempt.jobId).toBe(second);
  expect(next?.isLeft()).toBe(false);
});

test("a claim of a key waits for one settlement at most, unless very many are under way", async () => {
  let held: Promise<void> | null = null;
  const { jobs, asked } = await startJobs(async (name, run) => {
    if (name === "settle_keyed") await held;
    return run();
  });
  await inTime(STUCK_AFTER_MS, async (begin) => {
    const projectNo = await store.addProject();
    const keyed = (key: string) => store.addJobs(projectNo, 1, { flow: { key, concurrency: 1 } });
    const [one = "", two = "", three = ""] = (await Promise.all(["a", "b", "c"].map(keyed))).flat();
    const sent = await Promise.all(
      [one, two].map(async (id) => {
        const claimed = await jobs.claim(itemOf(projectNo, id));
        if (claimed.kind !== "granted") throw new Error(`it is ${claimed.kind}`);
        return sentOf(projectNo, id, claimed.attempt);
      }),
    );
    asked();
    const { promise, resolve } = Promise.withResolvers<void>();
    held = promise;
    begin();
    const answers: Promise<unknown>[] = [];
    for (const ask of [
      () => jobs.settle(sent[0] as (typeof sent)[number], false),
      () => jobs.claim(itemOf(projectNo, three)),
      () => jobs.settle(sent[1] as (typeof sent)[number], false),
    ]) {
      answers.push(ask());
      await Bun.sleep(1);
    }
    held = null;
    resolve();
    await Promise.all(answers);
    expect(asked()).toEqual(["settle_keyed", "claim_keyed", "settle_keyed"]);
  });
});
