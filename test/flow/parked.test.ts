import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import { JOB_PREFIX, uuidToId } from "../../shared/domain/ids.ts";
import { shardOf } from "../../shared/domain/shard.ts";
import { createLog } from "../../shared/platform/log.ts";
import { clearHostLimit, setHostLimit } from "../../shared/store/cell/host-limits.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import { changeWebhook, deleteWebhook } from "../../shared/store/resources/webhooks.ts";
import { testCause } from "../support/cause.ts";
import { type Cell, SHARDS_PER_REGION, startCell } from "../support/cell.ts";
import { ADD_DUE_JOBS } from "../support/due-jobs.ts";
import { watchPauses } from "../support/pauses.ts";
import { startTarget, type Target } from "../support/target.ts";
import { until } from "./support.ts";

setDefaultTimeout(1_800_000);

const HOST = "127.0.0.1";
const HELD = 100_000;
const SEEDED_TOGETHER = 1_000;
/** Some of the held jobs are claimed and parked within this time, whatever the machine is like. */
const PARKING_MS_MAX = 180_000;
const ARRIVED_MS_MAX = 180_000;
const LIMIT = 100;
const PROBES = 31;
/** The time that a busy machine adds to a median. */
const NOISE_MS = 50;
const ROUNDS_MAX = 3;
/** Longer than a statement takes that has looked for due jobs before the last of them was parked. */
const STILL_MS = 6_000;
/** More jobs than a worker, or a node without a worker, looks past. */
const HELD_WITHOUT_WORKER = 3_000;
const ADDED_TOGETHER = 500;
const RESUMED = 300;
/** A released job that waits for its permit may be overtaken by at most so many released jobs: a small part of all. */
const OVERTAKING = 1_000;

const limit = (cell: Cell, requests: number) => setHostLimit(cell.db, { host: HOST, requests }, testCause());
const clear = (cell: Cell) => clearHostLimit(cell.db, HOST, testCause());
/** The URL of the same server under another host name. */
const elsewhere = ({ url }: Target) => url.replace(HOST, "localhost");

