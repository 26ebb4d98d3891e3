import type { OwedAttempt, Placed } from "../../../shared/domain/owed.ts";
import type { Metrics } from "../../../shared/platform/metrics/metrics.ts";
import { type Batcher, createBatcher } from "../../../shared/store/database/batch.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { type Created, createJobs, type JobToCreate } from "../../../shared/store/resources/job-creation.ts";
import type { Announcer } from "../announcer.ts";

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

/**
 * Creates jobs by group commit. A delivery node is told of each job that may start, and the workers of all others that are due
 * soon. The jobs of a batch go to the workers, whose lanes take turns.
 */
export function createJobCreation(options: {
  db: Database;
  announcer: Announcer;
  metrics: Metrics;
}): JobCreation {
  const { db, announcer, metrics } = options;
  const timed = metrics.statement("create_jobs");
  const jobsCreated = metrics.jobsCreated.of({ origin: "api" });
  const knownLanes = new Set<string>();
  return createBatcher<readonly JobToCreate[], Created[]>({
    async run(requests) {
      if (knownLanes.size > KNOWN_LANES_MAX) knownLanes.clear();
      const jobs = requests.flat();
      const created = await timed(jobs.length, () => createJobs(db, jobs, knownLanes));
      jobsCreated.inc(created.filter(({ kind }) => kind === "created").length);
      const startable: Placed<OwedAttempt>[] = [];
      const others: Placed<OwedAttempt>[] = [];
      let taken = 0;
      const answers = requests.map(({ length }) => {
        taken += length;
        const answer = created.slice(taken - length, taken);
        for (const each of answer) {
          if (each.kind === "created")
            (each.mayStart && length === 1 ? startable : others).push(...each.owed);
        }
        return answer;
      });
      announcer.announce(startable, others);
      return answers;
    },
    itemsMax: REQUESTS_PER_STATEMENT_MAX,
    gatherMs: GATHER_MS,
    // However many requests of one project wait, those of another stand before all but the first of them.
    ownerOf: ([job]) => job?.projectNo,
    bytesOf,
    bytesMax: BYTES_PER_STATEMENT_MAX,
  });
}

function bytesOf(jobs: readonly JobToCreate[]): number {
  return jobs.reduce((sum, job) => sum + BYTES_PER_JOB + Buffer.byteLength(job.payload), 0);
}
