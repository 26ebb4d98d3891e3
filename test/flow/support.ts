import { createHmac, randomBytes } from "node:crypto";
import { sendCommands } from "../../shared/bus/hints.ts";
import { createIdSource, RUN_PREFIX } from "../../shared/domain/ids.ts";
import type { Environment } from "../../shared/domain/scope.ts";
import { StoreUnavailable } from "../../shared/store/database/database.ts";
import type { JobRow } from "../../shared/store/resources/jobs.ts";
import { type Retried, retryRun } from "../../shared/store/resources/jobs-by-hand.ts";
import type { ProjectRow } from "../../shared/store/resources/projects.ts";
import type { RunRow } from "../../shared/store/resources/runs.ts";
import { orRefused } from "../../shared/store/test-support.ts";
import { keyCause } from "../support/cause.ts";
import type { Cell } from "../support/cell.ts";
import { watchPauses } from "../support/pauses.ts";
import type { Arrival } from "../support/target.ts";

const LOOK_EVERY_MS = 20;
const UNTIL_TIMEOUT_MS = 120_000;
const ALL_ENDED_MS_MAX = 180_000;
const TERMINAL = ["succeeded", "failed", "canceled"];

/** Repeats `find` until it answers something. Rejects with an error of `find`, or if it has found nothing in time. */
export async function until<T>(
  find: () => Promise<T | undefined | false> | T | undefined | false,
  timeoutMs = UNTIL_TIMEOUT_MS,
): Promise<T> {
  const giveUpAt = performance.now() + timeoutMs;
  for (;;) {
    // Some tests cut off the database meanwhile, and `find` may need it.
    const found = await Promise.try(find).catch((error: unknown) => {
      if (!(error instanceof StoreUnavailable)) throw error;
      return undefined;
    });
    if (found !== undefined && found !== false) return found;
    if (performance.now() > giveUpAt) throw new Error(`did not come in ${timeoutMs} ms: ${find}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

export function untilJob(
  cell: Cell,
  project: ProjectRow,
  id: string,
  holds: (job: JobRow) => boolean,
  environment?: Environment,
): Promise<JobRow> {
  return until(async () => {
    const job = await cell.job(project, id, environment);
    return holds(job) && job;
  });
}

export const untilEnded = (cell: Cell, project: ProjectRow, id: string, environment?: Environment) =>
  untilJob(cell, project, id, (job) => TERMINAL.includes(job.status), environment);

/** Waits until all jobs have ended. Answers their statuses, in their order. */
export async function untilAllEnded(
  cell: Cell,
  project: ProjectRow,
  ids: readonly string[],
  timeoutMs = ALL_ENDED_MS_MAX,
): Promise<string[]> {
  // One query asks for all jobs, since many queries would be most of the load.
  await until(async () => {
    const [row] = await cell.db.run<{ open: number }>(
      "open_of_project",
      "SELECT count(*)::int AS open FROM open_jobs WHERE project_no = $1",
      [project.no],
    );
    return row?.open === 0;
  }, timeoutMs);
  const statuses: string[] = [];
  // The queries run one after the other: the last of hundreds at once would wait too long for a connection of the pool.
  for (const id of ids) statuses.push((await cell.job(project, id)).status);
  return statuses;
}

/** A node that hears no worker for 2 s looks for due work by itself, and does not say what an attempt has waited for. */
const STILL_MS_MAX = 1_000;
const TRIALS_MAX = 5;

/** Repeats a trial in which the machine stood still; it is told how many it is. Answers what the last trial has found. */
export async function findUndisturbed<T>(cell: Cell, trial: (trialNumber: number) => Promise<T>): Promise<T> {
  const pauses = await watchPauses(cell.url);
  try {
    for (let trialNumber = 1; ; trialNumber++) {
      pauses.longestMs();
      const found = await trial(trialNumber);
      if (pauses.longestMs() < STILL_MS_MAX || trialNumber === TRIALS_MAX) return found;
    }
  } finally {
    await pauses.stop();
  }
}

/** The attempts that arrived twice, as (job, attempt). No test may find one. */
export function repeatedArrivals(arrivals: readonly Arrival[]): string[] {
  const names = arrivals.map(({ jobId, attempt }) => `${jobId} ${attempt}`);
  return names.filter((name, index) => names.indexOf(name) !== index);
}

const runIds = createIdSource(randomBytes);

/** Asks for a manual retry as the gateway does; the command tells the worker. */
export async function retry(
  cell: Cell,
  project: ProjectRow,
  runId: string,
): Promise<Retried | { kind: "refused" }> {
  const scope = { projectNo: project.no, environment: "production" as const, sinceAt: 0 };
  const newRunId = runIds.next(RUN_PREFIX, cell.clock.now());
  const retried = await orRefused(retryRun(cell.db, scope, runId, newRunId, keyCause()));
  if (retried.kind === "retried") sendCommands(cell.bus, retried.owed, cell.clock.now());
  return retried;
}

/** The run that a retry made. */
export async function retried(cell: Cell, project: ProjectRow, runId: string): Promise<RunRow> {
  const answer = await retry(cell, project, runId);
  if (answer.kind !== "retried") throw new Error(`not retried: ${answer.kind}`);
  return answer.run;
}

export const signatureOf = (secret: string, body: string) =>
  createHmac("sha256", secret).update(body).digest("hex");

/** A gate at which every request waits until it is opened. */
export function makeGate(): { passed: Promise<void>; open(): void } {
  const { promise, resolve } = Promise.withResolvers<void>();
  return { passed: promise, open: resolve };
}
