import { importPeer } from "../install.ts";
import {
  ATTEMPTS_MAX,
  type NewPeerJob,
  type Peer,
  type PeerJob,
  type ProgramSettings,
} from "./library-program.ts";
import type { StoredQueries } from "./product.ts";

interface GraphileWorker {
  makeWorkerUtils(options: object): Promise<{
    migrate(): Promise<void>;
    addJobs(jobs: object[]): Promise<{ id: string }[]>;
  }>;
  run(options: object): Promise<unknown>;
  Logger: new (factory: () => () => void) => object;
}

const TASK = "deliver";
/** Many deliveries at once, since a delivery waits for its target most of the time. */
const CONCURRENCY = 100;
/**
 * The pool may have a connection for each delivery and these more, as the documentation of the option advises. Most of
 * them stay unopened while jobs are fetched and released together.
 */
const CONNECTIONS_BESIDE = 2;
/** The size in the fastest settings of the page "Performance". */
const LOCAL_QUEUE = 500;
/** Polling alone finds jobs that become due. The CPU a job includes the polling. */
const PUNCTUAL_POLL_MS = 10;

/**
 * The page "Performance" names these as its fastest settings: a local queue of 500, and completed jobs released
 * together without delay. Polling stays at its 2 s where every job is due when it is created, since such jobs are
 * announced.
 */
export async function openGraphileWorker({
  server,
  isPunctual,
  concurrency = CONCURRENCY,
}: ProgramSettings): Promise<Peer> {
  const { makeWorkerUtils, run, Logger } = await importPeer<GraphileWorker>("graphile-worker");
  // The default logger writes a line for every job.
  const logger = new Logger(() => () => undefined);
  const utils = await makeWorkerUtils({ connectionString: server, logger });
  await utils.migrate();
  return {
    async add(jobs: NewPeerJob[]) {
      const specs = jobs.map(({ data, runAt }) => ({
        ...{ identifier: TASK, payload: data, maxAttempts: ATTEMPTS_MAX },
        ...(runAt === null ? {} : { runAt: new Date(runAt) }),
      }));
      return (await utils.addJobs(specs)).map(({ id }) => String(id));
    },
    work(deliver) {
      const deliverJob = (payload: PeerJob, { job }: { job: { id: string } }) =>
        deliver(String(job.id), payload);
      return run({
        preset: {
          worker: {
            ...{
              connectionString: server,
              logger,
              concurrentJobs: concurrency,
              maxPoolSize: concurrency + CONNECTIONS_BESIDE,
            },
            ...{ localQueue: { size: LOCAL_QUEUE }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
            ...(isPunctual ? { pollInterval: PUNCTUAL_POLL_MS } : {}),
          },
        },
        noHandleSignals: true,
        parsedCronItems: [],
        taskList: { [TASK]: deliverJob },
      });
    },
  };
}

/**
 * No index finds the jobs under way. The jobs that wait for tomorrow are stored before all others, so the newest job is
 * due as long as any job is due.
 */
export const GRAPHILE_WORKER_QUERIES: StoredQueries = {
  owing: `
SELECT EXISTS (SELECT FROM (SELECT run_at FROM graphile_worker._private_jobs ORDER BY id DESC LIMIT 1) newest
                WHERE run_at <= now()) AS owing`,
  count: "SELECT count(*)::int AS count FROM graphile_worker._private_jobs",
};
