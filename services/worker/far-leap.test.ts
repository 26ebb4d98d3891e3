import { expect, test } from "bun:test";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { createLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import { addNode } from "../../shared/store/cell/nodes.ts";
import type { Database } from "../../shared/store/database/database.ts";
import { createSchedule } from "../../shared/store/resources/schedules.ts";
import { keyCause, MINUTE_MS, scheduleOf } from "../../shared/store/schedule-test-support.ts";
import { startStore, until } from "../../shared/store/test-support.ts";
import { startManualClock } from "../../test/simulation/manual-clock.ts";
import { startWorker } from "./start.ts";

test("a worker fires schedules after the clock leapt by minutes, and none at first after it leapt by 30 days", async () => {
  const store = await startStore();
  const clock = await startManualClock(store.url);
  const project = await store.addProject();
  let firings = 0;
  const db: Database = {
    ...store.db,
    run(name, text, values) {
      if (name === "fire_schedules") firings++;
      return store.db.run(name, text, values);
    },
  };
  const log = createLog({ level: "silent", name: "test" });
  const bus = createInProcessBus(log);
  const node = { kind: "worker", name: "worker-0", regions: ["us-east"], process: "test" } as const;
  const worker = await startWorker(
    { db, bus, clock, log, metrics: createMetrics(), traces: NO_TRACES },
    {
      nodeId: (await addNode(db, node)) as number,
      regions: ["us-east"],
      shardsPerRegion: 1,
      leaseTtlMs: 60_000,
      attemptTimeoutMs: 10_000,
      webhookTimeoutMs: 10_000,
      webhookRetryScale: 1,
      isProvedDead: () => false,
      onDeclaredDead: () => undefined,
    },
  );
  const first = Math.ceil(clock.now() / MINUTE_MS + 5) * MINUTE_MS;
  const scope = { projectNo: project, environment: "production" } as const;
  const schedule = scheduleOf(scope, 0, { nextRunAt: first });
  expect(await createSchedule(store.db, schedule, keyCause(), null)).toBe("created");
  const nextRunAt = async () => {
    const [row] = await store.query<{ at: number }>(
      "SELECT (extract(epoch FROM next_run_at) * 1000)::float8 AS at FROM schedules",
    );
    return row?.at;
  };

  await clock.leapTo(first + 1_000);
  await until(async () => (await nextRunAt()) !== first);
  const second = await nextRunAt();
  await clock.leapTo(first + 30 * 86_400_000);
  firings = 0;
  // What the first look finds would be fired before the second one is answered.
  for (let look = 0; look < 2; look++) await until(() => worker.walk.look(true));
  expect(firings).toBe(0);
  expect(await nextRunAt()).toBe(second);

  await worker.stop();
  await bus.close();
  clock.stop();
  await store.stop();
});
