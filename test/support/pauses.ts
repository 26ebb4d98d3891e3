import pg from "pg";
import { ProcessorWaits } from "./processor-waits.ts";

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
/** A commit that takes less was not held up. */
const STALL_MS_MIN = 50;
/** A commit that is flushed to disk. */
const COMMIT = "SELECT pg_logical_emit_message(true, 'test', '')";
const BACKENDS_EVERY_MS = 1_000;
/** The backends of this database, if the server runs on this machine. */
const BACKENDS =
  "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND inet_server_addr() <<= '127.0.0.0/8'";

/**
 * Commits again and again: a delay of these commits delays every process. On a busy machine a process that needs much
 * waits longer than one that needs little, so the watch looks at how long `processes` wait for the processor as well, and
 * the database's backends if they are `withBackends`.
 */
export async function watchPauses(
  databaseUrl: string,
  processes: () => readonly { pid: number }[] = () => [],
  { withBackends = false } = {},
): Promise<PauseWatch> {
  const client = new pg.Client({ connectionString: databaseUrl });
  // A failed test does not stop the watch, and its database is dropped.
  client.on("error", () => undefined);
  await client.connect();
  const tally = new PauseTally();
  let begunAt = performance.now();
  let isStopped = false;
  const pauseMs = () => performance.now() - begunAt - LOOK_EVERY_MS;
  const waits = new ProcessorWaits();
  let backends: { pid: number }[] = [];
  let listedAt = Number.NEGATIVE_INFINITY;
  async function watch(): Promise<void> {
    while (!isStopped) {
      await Bun.sleep(LOOK_EVERY_MS);
      await client.query(COMMIT);
      tally.noteCommit(pauseMs());
      for (const { pid } of [...processes(), ...backends]) tally.noteWait(waits.waitOf(pid));
      if (withBackends && performance.now() - listedAt > BACKENDS_EVERY_MS) {
        backends = (await client.query<{ pid: number }>(BACKENDS)).rows;
        listedAt = performance.now();
      }
      begunAt = performance.now();
    }
  }
  const watching = watch().catch(() => undefined);
  function read(): PauseReading {
    waits.beginAnew();
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
