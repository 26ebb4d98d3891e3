import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { createInProcessBus } from "../../../shared/bus/in-process.ts";
import type { Command } from "../../../shared/bus/messages.ts";
import { idToUuid } from "../../../shared/domain/ids.ts";
import { createLog } from "../../../shared/platform/log.ts";
import { createMetrics } from "../../../shared/platform/metrics/metrics.ts";
import { NO_TRACES } from "../../../shared/platform/traces/traces.ts";
import type { Cell } from "../../../shared/process/cell.ts";
import { type Database, StoreUnavailable } from "../../../shared/store/database/database.ts";
import { startStore, type TestStore, until } from "../../../shared/store/test-support.ts";
import { BulkPass } from "./bulk-pass.ts";
import {
  addFailedJobs,
  askFor,
  bulkOf,
  SHARD,
  standings,
  startWorkerOf,
  type TestWorker,
} from "./test-support.ts";

let store: TestStore;
let nodeId: number;
let worker: TestWorker;
let commands: Command[];
let cell: Cell;
beforeEach(async () => {
  store = await startStore();
  nodeId = await store.addNode();
  worker = await startWorkerOf(store);
  const log = createLog({ level: "silent", name: "test" });
  const bus = createInProcessBus(log);
  commands = [];
  bus.consumeCommands(["us-east"], (command) => commands.push(command));
  const clock = { now: () => Date.now(), stop() {} };
  cell = { db: store.db, bus, clock, log, metrics: createMetrics(), traces: NO_TRACES };
});
afterEach(async () => {
  await cell.bus.close();
  await store.stop();
});

/** A pass over the given database, for which a look follows whenever it asks for one. */
function startPass(db: Database = store.db) {
  let looks = 0;
  const pass = new BulkPass(
    { ...cell, db },
    {
      heldOf: (shard) => (shard === SHARD ? worker.held : undefined),
      onChange: () => void look(),
    },
  );
  async function look() {
    looks++;
    await pass.look([SHARD]).catch(() => undefined);
  }
  return { pass, look, looks: () => looks };
}

const untilOver = (projectNo: number, id: string) =>
  until(async () => (await bulkOf(store, projectNo, id)).endedAt !== null);

test("carries out what it finds, one after the other, and tells the workers of what became owed", async () => {
  const project = await store.addProject();
  const jobs = await addFailedJobs(store, nodeId, project, 25);
  const retry = await askFor(store, project, "retry", { all: true }, { perSecond: 100 });
  const cancel = await askFor(store, project, "cancel", { all: true });
  const { pass, look } = startPass();
  await look();
  await untilOver(project, cancel);
  expect(await bulkOf(store, project, retry)).toMatchObject({ status: "done", matched: 25, done: 25 });
  // The cancel was counted while no job was open, and waited for its turn all the same.
  expect((await bulkOf(store, project, cancel)).status).toBe("done");
  const told = commands.flatMap(({ owed }) => owed.map(({ id, attempt }) => `${id} ${attempt}`));
  expect(told.sort()).toEqual(jobs.map((id) => `${id} 2`).sort());
  const metric = (await cell.metrics.page()).text;
  expect(metric).toContain('jobwheel_bulk_members_total{action="retry",outcome="done"} 25');
  await pass.drain();
});

test("asks nothing of the database while there is nothing to do", async () => {
  let asked = 0;
  const counting: Database = {
    ...store.db,
    run: (...question) => {
      asked++;
      return store.db.run(...question);
    },
  };
  const { pass, look } = startPass(counting);
  await look();
  expect(asked).toBe(1);
  await pass.drain();
});

test("goes on after an outage with the next look, and does each member once", async () => {
  const project = await store.addProject();
  const jobs = await addFailedJobs(store, nodeId, project, 20);
  const id = await askFor(store, project, "retry", { all: true }, { perSecond: 50 });
  let statements = 0;
  // Every third statement breaks, before it is done or after.
  const broken: Database = {
    ...store.db,
    async run<Row>(name: string, text: string, values: unknown[]) {
      const nth = ++statements;
      if (nth % 6 === 3) throw new StoreUnavailable("cut before");
      const rows = await store.db.run<Row>(name, text, values);
      if (nth % 6 === 0) throw new StoreUnavailable("cut after");
      return rows;
    },
  };
  const { pass, look } = startPass(broken);
  await until(async () => {
    await look();
    return (await bulkOf(store, project, id)).endedAt !== null;
  });
  expect(await bulkOf(store, project, id)).toMatchObject({ status: "done", matched: 20, done: 20 });
  expect(await standings(store, jobs, idToUuid)).toEqual(Array(20).fill("running 2"));
  await pass.drain();
});

describe("a hundred operations of one environment", () => {
  test("do not keep another's from being counted", async () => {
    const [busy, other] = [await store.addProject(), await store.addProject()];
    await store.addJobs(busy, 3);
    for (let n = 0; n < 40; n++) await askFor(store, busy, "cancel", { tag: "none" });
    await store.addJobs(other, 2);
    const id = await askFor(store, other, "cancel", { all: true });
    const { pass, look } = startPass();
    await look();
    await untilOver(other, id);
    expect((await bulkOf(store, other, id)).done).toBe(2);
    await pass.drain();
  });
});

test("stops amid an operation, and another worker ends it", async () => {
  const project = await store.addProject();
  const jobs = await addFailedJobs(store, nodeId, project, 30);
  const id = await askFor(store, project, "retry", { all: true }, { perSecond: 5 });
  const first = startPass();
  await first.look();
  await until(async () => (await bulkOf(store, project, id)).done > 0);
  await first.pass.drain();
  const { done } = await bulkOf(store, project, id);
  expect(done).toBeLessThan(30);
  await first.look();
  expect((await bulkOf(store, project, id)).done).toBe(done);
  worker = await startWorkerOf(store);
  const second = startPass();
  await second.look();
  await untilOver(project, id);
  expect(await standings(store, jobs, idToUuid)).toEqual(Array(30).fill("running 2"));
  await second.pass.drain();
});
