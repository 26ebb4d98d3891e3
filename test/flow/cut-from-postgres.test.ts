import { afterEach, beforeEach, describe, expect, setDefaultTimeout, test } from "bun:test";
import { createInProcessBus } from "../../shared/bus/in-process.ts";
import type { Beat } from "../../shared/bus/messages.ts";
import { createLog } from "../../shared/platform/log.ts";
import type { PooledDatabase } from "../../shared/store/database/database.ts";
import { type Cell, startCell } from "../support/cell.ts";
import { openTestDatabase } from "../support/database.ts";
import { startTarget, type Target } from "../support/target.ts";
import { startTcpProxy, type TcpProxy } from "../support/tcp-proxy.ts";
import { until } from "./support.ts";

setDefaultTimeout(600_000);

const LEASE_MS = 2_000;
/** The cut is longer than a lease, and longer than a node waits for a worker's beat. */
const CUT_MS = 3 * LEASE_MS;
const JOBS = 40;
const ARRIVED_MS_MAX = 120_000;

/** The ways in which the link to Postgres fails, and comes back. */
const CUTS = [
  ["refuses", { cut: () => proxy.cut(), mend: () => proxy.mend() }],
  ["is silent", { cut: () => proxy.freeze(), mend: () => proxy.thaw() }],
] as const;

let cell: Cell;
let proxy: TcpProxy;
let proxied: PooledDatabase;
let target: Target;
let beats: { kind: string; beat: Beat }[];
let dues: { nodeId: number; count: number }[];

beforeEach(async () => {
  const bus = createInProcessBus(createLog({ name: "test", level: "silent" }));
  beats = [];
  dues = [];
  cell = await startCell({
    bus: {
      ...bus,
      sendBeat(kind, beat) {
        beats.push({ kind, beat });
        bus.sendBeat(kind, beat);
      },
      sendDue(nodeId, due) {
        dues.push({ nodeId, count: due.items.length });
        bus.sendDue(nodeId, due);
      },
    },
  });
  const url = new URL(cell.url);
  proxy = await startTcpProxy({ host: url.hostname, port: Number(url.port) });
  url.hostname = "127.0.0.1";
  url.port = String(proxy.port);
  proxied = openTestDatabase(url.href, 8, "silent");
  target = startTarget();
});
afterEach(async () => {
  proxy.mend();
  proxy.thaw();
  await cell.stop();
  await proxied.close();
  await Promise.all([proxy.stop(), target.stop()]);
});

describe("a worker that is cut off from Postgres and still reaches NATS", () => {
  test.each(CUTS)(
    "beats only while its lease is trusted, so that delivery nodes then find what is due, with a link that %s",
    async (_how, { cut, mend }) => {
      await cell.startDelivery();
      await cell.startWorker({ db: proxied, leaseMs: LEASE_MS });
      const project = await cell.addProject();
      const send = async () => {
        const before = target.arrivals.length;
        await cell.addJobs(project, [{ targetUrl: target.url }]);
        await target.until(({ length }) => length > before, ARRIVED_MS_MAX);
      };
      await until(() => beats.some(({ kind }) => kind === "worker"));
      await send();
      cut();
      const cutAt = performance.now();
      while (performance.now() < cutAt + CUT_MS) await send();
      mend();
      beats.length = 0;
      await until(() => beats.some(({ kind }) => kind === "worker"));
    },
  );
});

describe("a delivery node that is cut off from Postgres and still reaches NATS", () => {
  test("announces no room, and gets no jobs until it is back", async () => {
    await cell.startWorker();
    await cell.startDelivery();
    const others = new Set(beats.map(({ beat }) => beat.nodeId));
    await cell.startDelivery({ db: proxied });
    const isCutOne = ({ kind, beat }: (typeof beats)[number]) =>
      kind === "delivery" && !others.has(beat.nodeId);
    const cutNode = await until(() => beats.find(isCutOne)?.beat);
    proxy.cut();
    await until(() => beats.filter(isCutOne).at(-1)?.beat.room === 0);
    dues.length = 0;
    const project = await cell.addProject();
    await cell.addJobs(project, Array(JOBS).fill({ targetUrl: target.url }));
    await target.until(({ length }) => length === JOBS, ARRIVED_MS_MAX);
    expect(dues.filter(({ nodeId }) => nodeId === cutNode.nodeId)).toEqual([]);
    proxy.mend();
    await until(() => (beats.filter(isCutOne).at(-1)?.beat.room ?? 0) > 0);
  });
});
