import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createIdSource } from "../../shared/domain/ids.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { settlementOf, startStore, type TestStore } from "../../shared/store/test-support.ts";
import type { OwedItem } from "./attempt-kind.ts";
import { createJobAttempts } from "./job-attempts.ts";
import { openOutbound } from "./outbound.ts";
import { createStoreRetries } from "./retry-until-answered.ts";

setDefaultTimeout(120_000);

const log = createLog({ name: "test", level: "silent" });
let store: TestStore;
beforeAll(async () => {
  store = await startStore();
});
afterAll(() => store.stop());

/** Attempts of jobs as a node has them. `asked` names the statements since it was called last. */
async function startJobs() {
  const names: string[] = [];
  const db: Database = {
    ...store.db,
    run(name, text, values) {
      names.push(name);
      return store.db.run(name, text, values);
    },
  };
  const clock = { now: Date.now, stop: () => undefined };
  const cell = { db, clock, log, metrics: createMetrics(), traces: NO_TRACES, bus: createInProcessBus(log) };
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const jobs = createJobAttempts(cell, {
    nodeId: await store.addNode(),
    ids: createIdSource(randomBytes),
    retries: createStoreRetries(log, () => 0),
    sender: { outbound, clock, shutdown: new AbortController().signal, timeoutMs: 1_000 },
    secretsOf: async () => [],
  });
  return { jobs, asked: () => names.splice(0) };
}

test("a project is asked for flow keys once a job with a key was claimed, and what has one is settled so", async () => {
  const { jobs, asked } = await startJobs();
  const projectNo = await store.addProject();
  const claim = async (wish: Parameters<TestStore["addJobs"]>[2]) => {
    const [id = ""] = await store.addJobs(projectNo, 1, wish);
    const scope = { projectNo, environment: "production", region: "us-east", shard: 0 } as const;
    const item: OwedItem = { ...scope, id, attempt: 1, dueAt: Date.now(), flowClass: "production jobs" };
    const claimed = await jobs.claim(item);
    if (claimed.kind !== "granted") throw new Error(`it is ${claimed.kind}`);
    const { attempt: granted } = claimed;
    const settlement = settlementOf({ claim: store.claimOf(projectNo, id), granted });
    return { projectNo, attempt: 1, host: null, isKeyed: granted.isKeyed === true, settlement, span: null };
  };

  await claim({});
  expect(asked()).toEqual(["claim_ordinary"]);
  await claim({ flow: { key: "first" } });
  expect(asked()).not.toContain("claim_keyed");
  const sent = await claim({ flow: { key: "second" } });
  expect(asked().at(-1)).toBe("claim_keyed");
  await jobs.settle(sent);
  expect(asked()).toEqual(["settle_keyed"]);
});
