import { afterAll, beforeAll, expect, test } from "bun:test";
import { randomBytes } from "node:crypto";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { type Clock, startClock } from "../../shared/platform/clock.ts";
import { createLog, type ProcessLog } from "../../shared/platform/log.ts";
import { createMetrics } from "../../shared/platform/metrics/metrics.ts";
import { createSeal } from "../../shared/platform/seal/seal.ts";
import { NO_TRACES } from "../../shared/platform/traces/traces.ts";
import type { Cell } from "../../shared/process/cell.ts";
import { type Rehearsal, rehearse } from "../../shared/process/rehearsal.ts";
import { setRegionsHeld } from "../../shared/store/cell/holds.ts";
import { askTime, type Database, StoreUnavailable } from "../../shared/store/database/database.ts";
import { createJobs } from "../../shared/store/resources/job-creation.ts";
import { startStore, type TestStore, until } from "../../shared/store/test-support.ts";
import { testCause } from "../../test/support/cause.ts";
import { rehearseDelivery } from "../delivery/rehearsal.ts";
import { rehearseGateway } from "../gateway/rehearsal.ts";
import { rehearseWorker } from "../worker/rehearsal.ts";

/** A rehearsal ends within this time on any machine. */
const LONG_MS = 60_000;

const seal = createSeal(randomBytes(32));
let store: TestStore;
let clock: Clock;
beforeAll(async () => {
  store = await startStore();
  clock = await startClock(() => askTime(store.db));
});
afterAll(async () => {
  clock.stop();
  await store.stop();
});

/** A cell whose statements, messages and warnings are noted. */
function startCell(db: Database = store.db) {
  const statements: string[] = [];
  const warnings: string[] = [];
  const log: ProcessLog = {
    ...createLog({ level: "silent", name: "test" }),
    warn: (_, message) => void warnings.push(message),
  };
  const noting: Database = {
    ...db,
    transact: (act) =>
      db.transact((tx) =>
        act({
          ...tx,
          run(name, text, values) {
            statements.push(name);
            return tx.run(name, text, values);
          },
        }),
      ),
  };
  const bus = createInProcessBus(log);
  const heard: unknown[] = [];
  bus.consumeCommands(["us-east"], (command) => heard.push(command));
  bus.onHint("us-east", (hint) => heard.push(hint));
  const cell: Cell = { db: noting, bus, clock, log, metrics: createMetrics(), traces: NO_TRACES };
  return { cell, statements, warnings, heard };
}

const gatewayOptions = (cell: Cell) => ({
  ...cell,
  host: "127.0.0.1",
  port: 0,
  shardsPerRegion: 8,
  targets: { allowInsecure: false, own: [] },
  publicUrl: null,
  seal,
  storeTimeMsMax: LONG_MS,
});

/** The service's own metrics; those of the process move all the time. */
const metricsOf = async ({ metrics }: Cell) =>
  (await metrics.page()).text.split("\n").filter((line) => line.startsWith("jobwheel_"));

async function countRows(): Promise<Record<string, number>> {
  const tables = await store.query<{ name: string }>(
    "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')",
  );
  const counts: Record<string, number> = {};
  for (const { name } of tables) {
    const [row] = await store.query<{ count: number }>(`SELECT count(*)::int AS count FROM ${name}`);
    counts[name] = row?.count ?? 0;
  }
  return counts;
}

test("a warm-up runs the hot statements and leaves no row, no message and no metric", async () => {
  const { cell, statements, warnings, heard } = startCell();
  const [before, metricsBefore] = [await countRows(), await metricsOf(cell)];
  await rehearseWorker(cell);
  await rehearseDelivery(cell, { regions: ["us-east"], seal }, LONG_MS);
  await rehearseGateway(cell, gatewayOptions(cell), LONG_MS);
  expect({ warnings, heard }).toEqual({ warnings: [], heard: [] });
  const countHot = (begin: string) => statements.filter((name) => name.startsWith(begin)).length;
  // On each of two connections delivery takes 30 steps, and the gateway answers 40 requests.
  expect(countHot("create_")).toBe(2 * (30 + 40));
  for (const name of ["create_ordinary_job", "create_uniform_jobs", "create_ordinary_jobs"])
    expect(new Set(statements)).toContain(name);
  for (const begin of ["claim_", "settle_"]) expect(countHot(begin)).toBeGreaterThanOrEqual(2 * 30);
  expect(await countRows()).toEqual(before);
  expect(await metricsOf(cell)).toEqual(metricsBefore);
  await cell.bus.close();
});

test("a rehearsal that fails or hangs ends in its time and throws nothing", async () => {
  const { cell, warnings } = startCell({
    ...store.db,
    transact: () => Promise.reject(new StoreUnavailable("away")),
  });
  await rehearse(cell, seal, async () => undefined, LONG_MS);
  expect(new Set(warnings)).toEqual(new Set(["rehearsal.failed"]));

  const never = new Promise<never>(() => undefined);
  const hanging = startCell({ ...store.db, transact: () => never });
  await rehearse(hanging.cell, seal, async () => undefined, 20);
  await rehearse(startCell().cell, seal, () => never, 20);
  const thrown = startCell();
  await rehearse(thrown.cell, seal, () => Promise.reject(new Error("a bug")), LONG_MS);
  expect(thrown.warnings).toContain("rehearsal.failed");
});

