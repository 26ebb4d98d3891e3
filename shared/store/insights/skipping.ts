import { firstIdAt, idTimeMs, idToUuid, JOB_PREFIX, uuidToId } from "../../domain/ids.ts";
import { bucketStart, LEVELS } from "../../domain/insights/levels.ts";
import { ALL_ENVIRONMENTS } from "../database/codes.ts";
import { type Database, epochMs } from "../database/database.ts";
import type { Progress } from "./progress.ts";

/**
 * Passes over time in which nothing was done, after the service has stood still for long, or a test clock was put ahead. No
 * statement is run while the roll-up is nearly up to date.
 */

/** Time of jobs is skipped from this length on, which takes several steps. */
const SKIPPED_FROM_MS = 600_000;
/** Buckets are skipped from this number on: each takes a step. */
const SKIPPED_FROM_BUCKETS = 10;

/** The instants up to which jobs are to be counted, and counted again, at most. */
export interface Ends {
  createdUntil: number;
  recountedUntil: number;
}

/** Takes the time before the next job as counted, and as counted again: jobs that are stored late have been stored by then. */
export async function skipToNextJobs(db: Database, progress: Progress, ends: Ends): Promise<Progress> {
  const { createdUntil, recountedUntil } = progress;
  const skip = async (fromAt: number, untilAt: number) =>
    untilAt - fromAt < SKIPPED_FROM_MS ? fromAt : Math.min(await findNextJobAt(db, fromAt), untilAt);
  return {
    ...progress,
    createdUntil: await skip(createdUntil, ends.createdUntil),
    recountedUntil: bucketStart(0, await skip(recountedUntil, ends.recountedUntil)),
  };
}

/**
 * The start of the next bucket of a level in which there is something, from `fromAt` on, and at most of the bucket in which
 * `completeUntil` lies.
 */
export async function skipToNextBucket(
  db: Database,
  level: number,
  { fromAt, completeUntil }: { fromAt: number; completeUntil: number },
): Promise<number> {
  const widthMs = LEVELS[level]?.widthMs ?? 0;
  if (completeUntil - fromAt < SKIPPED_FROM_BUCKETS * widthMs) return fromAt;
  const [row] = await db.run<{ at: number | null }>("find_next_insights", NEXT_PART, [
    level - 1,
    new Date(fromAt).toISOString(),
  ]);
  return bucketStart(level, Math.min(row?.at ?? Number.POSITIVE_INFINITY, completeUntil));
}

async function findNextJobAt(db: Database, fromAt: number): Promise<number> {
  const [row] = await db.run<{ id: string }>("find_next_job", NEXT_JOB, [
    idToUuid(firstIdAt(JOB_PREFIX, fromAt)),
  ]);
  return row === undefined ? Number.POSITIVE_INFINITY : idTimeMs(uuidToId(JOB_PREFIX, row.id));
}

const NEXT_JOB = `
SELECT j.id
  FROM lanes l
 CROSS JOIN LATERAL (
       SELECT j.id FROM jobs j
        WHERE j.project_no = l.project_no AND j.environment = l.environment AND j.region = l.region AND j.id >= $1
        ORDER BY j.id LIMIT 1) j
 ORDER BY j.id LIMIT 1`;

const NEXT_PART = `
SELECT ${epochMs("min(i.at)")} AS at
  FROM projects p
 CROSS JOIN unnest(${ALL_ENVIRONMENTS}::smallint[]) AS e (environment)
 CROSS JOIN LATERAL (
       SELECT i.at FROM insights i
        WHERE i.project_no = p.no AND i.environment = e.environment AND i.level = $1 AND i.at >= $2::timestamptz
        ORDER BY i.at LIMIT 1) i`;
