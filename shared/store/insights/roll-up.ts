import { bucketEnd, bucketStart, LEVELS } from "../../domain/insights/levels.ts";
import type { Database } from "../database/database.ts";
import { addNewJobs, recountJobs } from "./new-jobs.ts";
import { addNewRuns } from "./new-runs.ts";
import { type Part, Parts, writeStep } from "./parts.ts";
import { completeUntil, type Outset, type Progress } from "./progress.ts";
import { type Ends, skipToNextJobs } from "./skipping.ts";

/**
 * The roll-up makes figures of committed rows, by steps. A step reads the rows since the step before it, and writes their figures
 * together with how far it has come (progress.ts). Runs are found by the numbers of the transactions that recorded them, jobs by the
 * times in their ids.
 */

/** A step looks at the runs of so many transactions at most, and at so much time of jobs, so that its statements end in time. */
const TRANSACTIONS_PER_STEP_MAX = 10_000;
const CREATED_PER_STEP_MS_MAX = 120_000;
/** A job that a client was told of was stored within less than this after the time in its id. */
const STORED_WITHIN_MS = 3_000;
/** A job's id may be so much older than its row: several timeouts of statements that were sent again. */
const RECOUNTED_AFTER_MS = 120_000;

export interface Step {
  /** Null if this step was not written, because another step was written meanwhile. */
  next: Progress | null;
  parts: readonly Part[];
  /** True if all is counted, except later rows and jobs that are younger than STORED_WITHIN_MS. */
  isCaughtUp: boolean;
}

/**
 * Takes the step from this outset. A process that dies in a step leaves the whole step or nothing of it. `share` makes the step
 * smaller: a step that did not end in time would not end in time when it is repeated.
 */
export async function takeStep(
  db: Database,
  { progress: before, now, settledBefore, isSamePostgres }: Outset,
  share = 1,
): Promise<Step> {
  const transactionsMax = Math.ceil(TRANSACTIONS_PER_STEP_MAX * share);
  const known = isSamePostgres ? before : beginAnew(before, { now, settledBefore });
  const progress = await skipToNextJobs(db, known, endsOf(known, now));
  const settledUntil = Math.max(
    progress.settledUntil,
    Math.min(settledBefore, progress.settledUntil + transactionsMax),
  );
  const { createdUntil, recountedUntil } = looksAt(progress, now, CREATED_PER_STEP_MS_MAX * share);
  const next = { ...progress, settledUntil, createdUntil, recountedUntil };

  const parts = new Parts();
  if (settledUntil > progress.settledUntil) {
    await addNewRuns(db, parts, progress, { fromXid: progress.settledUntil, beforeXid: settledUntil });
  }
  await addNewJobs(db, parts, progress, { fromAt: progress.createdUntil, untilAt: createdUntil });
  await recountJobs(db, parts, progress, { fromAt: progress.recountedUntil, untilAt: recountedUntil });

  const found = [...parts.all].filter(hasSomething);
  const isWritten = await writeStep(db, found, next);
  return {
    next: isWritten ? { ...next, revision: next.revision + 1 } : null,
    parts: isWritten ? found : [],
    isCaughtUp: settledUntil >= settledBefore && createdUntil >= Math.floor(now - STORED_WITHIN_MS),
  };
}

/** The transactions of another Postgres have other numbers. Runs recorded there that are not counted yet stay uncounted. */
function beginAnew(
  progress: Progress,
  { now, settledBefore }: Pick<Outset, "now" | "settledBefore">,
): Progress {
  return { ...progress, settledUntil: settledBefore, countedSince: now };
}

/**
 * The instants up to which a step counts jobs, and counts them again. It counts again only what earlier steps have counted. If the
 * clock was set back, jobs that were counted ahead of it are counted twice until the second count.
 */
function looksAt(progress: Progress, now: number, msMax: number): Ends {
  const { createdUntil, recountedUntil } = progress;
  const { createdUntil: storedUntil, recountedUntil: againUntil } = endsOf(progress, now);
  if (createdUntil > now)
    return { createdUntil: storedUntil, recountedUntil: Math.min(recountedUntil, againUntil) };
  return {
    createdUntil: Math.max(createdUntil, Math.min(storedUntil, createdUntil + Math.ceil(msMax))),
    recountedUntil: Math.max(
      recountedUntil,
      Math.min(againUntil, bucketEnd(0, bucketStart(0, recountedUntil + msMax))),
    ),
  };
}

/** The instants up to which jobs are stored, and up to which they can be counted again. */
function endsOf({ createdUntil }: Progress, now: number): Ends {
  return {
    createdUntil: Math.floor(now - STORED_WITHIN_MS),
    recountedUntil: bucketStart(0, Math.min(createdUntil, now - RECOUNTED_AFTER_MS)),
  };
}

function hasSomething({ figures }: Part): boolean {
  const { created, succeeded, failed, timedOut } = figures;
  return created !== 0 || succeeded + failed + timedOut > 0;
}

/** The level whose next bucket can be closed, provided that the roll-up has caught up; null if there is none. */
export function closableLevel(progress: Progress): number | null {
  for (let level = 1; level < LEVELS.length; level++) {
    const closedUntil = progress.closedUntil[level - 1] ?? 0;
    if (closedUntil + (LEVELS[level]?.widthMs ?? 0) <= completeUntil(progress, level)) return level;
  }
  return null;
}
