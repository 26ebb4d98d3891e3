import { median } from "../bench/harness/measure.ts";
import { untilAllEnded } from "../flow/support.ts";
import { countFds } from "../runtime-contract/until.ts";
import { CELL_CONNECTIONS, startCell } from "../support/cell.ts";
import { startTarget } from "../support/target.ts";

/**
 * A delivery node under attack, as a program of its own, so that its memory is apart from its targets'. The arguments
 * are the number of attempts to warm up with, the number of later attempts and of rounds, and the targets' URLs.
 * It prints a line of JSON before the first round and after each round.
 */

export interface AttackRound {
  /** The attempts since the warm-up. */
  attempts: number;
  rssBytes: number;
  heapBytes: number;
  /** The median lateness of a neighbour's jobs at a good target, in milliseconds. */
  neighbourLateMs: number;
  /** Descriptors beyond the service's first ones and those of the cell's pools. */
  fdsLeft: number;
}

const ATTEMPT_TIMEOUT_MS = 1_000;
/** The number of jobs created at once, each with one attempt. */
const BATCH_JOBS = 500;
/** Within this time the node gives up connections that are never accepted, and closes idle ones. */
const QUIET_MS_MAX = 20_000;
const QUIET_LOOK_MS = 100;
const MEMORY_LOOKS = 20;
/** Memory is judged, and not speed. */
const ENDED_MS_MAX = 300_000;

const NEIGHBOUR_JOBS = 100;
const NEIGHBOUR_EVERY_MS = 50;
/** The time before the neighbour's first job is due. */
const LEAD_MS = 500;

const [warmUpText, attemptsText, roundsText, ...urls] = process.argv.slice(2);
const [warmUp, attempts, rounds] = [Number(warmUpText), Number(attemptsText), Number(roundsText)];
const cell = await startCell();
const good = startTarget();
const fdsBefore = countFds();
await cell.startWorker();
await cell.startDelivery({ attemptTimeoutMs: ATTEMPT_TIMEOUT_MS });
const project = await cell.addProject();
await cell.db.run("set_limit", "UPDATE flows SET concurrency = 400 WHERE project_no = $1", [project.no]);

const neighbour = await cell.addProject();

await attack(warmUp);
let neighbourLateMs = await deliverToNeighbour();
for (let round = 0, done = 0; round <= rounds; round++) {
  await untilQuiet();
  const { rss, heapUsed } = await measureMemory();
  const line: AttackRound = {
    attempts: done,
    rssBytes: rss,
    heapBytes: heapUsed,
    neighbourLateMs,
    fdsLeft: Math.max(0, countFds() - fdsBefore - CELL_CONNECTIONS),
  };
  console.log(JSON.stringify(line));
  if (round < rounds) {
    [neighbourLateMs] = await Promise.all([deliverToNeighbour(), attack(attempts / rounds)]);
  }
  done += attempts / rounds;
}
await cell.stop();
await good.stop();
// An embedded Postgres is a child of this process, and would keep it running.
process.exit(0);

async function attack(count: number): Promise<void> {
  for (let begun = 0; begun < count; begun += BATCH_JOBS) {
    const jobs = Array.from({ length: Math.min(BATCH_JOBS, count - begun) }, (_, index) => ({
      targetUrl: urls[index % urls.length] ?? "",
      maxAttempts: 1,
    }));
    await untilAllEnded(cell, project, await cell.addJobs(project, jobs), ENDED_MS_MAX);
  }
}

/** Creates the neighbour's jobs, which are due at fixed intervals. Answers their median lateness in milliseconds. */
async function deliverToNeighbour(): Promise<number> {
  const firstAt = Date.now() + LEAD_MS;
  const dueAts = Array.from({ length: NEIGHBOUR_JOBS }, (_, index) => firstAt + index * NEIGHBOUR_EVERY_MS);
  const wishes = dueAts.map((runAt) => ({ targetUrl: good.url, runAt }));
  const jobIds = await cell.addJobs(neighbour, wishes);
  await untilAllEnded(cell, neighbour, jobIds, ENDED_MS_MAX);
  // A job that a busy machine delivered twice counts by its first arrival.
  const arrivedAt = new Map(
    good.arrivals
      .splice(0)
      .reverse()
      .map(({ jobId, at }) => [jobId, at]),
  );
  return median(jobIds.map((id, index) => (arrivedAt.get(id) ?? Number.NaN) - (dueAts[index] ?? 0)));
}

/** Waits until only the first descriptors and those of the pools are open, or until the time for that is over. */
async function untilQuiet(): Promise<void> {
  const giveUpAt = performance.now() + QUIET_MS_MAX;
  while (countFds() > fdsBefore + CELL_CONNECTIONS && performance.now() < giveUpAt) {
    await Bun.sleep(QUIET_LOOK_MS);
  }
}

/** The least of several measurements: each collection returns more freed pages to the system. */
async function measureMemory(): Promise<NodeJS.MemoryUsage> {
  let least = process.memoryUsage();
  for (let look = 0; look < MEMORY_LOOKS; look++) {
    Bun.gc(true);
    await Bun.sleep(QUIET_LOOK_MS);
    const now = process.memoryUsage();
    if (now.rss < least.rss) least = now;
  }
  return least;
}
