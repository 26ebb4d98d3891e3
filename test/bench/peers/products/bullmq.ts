import { importPeer } from "../install.ts";
import {
  ATTEMPTS_MAX,
  type NewPeerJob,
  type Peer,
  type PeerJob,
  type ProgramSettings,
} from "./library-program.ts";
import type { Prepared } from "./product.ts";

interface Bullmq {
  Queue: new (
    name: string,
    options: object,
  ) => {
    addBulk(jobs: object[]): Promise<{ id: string }[]>;
  };
  Worker: new (
    name: string,
    handler: (job: { id: string; data: PeerJob }) => Promise<void>,
    options: object,
  ) => { on(event: "error", listener: (error: Error) => void): void; waitUntilReady(): Promise<unknown> };
}

const QUEUE = "deliver";
/** Many deliveries at once, as the page "Parallelism and Concurrency" advises for jobs that wait for a network. */
const CONCURRENCY = 100;

/** Jobs are removed when they are done, as the page "Auto-removal of jobs" advises. redis-server.ts sets up the server. */
export async function openBullmq({ server, concurrency = CONCURRENCY }: ProgramSettings): Promise<Peer> {
  const { Queue, Worker } = await importPeer<Bullmq>("bullmq");
  const { hostname: host, port } = new URL(server);
  const connection = { host, port: Number(port), maxRetriesPerRequest: null };
  const defaultJobOptions = { attempts: ATTEMPTS_MAX, removeOnComplete: true };
  const queue = new Queue(QUEUE, { connection, defaultJobOptions });
  return {
    async add(jobs: NewPeerJob[]) {
      const specs = jobs.map(({ data, runAt }) => ({
        name: QUEUE,
        data,
        opts: runAt === null ? {} : { delay: Math.max(0, runAt - Date.now()) },
      }));
      return (await queue.addBulk(specs)).map(({ id }) => id);
    },
    work(deliver) {
      const worker = new Worker(QUEUE, ({ id, data }) => deliver(id, data), {
        ...{ connection, concurrency },
      });
      worker.on("error", (error) => console.error(error));
      return worker.waitUntilReady();
    },
  };
}

/** Asks Redis itself. Redis has the lengths at hand, so the questions cost next to nothing. */
export function askRedis(redis: Bun.RedisClient): Pick<Prepared, "isOwing" | "countStored"> {
  const count = async (command: "LLEN" | "ZCARD", state: string) =>
    Number(await redis.send(command, [`bull:${QUEUE}:${state}`]));
  const countOwed = async () => (await count("LLEN", "wait")) + (await count("LLEN", "active"));
  return {
    isOwing: async () => (await countOwed()) > 0,
    countStored: async () => (await countOwed()) + (await count("ZCARD", "delayed")),
  };
}
