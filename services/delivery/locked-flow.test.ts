import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import {
  ATTEMPT_PREFIX,
  createIdSource,
  DELIVERY_PREFIX,
  JOB_PREFIX,
  RUN_PREFIX,
} from "../../shared/domain/ids.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { CONNECTIONS } from "../../shared/process/service.ts";
import { askTime, openDatabase, type PooledDatabase } from "../../shared/store/database/database.ts";
import { startStore, type TestStore, until } from "../../shared/store/test-support.ts";
import type { OwedItem } from "./attempt-kind.ts";
import { createDeliveryAttempts } from "./delivery-attempts.ts";
import { createJobAttempts } from "./job-attempts.ts";
import { openOutbound } from "./outbound.ts";
import { createStoreRetries } from "./retry-until-answered.ts";

const log = createLog({ name: "test", level: "silent" });
const ids = createIdSource(randomBytes);
const COME_EVERY_MS = 10;
/** Longer than the time for which a project goes the long way before the short way is asked again. */
const LOCKED_MS = 2_500;
/** A statement that waits for the lock ends after 5 s. The short way fails then and sends no more work the long way. */
const LOCKED_MS_MAX = 4_500;
const ROUNDS_MAX = 8;
/** Two statements of each of eight kinds. */
const STATEMENTS = 16;

let store: TestStore;
let db: PooledDatabase;
beforeAll(async () => {
  store = await startStore();
  db = openDatabase(store.url, { connections: CONNECTIONS, log });
  // The connections are made beforehand, since a slow machine may not make one in the time that a statement waits for it.
  await until(async () => {
    await Promise.allSettled(Array.from({ length: CONNECTIONS }, () => askTime(db)));
    return db.connections().idle === CONNECTIONS;
  });
});
afterAll(async () => {
  await db.close();
  await store.stop();
});

test("while a project's flow is locked, its claims and settlements leave connections for all other statements", async () => {
  const projectNo = await store.addProject();
  // With an endpoint the project's settlements go both ways.
  await store.query("UPDATE flows SET subscriptions = 1 WHERE project_no = $1", [projectNo]);
  const come = await startWork(projectNo);
  const session = await store.session();
  // A slow machine may not have come so far in one round.
  for (let round = 0, isReached = false; !isReached; round++) {
    expect(round).toBeLessThan(ROUNDS_MAX);
    // The short way leaves this work, so that the project goes the long way for a while.
    await come();
    await session.query("BEGIN");
    await session.query("SELECT FROM flows WHERE project_no = $1 FOR NO KEY UPDATE", [projectNo]);
    const lockedAt = performance.now();
    let isOver = false;
    const coming = (async () => {
      for (; !isOver; await Bun.sleep(COME_EVERY_MS)) void come();
    })();
    try {
      while (performance.now() < lockedAt + (isReached ? LOCKED_MS : LOCKED_MS_MAX)) {
        await askTime(db);
        isReached ||= db.connections().busy >= STATEMENTS;
      }
      await askTime(db);
      expect(db.connections().waiting).toBe(0);
    } finally {
      isOver = true;
      await session.query("COMMIT");
      await coming;
    }
    await until(() => db.connections().busy === 0);
  }
});

/** Attempts of jobs and deliveries as a node has them. The returned function claims and settles one more of each. */
async function startWork(projectNo: number): Promise<() => Promise<unknown>> {
  const nodeId = await store.addNode();
  const clock = { now: Date.now, stop: () => undefined };
  const cell: Cell = {
    ...{ db, clock, log, metrics: createMetrics(), traces: NO_TRACES },
    bus: createInProcessBus(log),
  };
  const outbound = openOutbound({ allowInsecure: true, own: [] });
  const sender = { outbound, clock, shutdown: new AbortController().signal, timeoutMs: 1_000 };
  const common = { nodeId, ids, retries: createStoreRetries(log, () => 0) };
  const jobs = createJobAttempts(cell, { ...common, sender, secretsOf: async () => [] });
  const seal = createSeal(randomBytes(32));
  const deliveries = createDeliveryAttempts(cell, { ...common, seal, sender: { ...sender, scale: 1 } });
  const scope = { projectNo, environment: "production", region: "us-east", shard: 0 } as const;
  const outcome = { status: "succeeded", responseStatus: 200, error: null, durationMs: 1 } as const;
  const owed = (id: string): OwedItem => ({
    ...{ ...scope, id, attempt: 1, dueAt: Date.now(), flowClass: "production jobs" },
  });
  return () => {
    const [jobId, deliveryId] = [ids.next(JOB_PREFIX, Date.now()), ids.next(DELIVERY_PREFIX, Date.now())];
    const [job, delivery] = [owed(jobId), owed(deliveryId)];
    const settled = { projectNo, attempt: 1, host: null, endedAt: 0, span: null };
    const runId = ids.next(RUN_PREFIX, Date.now());
    const attemptId = ids.next(ATTEMPT_PREFIX, Date.now());
    const asked = [
      jobs.claim(job),
      jobs.settle(
        {
          ...settled,
          settlement: { ...scope, ...outcome, jobId, runId, isPlain: true, next: { status: "succeeded" } },
        },
        false,
      ),
      jobs.settle(
        {
          ...settled,
          settlement: {
            ...{ ...scope, ...outcome, jobId, runId, isPlain: false, isKeyed: true },
            next: { status: "succeeded" },
          },
        },
        false,
      ),
      deliveries.claim(delivery),
      deliveries.settle(
        {
          ...{ ...settled, webhookId: "", eventId: "" },
          settlement: {
            ...{ ...scope, ...outcome, deliveryId, attemptId, isOurFault: false },
            next: { status: "succeeded" },
          },
        },
        false,
      ),
    ];
    // A statement that waits for the lock for long fails, and is of no interest here.
    return Promise.allSettled(asked);
  };
}