describe("100,000 jobs held at one host", () => {
  test("cost nothing and delay no other host, and the oldest start first once they are released", async () => {
    const bus = createInProcessBus(createLog({ name: "test", level: "error" }));
    const heldIds = new Set<string>();
    let askedCount = 0;
    const cell = await startCell({
      bus: {
        ...bus,
        sendDue(nodeId, due) {
          askedCount += due.items.filter(({ id }) => heldIds.has(id)).length;
          bus.sendDue(nodeId, due);
        },
      },
    });
    const [held, other] = [startTarget(), startTarget()];
    try {
      await limit(cell, 0);
      let services = [await cell.startWorker(), await cell.startDelivery()];
      const project = await cell.addProject({ concurrency: LIMIT });
      const aloneMs = await probe(cell, project, other);
      await seed(cell, project, held.url, heldIds);
      for (let due = HELD; due > 0; ) {
        const before = due;
        due = await until(async () => {
          const left = await countDue(cell);
          return left < before && left;
        }, PARKING_MS_MAX);
      }

      expect(askedCount).toBeGreaterThan(0);
      await untilStill(() => askedCount, STILL_MS);
      askedCount = 0;
      // A busy moment makes one probe slow. Held jobs that cost something would make each of the three slow.
      const probeBeside = () => probe(cell, project, other);
      let besideMs = Math.min(await probeBeside(), await probeBeside(), await probeBeside());
      expect(askedCount).toBe(0);
      expect(held.arrivals.length).toBe(0);

      await clear(cell);
      await held.until(({ length }) => length >= RESUMED, ARRIVED_MS_MAX);
      await limit(cell, 0);
      const places = new Map([...heldIds].sort().map((id, place) => [id, place]));
      const firstPlaces = held.arrivals.slice(0, RESUMED).map(({ jobId }) => places.get(jobId) ?? HELD);
      expect(Math.max(...firstPlaces)).toBeLessThan(RESUMED + OVERTAKING);
      expect(held.openMax).toBeLessThanOrEqual(LIMIT);

      // The machine may have become busier since the first probe, which was minutes ago.
      for (const service of services) await service.stop();
      let besideMsMax = boundOf(Math.max(aloneMs, await probeQuietCell(other)));
      for (let round = 1; round < ROUNDS_MAX && besideMs >= besideMsMax; round++) {
        services = [await cell.startWorker(), await cell.startDelivery()];
        await until(async () => (await countDue(cell)) === 0, PARKING_MS_MAX);
        besideMs = await probeBeside();
        for (const service of services) await service.stop();
        besideMsMax = boundOf(await probeQuietCell(other));
      }
      expect(besideMs).toBeLessThan(besideMsMax);
    } finally {
      await cell.stop();
      await Promise.all([held.stop(), other.stop()]);
    }
  });

  test("hide no job to another host from a node without a worker, and a node that starts later finds them", async () => {
    const cell = await startCell();
    const [held, other] = [startTarget(), startTarget()];
    try {
      await limit(cell, 0);
      const node = await cell.startDelivery();
      const project = await cell.addProject({ concurrency: LIMIT });
      const together = Array(ADDED_TOGETHER).fill({ targetUrl: held.url });
      for (let addedCount = 0; addedCount < HELD_WITHOUT_WORKER; addedCount += ADDED_TOGETHER)
        await cell.addJobs(project, together, { tell: false });
      await cell.addJobs(project, [{ targetUrl: elsewhere(other) }], { tell: false });
      await other.until(({ length }) => length === 1, ARRIVED_MS_MAX);
      await node.stop();
      await clear(cell);
      await cell.startDelivery();
      await held.until(({ length }) => length === HELD_WITHOUT_WORKER, 300_000);
    } finally {
      await cell.stop();
      await Promise.all([held.stop(), other.stop()]);
    }
  });
});

describe("jobs beyond the room of a host", () => {
  test("are released when a place is free, as many of every project", async () => {
    const cell = await startCell();
    const target = startTarget();
    const pauses = await watchPauses(cell.url);
    try {
      await limit(cell, 0);
      await cell.startWorker();
      await cell.startDelivery();
      const [large, small] = [await cell.addProject(), await cell.addProject()];
      await cell.addJobs(large, Array(200).fill({ targetUrl: target.url }));
      const smalls = await cell.addJobs(small, Array(5).fill({ targetUrl: target.url }));
      await until(async () => (await countDue(cell)) === 0);
      await limit(cell, 1);
      pauses.read();
      const startedAt = performance.now();
      await target.until(({ length }) => length === 205, 300_000);
      // One release with each look would take 205 s.
      expect(performance.now() - startedAt - pauses.read().totalMs).toBeLessThan(100_000);
      expect(target.openMax).toBe(1);
      const last = target.arrivals.findLastIndex(({ jobId }) => smalls.includes(jobId));
      expect(last).toBeLessThan(20);
    } finally {
      await pauses.stop();
      await cell.stop();
      await target.stop();
    }
  });
});

