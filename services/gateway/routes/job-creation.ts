import type { Bus } from "../../../shared/bus/bus.ts";
import { sendCommands } from "../../../shared/bus/hints.ts";
import type { Clock } from "../../../shared/platform/clock.ts";
import type { Metrics } from "../../../shared/platform/metrics/metrics.ts";
import { type Batcher, createBatcher } from "../../../shared/store/database/batch.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { type Created, createJobs, type JobToCreate } from "../../../shared/store/resources/job-creation.ts";

/** Bounds of one statement. Larger ones save little and make the first request wait for the last. */
const REQUESTS_PER_STATEMENT_MAX = 100;
const BYTES_PER_STATEMENT_MAX = 1_048_576;
/** Added to the payload of each job, so that many small jobs have a weight, too. */
const BYTES_PER_JOB = 1_024;
/** Under load, jobs are gathered for this long, so that the statements and messages that follow are shared. */
const GATHER_MS = 3;
/** The memory of known lanes is cleared when it is full. Then each lane costs one needless look at its row. */
const KNOWN_LANES_MAX = 100_000;

/** Creates the jobs of each request together or not at all. Their results are all of one kind. */
export type JobCreation = Batcher<readonly JobToCreate[], Created[]>;

/** Creates jobs by group commit, and tells the workers of jobs that are due soon. */
export function createJobCreation(options: {
  db: Database;
  bus: Bus;
  clock: Clock;
  metrics: Metrics;
}): JobCreation {
  const { db, bus, clock, metrics } = options;
  const timed = metrics.statement("create_jobs");
  const jobsCreated = metrics.jobsCreated.of({ origin: "api" });
  const knownLanes = new Set<string>();
  return createBatcher<readonly JobToCreate[], Created[]>({
    async run(requests) {
      if (knownLanes.size > KNOWN_LANES_MAX) knownLanes.clear();
      const jobs = requests.flat();
      const created = await timed(jobs.length, () => createJobs(db, jobs, knownLanes));
      const owed = created.flatMap((answer) => (answer.kind === "created" ? answer.owed : []));
      jobsCreated.inc(created.filter(({ kind }) => kind === "created").length);
      sendCommands(bus, owed, clock.now());
      let taken = 0;
      return requests.map(({ length }) => {
        taken += length;
        return created.slice(taken - length, taken);
      });
    },
    itemsMax: REQUESTS_PER_STATEMENT_MAX,
    gatherMs: GATHER_MS,
    bytesOf,
    bytesMax: BYTES_PER_STATEMENT_MAX,
  });
}

function bytesOf(jobs: readonly JobToCreate[]): number {
  return jobs.reduce((sum, job) => sum + BYTES_PER_JOB + Buffer.byteLength(job.payload), 0);
}
