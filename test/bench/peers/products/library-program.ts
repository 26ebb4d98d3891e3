import { openBullmq } from "./bullmq.ts";
import { openGraphileWorker } from "./graphile-worker.ts";
import { openPgBoss } from "./pg-boss.ts";

/**
 * A program that runs one role of a library: `bun library-program.ts JSON`. The API makes one call at a time. The next
 * call creates the jobs of all requests that came meanwhile, since every library creates many jobs at once much cheaper
 * than one by one. The worker posts each job to its target with Bun's `fetch`.
 */

export interface ProgramSettings {
  peer: PeerName;
  /** "schema" makes the tables or keys in which the library stores its jobs, and ends. */
  role: "schema" | "api" | "worker";
  /** The URL of its Postgres or Redis. */
  server: string;
  port: number;
  isPunctual: boolean;
  /** The jobs that the worker delivers at once, in place of the product's own number. pg-boss goes by batches instead. */
  concurrency: number | undefined;
}

/** A job as a library keeps it. It holds `due_at` because not every library tells its worker when a job was due. */
export interface PeerJob {
  target_url: string;
  payload: unknown;
  due_at: number;
}

export interface NewPeerJob {
  data: PeerJob;
  /** Null for now. */
  runAt: number | null;
}

export interface Peer {
  /** Creates jobs in one call. Answers their ids in the same order. */
  add(jobs: NewPeerJob[]): Promise<string[]>;
  /** Does jobs until the process ends. A job fails if `deliver` rejects. */
  work(deliver: (id: string, job: PeerJob) => Promise<void>): Promise<unknown>;
}

export const ATTEMPTS_MAX = 5;
const PEERS = {
  "graphile-worker": openGraphileWorker,
  "pg-boss": openPgBoss,
  bullmq: openBullmq,
};
export type PeerName = keyof typeof PEERS;

interface JobRequest {
  target_url: string;
  payload: unknown;
  run_at?: string;
}

function serveApi(peer: Peer, port: number): void {
  const add = groupCalls(peer.add);
  const toJob = ({ target_url, payload, run_at }: JobRequest): NewPeerJob => {
    const runAt = run_at === undefined ? null : Date.parse(run_at);
    return { data: { target_url, payload, due_at: runAt ?? Date.now() }, runAt };
  };
  Bun.serve({
    hostname: "127.0.0.1",
    port,
    async fetch(request) {
      const { pathname } = new URL(request.url);
      if (pathname === "/v2/jobs") {
        const [id] = await add([toJob((await request.json()) as JobRequest)]);
        return Response.json({ id }, { status: 201 });
      }
      if (pathname === "/v2/jobs/batch") {
        const { jobs } = (await request.json()) as { jobs: JobRequest[] };
        const ids = await add(jobs.map(toJob));
        return Response.json({ data: ids.map((id) => ({ id })) }, { status: 201 });
      }
      return new Response("ok");
    },
  });
}

/** Joins all calls that come while one is under way into the next call. */
function groupCalls(add: Peer["add"]): Peer["add"] {
  interface Waiting {
    jobs: NewPeerJob[];
    settle: PromiseWithResolvers<string[]>;
  }
  let waiting: Waiting[] = [];
  let isBusy = false;
  async function addWaiting(): Promise<void> {
    isBusy = true;
    while (waiting.length > 0) {
      const group = waiting;
      waiting = [];
      try {
        const ids = await add(group.flatMap(({ jobs }) => jobs));
        let begun = 0;
        for (const { jobs, settle } of group) {
          settle.resolve(ids.slice(begun, begun + jobs.length));
          begun += jobs.length;
        }
      } catch (error) {
        for (const { settle } of group) settle.reject(error);
      }
    }
    isBusy = false;
  }
  return (jobs) => {
    const settle = Promise.withResolvers<string[]>();
    waiting.push({ jobs, settle });
    // setImmediate lets all requests that have arrived together be read before the call.
    if (!isBusy) setImmediate(() => !isBusy && addWaiting());
    return settle.promise;
  };
}

async function deliver(id: string, { target_url, payload, due_at }: PeerJob): Promise<void> {
  const response = await fetch(target_url, {
    method: "POST",
    headers: {
      "content-type": "application/json",
      "service-job-id": id,
      "service-scheduled-at": new Date(due_at).toISOString(),
    },
    body: JSON.stringify(payload),
  });
  await response.arrayBuffer();
  if (!response.ok) throw new Error(`answered ${response.status}`);
}

if (import.meta.main) {
  const settings = JSON.parse(process.argv[2] ?? "") as ProgramSettings;
  const peer = await PEERS[settings.peer](settings);
  if (settings.role === "schema") process.exit();
  if (settings.role === "api") serveApi(peer, settings.port);
  else {
    await peer.work(deliver);
    Bun.serve({ hostname: "127.0.0.1", port: settings.port, fetch: () => new Response("ok") });
  }
}
