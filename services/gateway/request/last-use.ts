import type { Clock } from "../../../shared/platform/clock.ts";
import type { Log } from "../../../shared/platform/log.ts";
import { repeat } from "../../../shared/platform/repeat.ts";
import type { Database } from "../../../shared/store/database/database.ts";
import { noteKeyUses } from "../../../shared/store/resources/callers.ts";

/** Records when each key was last used. Answers do not wait for that. */
export interface LastUse {
  note(keyNo: number): void;
  /** Writes the uses that are due, each key at most once in WRITE_EVERY_MS. Answers whether they were written. */
  tick(): Promise<boolean>;
  /** Writes all uses that are left. Does not throw. */
  stop(): Promise<void>;
}

const WRITE_EVERY_MS = 60_000;
/** The first use of a key is written after at most this time. */
const TICK_MS = 5_000;
const KEYS_PER_STATEMENT_MAX = 1_000;

export function createLastUse(options: { db: Database; clock: Clock; log: Log }): LastUse {
  const { db, clock, log } = options;
  /** The last uses that are not written yet, and the keys written less than WRITE_EVERY_MS ago. */
  const usedAt = new Map<number, number>();
  const writtenAt = new Map<number, number>();

  async function write(isDue: (keyNo: number) => boolean): Promise<void> {
    const due = [...usedAt].filter(([keyNo]) => isDue(keyNo));
    for (let start = 0; start < due.length; start += KEYS_PER_STATEMENT_MAX) {
      const uses = due.slice(start, start + KEYS_PER_STATEMENT_MAX);
      await noteKeyUses(db, uses);
      const now = performance.now();
      for (const [keyNo, at] of uses) {
        if (usedAt.get(keyNo) === at) usedAt.delete(keyNo);
        writtenAt.set(keyNo, now);
      }
    }
  }

  async function tick(): Promise<void> {
    const before = performance.now() - WRITE_EVERY_MS;
    for (const [keyNo, at] of writtenAt) if (at <= before) writtenAt.delete(keyNo);
    await write((keyNo) => !writtenAt.has(keyNo));
  }

  const ticking = repeat("last_use", TICK_MS, tick, log);
  return {
    note: (keyNo) => usedAt.set(keyNo, clock.now()),
    tick: ticking.now,
    async stop() {
      await ticking.stop();
      await write(() => true).catch((error: unknown) => log.warn({ err: error }, "last_use.lost"));
    },
  };
}
