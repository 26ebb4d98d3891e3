import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { shardOf } from "../../../shared/domain/shard.ts";
import { until } from "../../flow/support.ts";
import { watchPauses } from "../../support/pauses.ts";
import { startTarget, type Target } from "../../support/target.ts";
import { ChaosCell, LEASE_TTL_MS, type MadeProject, SHARDS_PER_REGION } from "./cell.ts";
import { Recording } from "./recording.ts";

setDefaultTimeout(300_000);

const PROJECTS = 24;
const BATCH_JOBS = 20;
const BATCH_EVERY_MS = 100;
/** Jobs are due this much later than they are created, so that shards know of them before. */
const AHEAD_MS = { least: 1_500, end: 2_500 };
const BEFORE_MS = 10_000;
const AFTER_MS = 12_000;
const STARTS_AFTER_LEASE_MS = 3_000;
/** The p99 of two windows of one run may differ by this much on a machine that does other things too. */
const P99_MOVES_MS_MAX = 60;

let folder: string;
let cell: ChaosCell;
let target: Target;
let projects: MadeProject[];

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "takeover-"));
  const members = { gateway: 1, worker: 2, delivery: 1 };
  cell = await ChaosCell.start({ folder, recording: new Recording(), members, isPooled: true });
  target = startTarget();
  projects = [];
  for (let count = 0; count < PROJECTS; count++) projects.push(await cell.addProject({ concurrency: 100 }));
});
afterAll(async () => {
  await cell.stop();
  await target.stop();
  rmSync(folder, { recursive: true, force: true });
});

test("a killed worker's due jobs start within its lease and 3 s, and those of other shards as before", async () => {
  // A worker that joins has its share within 20 s.
  await until(hasSettled, 120_000);
  const pauses = await watchPauses(cell.postgres.url, () => cell.members);
  const load = beginLoad();
  await Bun.sleep(AHEAD_MS.end);
  const begunAt = Date.now();
  await Bun.sleep(BEFORE_MS);
  const beforeMs = pauses.longestMs();
  const [worker] = cell.of("worker");
  const name = worker?.name ?? "";
  // Else the other worker would see on the same machine that the process is gone, and not wait for the lease.
  await cell.postgres.query("UPDATE nodes SET process = 'of another machine' WHERE name = $1", [name]);
  const shards = (await ownersOf()).get(name) ?? new Set();
  const killedAt = Date.now();
  await worker?.kill();
  await Bun.sleep(AFTER_MS);
  const endedAt = Date.now();
  await load.stop();
  const afterMs = pauses.longestMs();
  await pauses.stop();
  await until(() => target.arrivals.length >= load.dueAts.size, 60_000);

  const jobs = [...load.dueAts].map(([id, { dueAt, project }]) => ({
    dueAt,
    isOrphan: shards.has(shardOf(project, SHARDS_PER_REGION)),
    lateMs: (target.arrivals.find(({ jobId }) => jobId === id)?.at ?? Number.POSITIVE_INFINITY) - dueAt,
  }));
  const lateness = (isOrphan: boolean, from: number, to: number) =>
    jobs
      .filter((job) => job.isOrphan === isOrphan && job.dueAt >= from && job.dueAt < to)
      .map(({ lateMs }) => lateMs);
  const p99 = (values: number[]) => values.toSorted((a, b) => a - b)[Math.floor(values.length * 0.99)] ?? 0;
  const others = {
    before: p99(lateness(false, begunAt, killedAt)),
    after: p99(lateness(false, killedAt, endedAt)),
  };
  const orphans = lateness(true, begunAt, endedAt);
  const latestMs = Math.max(...orphans);
  console.log(
    `${jobs.length} jobs, ${orphans.length} of them the dead worker's: the latest ${latestMs} ms late (lease ${LEASE_TTL_MS} ms); ` +
      `p99 of the others ${others.before} ms before and ${others.after} ms after; the machine's longest pause ${beforeMs} and ${afterMs} ms`,
  );
  const part = shards.size / SHARDS_PER_REGION;
  expect([part, part > 0.2 && part < 0.8]).toEqual([part, true]);
  // The shards did stand still for a while.
  expect(latestMs).toBeGreaterThan(LEASE_TTL_MS / 2);
  expect(latestMs).toBeLessThan(LEASE_TTL_MS + STARTS_AFTER_LEASE_MS + afterMs);
  expect(others.after - others.before).toBeLessThan(P99_MOVES_MS_MAX + afterMs);
  expect(new Set(target.arrivals.map(({ jobId }) => jobId)).size).toBe(target.arrivals.length);
});

/** The shards of the projects' region by the names of their owners. */
async function ownersOf(): Promise<Map<string, Set<number>>> {
  const rows = await cell.postgres.query<{ name: string; shard: number }>(
    "SELECT n.name, s.shard FROM shards s JOIN nodes n ON n.id = s.owner WHERE s.region = 0 AND s.lease_until > now()",
  );
  return new Map(
    [...Map.groupBy(rows, ({ name }) => name)].map(([name, of]) => [
      name,
      new Set(of.map(({ shard }) => shard)),
    ]),
  );
}

const STANDS_STILL_MS = 6_000;

/** Whether both workers own shards, and none has moved for a while. */
async function hasSettled(): Promise<boolean> {
  const before = await ownersOf();
  await Bun.sleep(STANDS_STILL_MS);
  const after = await ownersOf();
  return before.size === 2 && [...before].every(([name, shards]) => Bun.deepEquals(shards, after.get(name)));
}

/** Creates 200 jobs a second, in batches, each of another project. */
function beginLoad() {
  const dueAts = new Map<string, { dueAt: number; project: number }>();
  const pending = new Set<Promise<void>>();
  let count = 0;
  const timer = setInterval(() => {
    const posting: Promise<void> = post(projects[count++ % projects.length]).finally(() =>
      pending.delete(posting),
    );
    pending.add(posting);
  }, BATCH_EVERY_MS);
  async function post(project: MadeProject | undefined): Promise<void> {
    if (project === undefined) return;
    const jobs = Array.from({ length: BATCH_JOBS }, (_, index) => {
      const aheadMs = AHEAD_MS.least + ((AHEAD_MS.end - AHEAD_MS.least) * index) / BATCH_JOBS;
      return { target_url: target.url, run_at: new Date(Date.now() + aheadMs).toISOString() };
    });
    const response = await fetch(`${cell.bases[0]}/v2/jobs/batch`, {
      method: "POST",
      headers: { authorization: `Bearer ${project.key}`, "content-type": "application/json" },
      body: JSON.stringify({ jobs }),
    });
    expect(response.status).toBe(201);
    const { data } = (await response.json()) as { data: { id: string; run_at: string }[] };
    for (const { id, run_at } of data) dueAts.set(id, { dueAt: Date.parse(run_at), project: project.no });
  }
  return {
    dueAts,
    async stop() {
      clearInterval(timer);
      await Promise.all(pending);
    },
  };
}
