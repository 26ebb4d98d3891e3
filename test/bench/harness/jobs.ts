import { randomBytes } from "node:crypto";
import { createIdSource, JOB_PREFIX } from "../../../shared/domain/ids.ts";
import { shardOf } from "../../../shared/domain/shard.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { createJobs, type JobToCreate } from "../../../shared/store/resources/job-creation.ts";

/** A payload of 200 bytes. */
export const PAYLOAD = JSON.stringify({ text: "x".repeat(189) });
export const SHARDS_PER_REGION = 64;
const STORED_BYTES_PER_STATEMENT = 100_000;
/** Jobs with a flow key take some 50 µs each, and a statement has 5 s. */
const STORED_JOBS_PER_STATEMENT_MAX = 10_000;
const ids = createIdSource(randomBytes);

export type Wish = Pick<JobToCreate, "projectNo" | "targetUrl" | "runAt"> & Partial<JobToCreate>;

/** A job as the benchmarks make them: in production and us-east, unless told otherwise. */
export function newJob(wish: Wish, shardsPerRegion = SHARDS_PER_REGION): JobToCreate {
  return {
    id: ids.next(JOB_PREFIX, Date.now()),
    environment: "production",
    region: "us-east",
    shard: shardOf(wish.projectNo, shardsPerRegion),
    payload: "{}",
    maxAttempts: 5,
    baseSeconds: 10,
    capSeconds: 3_600,
    cause: null,
    ...wish,
  };
}

/** Commits jobs as a gateway does, without announcing them. */
export async function storeJobs(db: Database, count: number, wishOf: (index: number) => Wish): Promise<void> {
  const lanes = new Set<string>();
  const perBytes = Math.ceil(STORED_BYTES_PER_STATEMENT / (wishOf(0).payload ?? "{}").length);
  const perStatement = Math.min(perBytes, STORED_JOBS_PER_STATEMENT_MAX);
  for (let stored = 0; stored < count; stored += perStatement) {
    const size = Math.min(perStatement, count - stored);
    await createJobs(
      db,
      Array.from({ length: size }, (_, index) => newJob(wishOf(stored + index))),
      lanes,
    );
  }
}