describe("deliveries held at one host", () => {
  test("delay no other endpoint, and are sent to their endpoint's later URL, or never if it is deleted", async () => {
    const cell = await startCell();
    const [held, moved, other] = [startTarget(), startTarget(), startTarget()];
    try {
      await limit(cell, 0);
      await cell.startWorker();
      await cell.startDelivery();
      const project = await cell.addProject({ concurrency: LIMIT });
      const scope = { projectNo: project.no, environment: "production" } as const;
      const cause = { requestId: testCause().requestId, keyNo: 0 };
      const leaving = await cell.addEndpoint(project, { url: held.url });
      const deleted = await cell.addEndpoint(project, { url: `${held.url}/deleted` });
      await cell.addEndpoint(project, { url: elsewhere(other) });
      await cell.addJobs(project, Array(300).fill({ targetUrl: `${elsewhere(other)}/job` }));
      await other.until(({ length }) => length === 600, ARRIVED_MS_MAX);
      await until(async () => (await countParked(cell)) === 600);
      expect(held.arrivals.length).toBe(0);
      const lead = (url: string) =>
        changeWebhook(
          cell.db,
          scope,
          leaving.id,
          (webhook) => ({ ...webhook, url }),
          { ...cause, requestId: testCause().requestId },
          0,
        );
      // An endpoint that leaves the host and comes back is held as before.
      await lead("http://other.invalid/");
      await lead(held.url);
      await until(async () => (await countLeft(cell)) === 0);
      await lead(elsewhere(moved));
      await moved.until(({ length }) => length === 300, ARRIVED_MS_MAX);
      await deleteWebhook(cell.db, scope, deleted.id, {
        ...cause,
        requestId: testCause().requestId,
      });
      await until(async () => (await countParked(cell)) === 0);
      expect(held.arrivals.length).toBe(0);
    } finally {
      await cell.stop();
      await Promise.all([held.stop(), moved.stop(), other.stop()]);
    }
  });
});

/** How late jobs may be beside held ones if they are as late as that in a quiet cell. */
const boundOf = (aloneMs: number) => 2 * aloneMs + NOISE_MS;

/** Waits until the count has not grown for so long. */
async function untilStill(read: () => number, stillMs: number): Promise<void> {
  let count = read();
  let since = performance.now();
  await until(() => {
    if (read() !== count) since = performance.now();
    count = read();
    return performance.now() > since + stillMs;
  });
}

/** The median lateness of single jobs, one after the other, in milliseconds. */
async function probe(cell: Cell, project: ProjectRow, target: Target): Promise<number> {
  const lateMs: number[] = [];
  for (let count = 1; count <= PROBES; count++) {
    const before = target.arrivals.length;
    const addedAt = Date.now();
    await cell.addJobs(project, [{ targetUrl: elsewhere(target) }]);
    await target.until(({ length }) => length > before);
    lateMs.push((target.arrivals.at(-1)?.at ?? Number.NaN) - addedAt);
  }
  return lateMs.toSorted((a, b) => a - b)[PROBES >> 1] ?? Number.NaN;
}

/** Probes another cell, which holds no jobs. */
async function probeQuietCell(target: Target): Promise<number> {
  const cell = await startCell();
  try {
    await cell.startWorker();
    await cell.startDelivery();
    return await probe(cell, await cell.addProject({ concurrency: LIMIT }), target);
  } finally {
    await cell.stop();
  }
}

/** Inserts due jobs, the oldest first, in statements that are over within their time on a busy machine as well. */
async function seed(cell: Cell, project: ProjectRow, targetUrl: string, ids: Set<string>): Promise<void> {
  const shard = shardOf(project.no, SHARDS_PER_REGION);
  for (let seededCount = 0; seededCount < HELD; seededCount += SEEDED_TOGETHER) {
    const rows = await cell.db.run<{ id: string }>("seed", ADD_DUE_JOBS, [
      project.no,
      SEEDED_TOGETHER,
      targetUrl,
      shard,
      seededCount + 1,
    ]);
    for (const { id } of rows) ids.add(uuidToId(JOB_PREFIX, id));
  }
}

const countDue = (cell: Cell) =>
  count(cell, "due", "SELECT count(*)::int AS count FROM open_jobs WHERE due_at IS NOT NULL");
const countParked = (cell: Cell) =>
  count(
    cell,
    "parked",
    "SELECT count(*)::int AS count FROM open_deliveries WHERE due_at IS NULL AND node_id IS NULL",
  );

const countLeft = (cell: Cell) => count(cell, "left", "SELECT count(*)::int AS count FROM left_hosts");

async function count(cell: Cell, name: string, text: string): Promise<number> {
  const [row] = await cell.db.run<{ count: number }>(name, text, []);
  return row?.count ?? 0;
}
