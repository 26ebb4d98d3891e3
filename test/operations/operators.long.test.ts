import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { until } from "../flow/support.ts";
import { askAdmin } from "../support/admin-program.ts";
import type { ServiceProcess } from "../support/service-process.ts";
import {
  countOf,
  declareDeadAlive,
  expectAllEnded,
  LEASE_TTL_MS,
  latestOf,
  type OperatedCell,
  SOON_MS,
  STREAMS,
  startOperatedCell,
} from "./operated-cell.ts";

setDefaultTimeout(300_000);

let cell: OperatedCell;
beforeAll(async () => {
  cell = await startOperatedCell();
  await cell.untilOnly(STREAMS);
});
afterAll(() => cell.stop());

interface NodeShown {
  name: string;
  dead: boolean;
  silent_ms: number;
}
/** The latest incarnation of the node of this name, as operators see it. */
async function shown(name: string): Promise<NodeShown> {
  const { data } = await askAdmin<{ data: NodeShown[] }>(cell.url, "node", "list");
  const node = data.filter((each) => each.name === name).at(-1);
  if (node === undefined) throw new Error(`no node ${name}`);
  return node;
}

test("hold stops the whole cell by its regions, and the hold of a project outlasts the regions'", async () => {
  const { beta } = cell.projects;
  await askAdmin(cell.url, "hold", "--project", beta.id);
  await askAdmin(cell.url, "hold");
  await cell.untilOnly([]);
  await askAdmin(cell.url, "resume");
  await cell.untilOnly(STREAMS.filter((stream) => !stream.startsWith("beta")));
  await askAdmin(cell.url, "resume", "--project", beta.id);
  await cell.untilOnly(STREAMS);
});

test("node list tells frozen nodes from living ones, and both from stopped and killed ones", async () => {
  const frozen = cell.services["worker-b"];
  process.kill(frozen.pid, "SIGSTOP");
  await until(async () => (await shown("worker-b")).silent_ms > LEASE_TTL_MS);
  expect(await shown("worker-b")).toMatchObject({ dead: false });
  expect((await shown("worker-a")).silent_ms).toBeLessThan(LEASE_TTL_MS);
  process.kill(frozen.pid, "SIGCONT");
  await until(async () => (await shown("worker-b")).silent_ms < LEASE_TTL_MS);
  expect(await frozen.end("SIGTERM")).toBe(0);
  expect(await shown("worker-b")).toMatchObject({ dead: true });
  await frozen.startAgain();
  expect(await shown("worker-b")).toMatchObject({ dead: false });
  // Other nodes on the same machine see that the process is gone, so no operator has to declare it dead.
  await cell.services["delivery-b"].end("SIGKILL");
  await until(async () => (await shown("delivery-b")).dead, SOON_MS);
  await cell.services["delivery-b"].startAgain();
  await cell.untilOnly(STREAMS);
});

test("node dead makes a living worker end itself, and it starts again under a new id", () =>
  declareDeadAlive(cell, "worker-a"));

test("node dead of a frozen node retries its attempts, and the woken node sends and settles nothing twice", async () => {
  const { pid } = cell.services["delivery-b"];
  const release = cell.hold(({ jobId }) => jobId !== "");
  const { id } = await latestOf(cell, "delivery-b");
  const wire = () => countOf(cell, "open_jobs WHERE node_id = $1", [id]);
  await until(async () => (await wire()) > 5);
  process.kill(pid, "SIGSTOP");
  await declareDeadAlive(cell, "delivery-b", async () => {
    await until(async () => (await wire()) === 0, SOON_MS);
    release();
    await cell.untilOnly(STREAMS);
    process.kill(pid, "SIGCONT");
  });
});

test("shard list agrees with what each worker says that it owns, while workers start, stop and die", async () => {
  const { services } = cell;
  const two = { "worker-a": services["worker-a"], "worker-b": services["worker-b"] };
  await agreesOn(two);
  const third = await cell.start("worker", "worker-c");
  await agreesOn({ ...two, "worker-c": third });
  await third.end("SIGKILL");
  await agreesOn(two);
  await services["worker-b"].end("SIGTERM");
  await agreesOn({ "worker-a": services["worker-a"] });
  await services["worker-b"].startAgain();
  await agreesOn(two);
});

test("after all of this every job has ended, no attempt arrived twice, and no permit is in use", () =>
  expectAllEnded(cell));

interface ShardShown {
  region: string;
  shard: number;
  owner: { name: string } | null;
}

async function agreesOn(workers: Record<string, ServiceProcess>): Promise<void> {
  await until(
    async () => {
      const { data } = await askAdmin<{ data: ShardShown[] }>(cell.url, "shard", "list");
      const listed = data.map(({ region, shard, owner }) => `${owner?.name} ${region} ${shard}`);
      const owned = await Promise.all(
        Object.entries(workers).map(([name, worker]) => listOwned(name, worker)),
      );
      return (
        owned.every((shards) => shards.length > 0) && String(listed.sort()) === String(owned.flat().sort())
      );
    },
    SOON_MS + 10 * LEASE_TTL_MS,
  );
}

/** The shards that a worker owns, read from its own metrics. */
async function listOwned(name: string, worker: ServiceProcess): Promise<string[]> {
  const page = await (await fetch(`http://127.0.0.1:${worker.opsPort}/metrics`)).text();
  const lines = page.matchAll(/^\w*shard_ready_attempts\{region="([^"]+)",shard="(\d+)"\}/gm);
  return [...lines].map(([, region, shard]) => `${name} ${region} ${shard}`);
}
