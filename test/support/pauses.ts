import pg from "pg";

/** A watch over what machine and database leave a process that wants next to nothing. */
export interface PauseWatch {
  /** How long they have stood still at most since the last time that this was asked, in milliseconds. */
  longestMs(): number;
  stop(): Promise<void>;
}

const LOOK_EVERY_MS = 50;
/** Of which a commit is flushed to disk. */
const COMMIT = "SELECT pg_logical_emit_message(true, 'test', '')";

/** Commits again and again: what this waits for, everybody waits for. */
export async function watchPauses(databaseUrl: string): Promise<PauseWatch> {
  const client = new pg.Client({ connectionString: databaseUrl });
  // A test that has failed does not stop this, and then its database goes.
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
