import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import pg from "pg";
import { clearHostLimit, setHostLimit } from "../../shared/store/cell/host-limits.ts";
import { testCause } from "../support/cause.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startOverlapTarget } from "../support/overlap-target.ts";
import { watchPauses } from "../support/pauses.ts";
import { until } from "./support.ts";

setDefaultTimeout(600_000);

const HOST = "127.0.0.1";
/** Every node keeps a new limit within this time. */
const KNOWN_MS = 5_000;
const NODES = 2;
const ARRIVED_MS_MAX = 180_000;
/** After so many later jobs were sent, chance alone cannot explain a missing job: two jobs may arrive in any order. */
const OVERTAKING = 10;
/** More jobs than a worker remembers of a project with a low limit, and more than it looks past. */
const HELD_JOBS = 3_000;
const ADDED_TOGETHER = 500;
/** A node that does not know the limit would have sent long before this. */
const UNKNOWN_MS = 2_000;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
});
afterAll(() => cell.stop());

const limit = (requests: number) => setHostLimit(cell.db, { host: HOST, requests }, testCause());
const clear = () => clearHostLimit(cell.db, HOST, testCause());
/** The URL of the same server under another host name. */
const elsewhere = (url: string) => url.replace(HOST, "localhost");

describe("a limit of requests to one host", () => {
  test("that is older than the nodes binds them from their first request on, jobs and webhooks together", async () => {
    await limit(2);
    const nodes = await Promise.all(Array.from({ length: NODES }, () => cell.startDelivery()));
    const target = startOverlapTarget(30);
    const project = await cell.addProject();
    await cell.addEndpoint(project, { url: target.url });
    await cell.addJobs(project, Array(20).fill({ targetUrl: target.url }));
    await until(() => target.arrivals.length === 40, ARRIVED_MS_MAX);
    expect(target.openMax).toBeLessThanOrEqual(2 * NODES);
    await clear();
    for (const node of nodes) await node.stop();
    await target.stop();
  });

  test("of 0 holds every request to the host within 5 s, delays no other host, and lets all jobs go once it is cleared", async () => {
    const node = await cell.startDelivery();
    const target = startOverlapTarget(20);
    const project = await cell.addProject();
    await cell.addJobs(project, Array(10).fill({ targetUrl: target.url }));
    await until(() => target.arrivals.length === 10);
    const add = async (targetUrl: string) => (await cell.addJobs(project, [{ targetUrl }]))[0] ?? "";
    const hasArrived = (id: string) => target.arrivals.some(({ name }) => name.startsWith(id));
    const pauses = await watchPauses(cell.url);
    await limit(0);
    const setAt = performance.now();
    pauses.read();
    let pausedMs = 0;
    for (;;) {
      const fed = await add(target.url);
      // The job is held if it has not arrived after several jobs went elsewhere, one after the other.
      for (let count = 0; count < OVERTAKING && !hasArrived(fed); count++) {
        const other = await add(elsewhere(target.url));
        await until(() => hasArrived(other));
      }
      if (!hasArrived(fed)) break;
      pausedMs += pauses.read().totalMs;
      expect(performance.now() - setAt - pausedMs).toBeLessThan(KNOWN_MS);
    }
    await pauses.stop();
    const arrivedBefore = target.arrivals.length;
    await cell.addJobs(project, Array(20).fill({ targetUrl: target.url }));
    await cell.addJobs(project, Array(20).fill({ targetUrl: elsewhere(target.url) }));
    await until(() => target.arrivals.length === arrivedBefore + 20);
    // All arrivals were jobs to the other host.
    await until(async () => (await openCount()) === 1 + 20);
    await clear();
    await until(() => target.arrivals.length === arrivedBefore + 1 + 40);
    await node.stop();
    await target.stop();
  });

  test("stays in force while Postgres does not answer", async () => {
    await limit(0);
    // A node knows the limit once it has started.
    const node = await cell.startDelivery();
    const session = await lockLimits();
    await until(async () => (await waitingCount()) > 0);
    const target = startOverlapTarget(5);
    const project = await cell.addProject();
    await cell.addJobs(project, Array(5).fill({ targetUrl: target.url }));
    await cell.addJobs(project, Array(5).fill({ targetUrl: elsewhere(target.url) }));
    await until(() => target.arrivals.length === 5);
    await until(async () => (await openCount()) === 5);
    // The node has asked once more, and has no answer yet.
    await until(async () => (await waitingCount()) > 0);
    expect(target.arrivals.length).toBe(5);
    await session.query("COMMIT");
    await session.end();
    await clear();
    await until(() => target.arrivals.length === 10);
    await node.stop();
    await target.stop();
  });

  test.each([0, 1])(
    "of %d delays no job to another host, with 3,000 jobs that wait",
    async (requests) => {
      await limit(requests);
      const node = await cell.startDelivery();
      const target = startOverlapTarget(5);
      const waiting = new Set<string>();
      target.hold(({ name }) => waiting.has(name.split(" ")[0] ?? ""));
      const project = await cell.addProject({ concurrency: 5 });
      const together = Array(ADDED_TOGETHER).fill({ targetUrl: target.url });
      // The jobs are not announced: sweeps find them, the oldest first.
      for (let addedCount = 0; addedCount < HELD_JOBS; addedCount += ADDED_TOGETHER)
        for (const id of await cell.addJobs(project, together, { tell: false })) waiting.add(id);
      const [other = ""] = await cell.addJobs(project, [{ targetUrl: elsewhere(target.url) }], {
        tell: false,
      });
      await until(() => target.arrivals.some(({ name }) => name.startsWith(other)));
      expect(await openCount()).toBeGreaterThanOrEqual(HELD_JOBS);
      target.hold(() => false);
      await clear();
      await until(async () => (await openCount()) === 0, 300_000);
      await node.stop();
      await target.stop();
    },
    400_000,
  );

  test("is known to a starting node before its first request", async () => {
    await limit(0);
    const session = await lockLimits();
    const target = startOverlapTarget(5);
    const project = await cell.addProject();
    await cell.addJobs(project, [{ targetUrl: target.url }, { targetUrl: elsewhere(target.url) }]);
    const starting = cell.startDelivery();
    await until(async () => (await waitingCount()) > 0);
    const askedAt = performance.now();
    await until(() => performance.now() - askedAt > UNKNOWN_MS);
    expect(target.arrivals.length).toBe(0);
    await session.query("COMMIT");
    await session.end();
    const node = await starting;
    await until(() => target.arrivals.length === 1);
    await clear();
    await until(() => target.arrivals.length === 2);
    await node.stop();
    await target.stop();
  });
});

/** Locks the limits, so that no other session can read them until this session ends. */
async function lockLimits(): Promise<pg.Client> {
  const session = new pg.Client({ connectionString: cell.url });
  session.on("error", () => undefined);
  await session.connect();
  await session.query("SET idle_in_transaction_session_timeout = 0");
  await session.query("BEGIN; LOCK TABLE host_limits IN ACCESS EXCLUSIVE MODE");
  return session;
}

async function openCount(): Promise<number> {
  const [row] = await cell.db.run<{ count: number }>(
    "open",
    "SELECT count(*)::int AS count FROM open_jobs",
    [],
  );
  return row?.count ?? 0;
}

async function waitingCount(): Promise<number> {
  const [row] = await cell.db.run<{ count: number }>(
    "waiting",
    "SELECT count(*)::int AS count FROM pg_locks WHERE relation = 'host_limits'::regclass AND NOT granted",
    [],
  );
  return row?.count ?? 0;
}
