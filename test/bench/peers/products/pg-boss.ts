import { importPeer } from "../install.ts";
import {
  ATTEMPTS_MAX,
  type NewPeerJob,
  type Peer,
  type PeerJob,
  type ProgramSettings,
} from "./library-program.ts";
import type { StoredQueries } from "./product.ts";

interface PgBoss {
  PgBoss: new (
    options: object,
  ) => {
    on(event: "error", listener: (error: Error) => void): void;
    start(): Promise<unknown>;
    createQueue(name: string, options: object): Promise<void>;
    insert(name: string, jobs: object[]): Promise<unknown>;
    work(
      name: string,
      options: object,
      handler: (jobs: { id: string; data: PeerJob }[]) => Promise<void>,
    ): Promise<string>;
  };
}

const QUEUE = "deliver";
const BATCH = 100;
const WORKERS = 4;
/**
 * The least interval that pg-boss accepts. Notifications tell only of jobs that are due when they are created.
 * The CPU a job includes the polling.
 */
const POLL_SECONDS = 0.5;

/**
 * The page "Workers" has LISTEN/NOTIFY, "cutting dispatch latency to milliseconds"; several workers; and batches, where a
 * full batch has the next one fetched at once (`burstWhenBatchFull`). The queue has a table of its own (`partition`), as
 * the page "Queues" advises for a busy queue. A batch is settled as a whole, which costs least.
 */
export async function openPgBoss({ server, isPunctual }: ProgramSettings): Promise<Peer> {
  const { PgBoss } = await importPeer<PgBoss>("pg-boss");
  const boss = new PgBoss({ connectionString: server, useListenNotify: true });
  boss.on("error", (error) => console.error(error));
  await boss.start();
  await boss.createQueue(QUEUE, { notify: true, partition: true, retryLimit: ATTEMPTS_MAX - 1 });
  return {
    async add(jobs: NewPeerJob[]) {
      // The ids are made here, in the order of time, since ids that pg-boss makes would have to be asked back.
      const specs = jobs.map(({ data, runAt }) => ({
        ...{ id: Bun.randomUUIDv7(), data },
        ...(runAt === null ? {} : { startAfter: new Date(runAt) }),
      }));
      await boss.insert(QUEUE, specs);
      return specs.map(({ id }) => id);
    },
    work(deliver) {
      const options = {
        ...{ batchSize: BATCH, localConcurrency: WORKERS, burstWhenBatchFull: true },
        ...(isPunctual
          ? { pollingIntervalSeconds: POLL_SECONDS, notifyPollingIntervalSeconds: POLL_SECONDS }
          : {}),
      };
      return boss.work(QUEUE, options, async (jobs) => {
        await Promise.all(jobs.map(({ id, data }) => deliver(id, data)));
      });
    },
  };
}

/** The index of the library's own counts answers the first statement. */
export const PG_BOSS_QUERIES: StoredQueries = {
  owing: `
SELECT EXISTS (SELECT FROM pgboss.job
                WHERE name = '${QUEUE}' AND state IN ('created', 'retry', 'active') AND NOT blocked
                  AND start_after <= now()) AS owing`,
  count: `SELECT count(*)::int AS count FROM pgboss.job WHERE name = '${QUEUE}' AND state < 'completed'`,
};