/** The store's database, in whose transactions the statements of this beginning fail. */
const failingAt = (begin: string): Database => ({
  ...store.db,
  transact: (act) =>
    store.db.transact((tx) =>
      act({
        ...tx,
        async run(name, text, values) {
          if (name.startsWith(begin)) throw new Error(`${begin} failed`);
          return tx.run(name, text, values);
        },
      }),
    ),
});

test.each(["add_node", "claim_", "settle_"])("a delivery rehearsal tells that %s failed", async (begin) => {
  const { cell, warnings } = startCell(failingAt(begin));
  await rehearseDelivery(cell, { regions: ["us-east"], seal }, LONG_MS);
  expect(warnings).toEqual(["rehearsal.failed", "rehearsal.failed"]);
});

test("a delivery rehearsal has nothing to tell of a region that operators hold", async () => {
  const { cell, statements, warnings } = startCell();
  await setRegionsHeld(store.db, ["us-east"], true, testCause());
  try {
    await rehearseDelivery(cell, { regions: ["us-east"], seal }, LONG_MS);
  } finally {
    await setRegionsHeld(store.db, ["us-east"], false, testCause());
  }
  expect(statements).toContain("claim");
  expect(warnings).toEqual([]);
});

test("a gateway's rehearsal tells of an answer other than 201", async () => {
  const { cell, warnings } = startCell(failingAt("create_"));
  await rehearseGateway(cell, gatewayOptions(cell), LONG_MS);
  expect(warnings).toEqual(["rehearsal.failed", "rehearsal.failed"]);
});

test("a rehearsal whose transaction begins too late does nothing", async () => {
  const late = Promise.withResolvers<void>();
  const { cell, statements, warnings } = startCell({
    ...store.db,
    transact: (act) => late.promise.then(() => store.db.transact(act)),
  });
  let actedCount = 0;
  const rolledBack: Promise<unknown>[] = [];
  const transact: Database["transact"] = (act) => {
    const transaction = cell.db.transact(act);
    rolledBack.push(transaction);
    return transaction;
  };
  await rehearse({ ...cell, db: { ...cell.db, transact } }, seal, async () => void actedCount++, 20);
  late.resolve();
  await Promise.allSettled(rolledBack);
  expect({ actedCount, statements, warnings }).toEqual({ actedCount: 0, statements: [], warnings: [] });
  expect(rolledBack.length).toBe(2);
});

test("what a rehearsal leaves behind asks no more once it has ended", async () => {
  const { cell, warnings } = startCell();
  const dbs: Database[] = [];
  await rehearse(cell, seal, async (rehearsal) => void dbs.push(rehearsal.cell.db), LONG_MS);
  expect(dbs.length).toBe(2);
  for (const db of dbs) {
    await expect(db.run("straggler", "SELECT 1", [])).rejects.toThrow();
    expect(() => db.drizzle).toThrow();
  }
  expect(warnings).toEqual([]);
});

test("a rehearsal's locks on the tables of jobs last for a round", async () => {
  const { cell, warnings } = startCell();
  const lockedCounts: { within: number[]; after: number[] } = { within: [], after: [] };
  async function countLocked(db: Database): Promise<number> {
    const [row] = await db.run<{ count: number }>(
      "count_locked",
      "SELECT count(*)::int FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ('jobs'::regclass, 'open_jobs'::regclass)",
      [],
    );
    return row?.count ?? -1;
  }
  const act = async ({ cell: { db }, project, takeSteps }: Rehearsal) => {
    await takeSteps(3, async () => {
      await createJobs(db, [store.newJob(project.no)], new Set());
      lockedCounts.within.push(await countLocked(db));
    });
    lockedCounts.after.push(await countLocked(db));
  };
  await rehearse(cell, seal, act, LONG_MS);
  expect(warnings).toEqual([]);
  expect(Math.min(...lockedCounts.within)).toBeGreaterThan(0);
  expect(lockedCounts.after).toEqual([0, 0]);
});

test("a rehearsal that is out of time is rolled back once its statement has ended", async () => {
  const underWayAtEnd: number[] = [];
  const watched: Database = {
    ...store.db,
    transact: (act) =>
      store.db.transact(async (tx) => {
        let underWay = 0;
        const run: typeof tx.run = (name, text, values) => {
          underWay++;
          return tx.run<never>(name, text, values).finally(() => underWay--);
        };
        return act({ ...tx, run }).finally(() => underWayAtEnd.push(underWay));
      }),
  };
  const { cell } = startCell(watched);
  const nap = ({ cell: { db } }: Rehearsal) => db.run("nap", "SELECT pg_sleep(1)", []).then(() => undefined);
  await rehearse(cell, seal, nap, 500);
  await until(() => underWayAtEnd.length === 2);
  expect(underWayAtEnd).toEqual([0, 0]);
});
