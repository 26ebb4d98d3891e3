import type { Log } from "../../shared/platform/log.ts";
import { StoreUnavailable } from "../../shared/store/database/database.ts";

const ASK_AGAIN_MS = 250;
const WARN_EVERY_MS = 1_000;

/** How the node meets a database that does not answer, or refuses what only it can tell. */
export interface Patience {
  /**
   * Asks until Postgres has answered, however long that takes: a claim of unknown outcome may have been committed, and
   * an attempt on the wire has to be settled. Errors that are not about reaching Postgres are the caller's.
   */
  untilAnswered<T>(ask: () => Promise<T>): Promise<T>;
  /** Settles what has happened and nobody else knows of, without the error's text if Postgres does not take it. */
  untilSettled<Item extends { error: string | null }, T>(
    item: Item,
    settle: (item: Item) => Promise<T>,
  ): Promise<T>;
  warn(message: string, error: unknown): void;
}

export function createPatience(log: Log, countInFlight: () => number): Patience {
  // In an outage everything that is in flight asks again and again: one line stands for all that failed in its second.
  let warnedAt = Number.NEGATIVE_INFINITY;
  function warn(message: string, error: unknown): void {
    if (performance.now() < warnedAt + WARN_EVERY_MS) return;
    warnedAt = performance.now();
    log.warn({ err: error, inFlight: countInFlight() }, message);
  }

  async function untilAnswered<T>(ask: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        if (!(error instanceof StoreUnavailable)) throw error;
        warn("delivery.store_unavailable", error);
        await Bun.sleep(ASK_AGAIN_MS);
      }
    }
  }

  return {
    untilAnswered,
    async untilSettled(item, settle) {
      for (let settling = item; ; ) {
        try {
          return await untilAnswered(() => settle(settling));
        } catch (error) {
          // Refused for something in it, and only the text comes from outside; or for something that operators mend.
          warn("settle.refused", error);
          if (settling.error !== null) settling = { ...settling, error: "(not storable)" };
          await Bun.sleep(ASK_AGAIN_MS);
        }
      }
    },
    warn,
  };
}
