import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import pg from "pg";
import { clearHostLimit, setHostLimit } from "../../shared/store/cell/host-limits.ts";
import { testCause } from "../support/cause.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { startOverlapTarget } from "../support/overlap-target.ts";
import { until } from "./support.ts";

setDefaultTimeout(120_000);

const HOST = "127.0.0.1";
/** Within which every node keeps to a limit. */
const KNOWN_MS = 5_000;
const NODES = 2;
/** So many jobs that are sent after another one show that it does not follow: two would arrive in any order. */
const OVERTAKING = 10;
/** More than a worker remembers of a project with a low limit, or would look past. */
const HELD_JOBS = 3_000;
/** In which a node that knew nothing would have sent long ago. */
const UNKNOWN_MS = 2_000;

let cell: Cell;
beforeAll(async () => {
  cell = await startCell();
  await cell.startWorker();
});
afterAll(() => cell.stop());

const limit = (requests: number) => setHostLimit(cell.db, { host: HOST, requests }, testCause());
const clear = () => clearHostLimit(cell.db, HOST, testCause());
/** The same server under another name. */
const elsewhere = (url: string) => url.replace(HOST, "localhost");

describe("a limit of requests to one host", () => {
  test("that is there before the nodes are binds them from the first request on, jobs and webhooks together", async () => {
    await limit(2);
    const nodes = await Promise.all(Array.from({ length: NODES }, () => cell.startDelivery()));
    const target = startOverlapTarget(30);
    const project = await cell.addProject();
    await cell.addEndpoint(project, { url: target.url });
    await cell.addJobs(project, Array(20).fill({ targetUrl: target.url }));
    await until(() => target.arrivals.length === 40, 60_000);
    expect(target.openMax).toBeLessThanOrEqual(2 * NODES);
    await clear();
    for (const node of nodes) await node.stop();
    await target.stop();
  });

  test("that is set amid requests is kept to within 5 s, at 0 by none at all; other hosts go on; and cleared, all arrive", async () => {
    const node = await cell.startDelivery();
    const target = startOverlapTarget(20);
    const project = await cell.addProject();
    await cell.addJobs(project, Array(10).fill({ targetUrl: target.url }));
    await until(() => target.arrivals.length === 10);
    const add = async (targetUrl: string) => (await cell.addJobs(project, [{ targetUrl }]))[0] ?? "";
    const hasArrived = (id: string) => target.arrivals.some(({ name }) => name.startsWith(id));
    await limit(0);
    const setAt = performance.now();
    for (;;) {
      const fed = await add(target.url);
      // It is held if it stays away while several go elsewhere, one after the other.
      for (let count = 0; count < OVERTAKING && !hasArrived(fed); count++) {
        const other = await add(elsewhere(target.url));
        await until(() => hasArrived(other));
      }
      if (!hasArrived(fed)) break;
      expect(performance.now() - setAt).toBeLessThan(KNOWN_MS);
    }
    const arrivedBefore = target.arrivals.length;
    await cell.addJobs(project, Array(20).fill({ targetUrl: target.url }));
    await cell.addJobs(project, Array(20).fill({ targetUrl: elsewhere(target.url) }));
    await until(() => target.arrivals.length === arrivedBefore + 20);
    // None of those was one of the held.
    await until(async () => (await openCount()) === 1 + 20);
    await clear();
    await until(() => target.arrivals.length === arrivedBefore + 1 + 40);
    await node.stop();
    await target.stop();
  });

  test("stands while Postgres does not tell of it", async () => {
    await limit(0);
    // A node that has started knows it.
    const node = await cell.startDelivery();
    const session = await lockLimits();
    await until(async () => (await waitingCount()) > 0);
    const target = startOverlapTarget(5);
    const project = await cell.addProject();
    await cell.addJobs(project, Array(5).fill({ targetUrl: target.url }));
    await cell.addJobs(project, Array(5).fill({ targetUrl: elsewhere(target.url) }));
    await until(() => target.arrivals.length === 5);
    await until(async () => (await openCount()) === 5);
    // Asked once more, and still not told.
    await until(async () => (await waitingCount()) > 0);
    expect(target.arrivals.length).toBe(5);
    await session.query("COMMIT");
    await session.end();
    await clear();
    await until(() => target.arrivals.length === 10);
    await node.stop();
    await target.stop();
  });

  test("at 0 does not hold up what leads elsewhere, although more is owed to that host than anybody remembers", async () => {
    await limit(0);
    const node = await cell.startDelivery();
    const target = startOverlapTarget(5);
    const project = await cell.addProject({ concurrency: 5 });
    const held = Array(HELD_JOBS).fill({ targetUrl: target.url });
    // Nobody is told of these: they are found, the oldest first.
    await cell.addJobs(project, held, { tell: false });
    await cell.addJobs(project, [{ targetUrl: elsewhere(target.url) }], { tell: false });
    await until(() => target.arrivals.length === 1);
    expect(await openCount()).toBeGreaterThanOrEqual(HELD_JOBS);
    await clear();
    await until(() => target.arrivals.length === 1 + HELD_JOBS, 90_000);
    await node.stop();
    await target.stop();
  });

  test("is known to a node before it sends anything", async () => {
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

/** From now on nobody can read the limits, until this session ends. */
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
