import { readFileSync } from "node:fs";
import pg from "pg";

/** Watches how long machine and database hold up a process that needs hardly anything, and others that need more. */
export interface PauseWatch {
  /** The longest time, in milliseconds, that any of them was held up since the last call. */
  longestMs(): number;
  /** What was found since the last call of this or of `longestMs`. */
  read(): PauseReading;
  stop(): Promise<void>;
}

export interface PauseReading {
  longestMs: number;
  /** The sum of the pauses of commits, or `longestMs` if that is more. */
  totalMs: number;
}

const LOOK_EVERY_MS = 50;
/** The waits of a process for the processor within this time count as one pause. */
const WINDOW_MS = 1_800;
const NS_PER_MS = 1e6;
/** A commit that takes less was not held up. */
const STALL_MS_MIN = 50;
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
  const tally = new PauseTally();
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
      tally.noteCommit(pauseMs());
      for (const { pid } of processes()) tally.noteWait(waitOf(pid));
      begunAt = performance.now();
    }
  }
  const watching = watch().catch(() => undefined);
  function read(): PauseReading {
    // What is read now is not read again.
    for (const [pid, seen] of looks) looks.set(pid, seen.slice(-1));
    return tally.read(pauseMs());
  }
  return {
    longestMs: () => read().longestMs,
    read,
    async stop() {
      isStopped = true;
      await watching;
      await client.end();
    },
  };
}

/** Commits follow each other, so their pauses add up. The waits of processes may be parts of one and the same pause. */
export class PauseTally {
  private longestMs = 0;
  private longestWaitMs = 0;
  private stalledMs = 0;
  /** How much of the pause of the commit under way was read already. */
  private readMs = 0;

  noteCommit(pauseMs: number): void {
    this.longestMs = Math.max(this.longestMs, pauseMs);
    this.addStall(pauseMs);
    this.readMs = 0;
  }

  noteWait(waitMs: number): void {
    this.longestMs = Math.max(this.longestMs, waitMs);
    this.longestWaitMs = Math.max(this.longestWaitMs, waitMs);
  }

  /** Reads what was noted since the last call. `openMs` is how long the commit that is under way was held up so far. */
  read(openMs: number): PauseReading {
    const longestMs = Math.max(this.longestMs, openMs);
    this.addStall(openMs);
    const totalMs = Math.max(this.longestWaitMs, this.stalledMs);
    this.longestMs = 0;
    this.longestWaitMs = 0;
    this.stalledMs = 0;
    return { longestMs, totalMs };
  }

  private addStall(pauseMs: number): void {
    if (pauseMs < STALL_MS_MIN) return;
    this.stalledMs += Math.max(0, pauseMs - this.readMs);
    this.readMs = pauseMs;
  }
}

/** How long the main thread of a process has waited for a processor; null if it is gone, or the kernel does not count it. */
function readWaitedMs(pid: number): number | null {
  try {
    return Number(readFileSync(`/proc/${pid}/schedstat`, "utf8").split(" ")[1]) / NS_PER_MS;
  } catch {
    return null;
  }
}
