import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createIdSource, idToUuid } from "../../shared/domain/ids.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import type { Database } from "../../shared/store/database/database.ts";
import type { JobToCreate } from "../../shared/store/resources/job-creation.ts";
import { failedWith, settlementOf, startStore, type TestStore } from "../../shared/store/test-support.ts";
import type { OwedItem } from "./attempt-kind.ts";
import { createJobAttempts } from "./job-attempts.ts";
import { openOutbound } from "./outbound.ts";
import { createStoreRetries } from "./retry-until-answered.ts";

const log = createLog({ name: "test", level: "silent" });
let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

/** Attempts of jobs as a node has them. `asked` names the statements that ran since its last call. */
async function startJobs({ now } = { now: Date.now }) {
  const names: string[] = [];
  const db: Database = {
    ...store.db,
    run(name, text, values) {
      names.push(name);
      return store.db.run(name, text, values);
    },
  };
  const clock = { now, stop: () => undefined };
  const cell = { db, clock, log, metrics: createMetrics(), traces: NO_TRACES, bus: createInProcessBus(log) };
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const jobs = createJobAttempts(cell, {
    nodeId: await store.addNode(),
    ids: createIdSource(randomBytes),
    retries: createStoreRetries(log, () => 0),
    sender: { outbound, clock, shutdown: new AbortController().signal, timeoutMs: 1_000 },
    async secretsOf() {
      names.push("signing secrets");
      return [];
    },
  });
  return { jobs, asked: () => names.splice(0) };
}

/** Stores a job. Returns its attempt as a node is told of it. */
async function oweJob(projectNo: number, wish: Partial<JobToCreate>, isGated?: true): Promise<OwedItem> {
  const [id = ""] = await store.addJobs(projectNo, 1, wish);
  const scope = { projectNo, environment: "production", region: "us-east", shard: 0 } as const;
  return { ...scope, id, attempt: 1, dueAt: Date.now(), flowClass: "production jobs", isGated };
}

test("the statement for flow keys claims and settles what is told to have one, and other jobs of the project never meet it", async () => {
  const { jobs, asked } = await startJobs();
  const projectNo = await store.addProject();
  const item = await oweJob(projectNo, { flow: { key: "first" } }, true);
  const claimed = await jobs.claim(item);
  if (claimed.kind !== "granted") throw new Error(`it is ${claimed.kind}`);
  expect(asked()).toEqual(["signing secrets", "claim_keyed"]);
  const { attempt: granted } = claimed;
  const settlement = settlementOf({ claim: store.claimOf(projectNo, item.id), granted });
  const sent = { projectNo, attempt: 1, host: null, endedAt: 0, span: null };
  await jobs.settle({ ...sent, settlement: { ...settlement, isKeyed: granted.isKeyed } }, false);
  expect(asked()).toEqual(["settle_keyed"]);
  expect((await jobs.claim(await oweJob(projectNo, {}))).kind).toBe("granted");
  expect(asked()).toEqual(["signing secrets", "claim_ordinary_one"]);
});

test("an attempt counts from when its claim was asked for, unless an earlier claim had begun it", async () => {
  const { jobs } = await startJobs();
  const item = await oweJob(await store.addProject(), {});
  const before = performance.now();
  const [first, again] = [await jobs.claim(item), await jobs.claim(item)];
  if (first.kind !== "granted" || again.kind !== "granted") throw new Error("it is not granted");
  expect(first.attempt.askedAt).toBeWithin(before, performance.now());
  expect(again.attempt).toEqual({ ...first.attempt, askedAt: null });
});

test("the wait for the next attempt counts from the end of the last one, by the node's own time", async () => {
  // The node has not measured yet that the database's clock was set back by 30 days.
  const { jobs } = await startJobs({ now: () => Date.now() + 30 * 86_400_000 });
  const projectNo = await store.addProject();
  for (const [waitMs, endedAgoMs, leftMs] of [
    [600_000, 400_000, 200_000],
    [600_000, 900_000, 0],
  ] as const) {
    const item = await oweJob(projectNo, {});
    const { claim, granted } = await store.start(await store.addNode(), projectNo, item.id);
    const sent = { projectNo, attempt: 1, host: null, span: null, endedAt: performance.now() - endedAgoMs };
    const failed = { ...failedWith("over"), next: { status: "queued", waitMs } } as const;
    await jobs.settle({ ...sent, settlement: settlementOf({ claim, granted }, failed) }, false);
    const [row] = await store.query<{ wait: number }>(
      "SELECT (extract(epoch FROM due_at - now()) * 1000)::float8 AS wait FROM open_jobs WHERE job_id = $1",
      [idToUuid(item.id)],
    );
    expect(row?.wait).toBeWithin(leftMs - 60_000, leftMs + 1);
  }
});

test.each<[string, Partial<JobToCreate>, true | undefined]>([
  ["a flow key for a job that has none", {}, true],
  ["nothing of the flow key of a job", { flow: { key: "untold" } }, undefined],
])("a message that tells %s costs more statements, and no claim", async (_, wish, isGated) => {
  const { jobs, asked } = await startJobs();
  const claimed = await jobs.claim(await oweJob(await store.addProject(), wish, isGated));
  expect(claimed.kind).toBe("granted");
  expect(asked().length).toBeGreaterThan(2);
});
