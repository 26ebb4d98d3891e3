import { readFileSync } from "node:fs";
import pg from "pg";

/** Watches how long machine and database hold up a process that needs hardly anything, and others that need more. */
export interface PauseWatch {
  /** The longest time, in milliseconds, that any of them was held up since the last call. */
  longestMs(): number;
  stop(): Promise<void>;
}

const LOOK_EVERY_MS = 50;
/** The waits of a process for the processor within this time count as one pause. */
const WINDOW_MS = 1_800;
const NS_PER_MS = 1e6;
/** A commit that is flushed to disk. */
const COMMIT = "SELECT pg_logical_emit_message(true, 'test', '')";

/**
 * Commits again and again: a delay of these commits delays every process. On a busy machine a process that needs much
 * waits longer than one that needs little, so the watch looks at how long `processes` wait for the processor as well.
 */
export async function watchPauses(
  databaseUrl: string,
  processes: () => readonly { pid: number }[] = () => [],
): Promise<PauseWatch> {
  const client = new pg.Client({ connectionString: databaseUrl });
  // A failed test does not stop the watch, and its database is dropped.
  client.on("error", () => undefined);
  await client.connect();
  let longestMs = 0;
  let begunAt = performance.now();
  let isStopped = false;
  const pauseMs = () => performance.now() - begunAt - LOOK_EVERY_MS;
  const looks = new Map<number, { at: number; waitedMs: number }[]>();
  function waitOf(pid: number): number {
    const waitedMs = readWaitedMs(pid);
    if (waitedMs === null) return 0;
    const at = performance.now();
    const lately = (looks.get(pid) ?? []).filter((look) => look.at > at - WINDOW_MS);
    looks.set(pid, [...lately, { at, waitedMs }]);
    return waitedMs - (lately[0]?.waitedMs ?? waitedMs);
  }
  async function watch(): Promise<void> {
    while (!isStopped) {
      await Bun.sleep(LOOK_EVERY_MS);
      await client.query(COMMIT);
      longestMs = Math.max(longestMs, pauseMs(), ...processes().map(({ pid }) => waitOf(pid)));
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

/** How long the main thread of a process has waited for a processor; null if it is gone, or the kernel does not count it. */
function readWaitedMs(pid: number): number | null {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, "utf8").split(" ")[1]) / NS_PER_MS;
  } catch {
    return null;
  }
}
