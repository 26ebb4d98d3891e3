import pg from "pg";

/** Watches how long machine and database hold up a process that needs hardly anything. */
export interface PauseWatch {
  /** The longest time, in milliseconds, that they have stood still since the last call. */
  longestMs(): number;
  stop(): Promise<void>;
}

const LOOK_EVERY_MS = 50;
/** A commit that is flushed to disk. */
const COMMIT = "SELECT pg_logical_emit_message(true, 'test', '')";

/** Commits again and again: whatever delays this delays every process. */
export async function watchPauses(databaseUrl: string): Promise<PauseWatch> {
  const client = new pg.Client({ connectionString: databaseUrl });
  // A failed test does not stop this, and its database is dropped.
  client.on("error", () => undefined);
  await client.connect();
  let longestMs = 0;
  let begunAt = performance.now();
  let isStopped = false;
  const pauseMs = () => performance.now() - begunAt - LOOK_EVERY_MS;
  async function watch(): Promise<void> {
    while (!isStopped) {
      await Bun.sleep(LOOK_EVERY_MS);
      await client.query(COMMIT);
      longestMs = Math.max(longestMs, pauseMs());
      begunAt = performance.now();
    }
  }
  const watching = watch().catch(() => undefined);
  return {
    longestMs() {
      const longest = Math.max(longestMs, pauseMs());
      longestMs = 0;
      return longest;
    },
    async stop() {
      isStopped = true;
      await watching;
      await client.end();
    },
  };
}
