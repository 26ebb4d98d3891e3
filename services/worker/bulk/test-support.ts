import { randomBytes } from "node:crypto";
import type { BulkAction, BulkFilter } from "../../../shared/domain/bulk.ts";
import { BULK_PREFIX, createIdSource, retypeId } from "../../../shared/domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../../shared/domain/scope.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { startBulk } from "../../../shared/store/queue/bulk/counting.ts";
import { listOpenBulks, type OpenBulk } from "../../../shared/store/queue/bulk/open-bulks.ts";
import { settleAttempts } from "../../../shared/store/queue/settle.ts";
import { createShards, type HeldShard } from "../../../shared/store/queue/shards.ts";
import { type BulkRow, createBulk, findBulk } from "../../../shared/store/resources/bulk-operations.ts";
import type { JobToCreate } from "../../../shared/store/resources/job-creation.ts";
import { takeShard } from "../../../shared/store/schedule-test-support.ts";
import { failedWith, settlementOf, type TestStore, until } from "../../../shared/store/test-support.ts";
import { keyCause } from "../../../test/support/cause.ts";
import { countPage } from "./count-page.ts";
import { judgePage } from "./judge-page.ts";

/** Bulk operations as tests carry them out, step by step, in the words of a worker. */

export const SHARD = 2;
export const ids = createIdSource(randomBytes);

/** A worker that owns the shard, over a database that the test may choose. */
export interface TestWorker {
  held: HeldShard;
  /** The operation as a look finds it; undefined if nothing is to be done for it. */
  find(id: string): Promise<OpenBulk | undefined>;
  /** Counts one page. Answers false after the last one, or if there was none. */
  count(id: string): Promise<boolean>;
  /** Counts all pages. */
  countAll(id: string): Promise<void>;
  start(id: string): Promise<boolean>;
  /** Judges one page; null if it may not. `remembered` is the operation as the worker found it before. */
  judge(id: string, remembered?: OpenBulk): ReturnType<typeof judgePage>;
  /** Counts and judges until the operation is over. */
  finish(id: string): Promise<void>;
}

export async function startWorkerOf(
  store: TestStore,
  { db = store.db, held }: { db?: Database; held?: HeldShard } = {},
): Promise<TestWorker> {
  await createShards(store.db, ["us-east"], SHARD + 1);
  const own = held ?? (await takeShard(store, SHARD));
  const placeOf = ({ projectNo, environment, id }: OpenBulk) => ({ projectNo, environment, id, held: own });
  const worker: TestWorker = {
    held: own,
    async find(id) {
      return (await listOpenBulks(db, [SHARD])).find((bulk) => bulk.id === id);
    },
    async count(id) {
      const bulk = await worker.find(id);
      if (bulk?.status !== "counting") return false;
      const counted = await countPage(db, bulk, placeOf(bulk), Date.now());
      return counted !== "gone" && counted.countedTo !== null;
    },
    async countAll(id) {
      while (await worker.count(id));
    },
    async start(id) {
      const bulk = await worker.find(id);
      return bulk !== undefined && startBulk(db, placeOf(bulk));
    },
    async judge(id, remembered) {
      const bulk = remembered ?? (await worker.find(id));
      if (bulk?.status !== "running") return null;
      return judgePage(db, bulk, placeOf(bulk), { ids, now: Date.now() });
    },
    async finish(id) {
      await worker.countAll(id);
      for (let judged = await worker.judge(id); judged !== null && !judged.isOver; ) {
        await Bun.sleep(judged.waitMs);
        judged = await worker.judge(id);
      }
    },
  };
  return worker;
}

export interface BulkWish {
  perSecond?: number;
  dryRun?: boolean;
  environment?: Environment;
  shard?: number;
}

/** Ids of one millisecond that come from several sources are in no order. */
async function passMillisecond(): Promise<void> {
  const now = Date.now();
  await until(() => Date.now() > now);
}

/** Asks for an operation as a client does, later than all jobs so far and before all others. Answers its id. */
export async function askFor(
  store: TestStore,
  projectNo: ProjectNo,
  action: BulkAction,
  filter: BulkFilter,
  { perSecond = 1_000, dryRun = false, environment = "production", shard = SHARD }: BulkWish = {},
): Promise<string> {
  await passMillisecond();
  const cause = keyCause();
  const id = retypeId(cause.requestId, BULK_PREFIX);
  const bulk = { id, action, filter, perSecond, dryRun, shard };
  const created = await createBulk(store.db, { projectNo, environment }, bulk, cause, null);
  if (created !== "created") throw new Error(created);
  await passMillisecond();
  return id;
}

export async function bulkOf(
  store: TestStore,
  projectNo: ProjectNo,
  id: string,
  environment: Environment = "production",
): Promise<BulkRow> {
  const bulk = await findBulk(store.db, { projectNo, environment }, id);
  if (bulk === null) throw new Error(`there is no ${id}`);
  return bulk;
}

export interface FailureWish extends Partial<JobToCreate> {
  error?: string;
  responseStatus?: number | null;
  region?: Region;
}

/** Jobs whose only attempt has failed, the oldest first. */
export async function addFailedJobs(
  store: TestStore,
  nodeId: number,
  projectNo: ProjectNo,
  count: number,
  { error = "it broke", responseStatus = 500, ...wish }: FailureWish = {},
): Promise<string[]> {
  const jobs = await store.addJobs(projectNo, count, { maxAttempts: 1, ...wish });
  for (const id of jobs) {
    const { region = "us-east", environment = "production" } = wish;
    const started = await store.start(nodeId, projectNo, id, { region, environment });
    const failed = { ...failedWith("over"), error, responseStatus, region, environment };
    await settleAttempts(store.db, [settlementOf(started, failed)]);
  }
  return jobs;
}

/** The standing of each job, in the given order: its status, and its attempts with one in progress or owed by hand. */
export async function standings(store: TestStore, jobs: readonly string[], uuidOf: (id: string) => string) {
  const rows = await store.query<{ id: string; standing: string }>(
    `SELECT j.id, coalesce(
              (SELECT (ARRAY['succeeded', 'failed', 'canceled'])[e.status + 1] || ' ' || e.attempts FROM ended_jobs e WHERE e.job_id = j.id),
              (SELECT CASE WHEN o.run_id IS NULL THEN 'queued ' ELSE 'running ' END || o.attempt FROM open_jobs o WHERE o.job_id = j.id)
            ) AS standing
       FROM jobs j WHERE j.id = ANY ($1::uuid[])`,
    [jobs.map(uuidOf)],
  );
  const standingOf = new Map(rows.map(({ id, standing }) => [id, standing]));
  return jobs.map((id) => standingOf.get(uuidOf(id)));
}
