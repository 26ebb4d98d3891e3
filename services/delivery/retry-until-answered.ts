import type { Log } from "../../shared/platform/log.ts";
import { StoreUnavailable } from "../../shared/store/database/database.ts";

const ASK_AGAIN_MS = 250;
const WARN_EVERY_MS = 1_000;

/** How a node goes on while Postgres does not answer, or refuses a settlement. */
export interface StoreRetries {
  /**
   * Asks until Postgres has answered, however long that takes: a claim of unknown outcome may have been committed, and
   * an attempt on the wire has to be settled. Throws errors that have another cause than an unreachable Postgres.
   */
  untilAnswered<T>(ask: () => Promise<T>): Promise<T>;
  /** Settles an outcome that only this node knows. If Postgres refuses the settlement, its error's text is left out. */
  untilSettled<Item extends { error: string | null }, T>(
    item: Item,
    settle: (item: Item) => Promise<T>,
  ): Promise<T>;
  /** Logs at most one such warning a second. */
  warn(message: string, error: unknown): void;
}

export function createStoreRetries(log: Log, countInFlight: () => number): StoreRetries {
  // In an outage everything in flight asks again and again. One line stands for all that failed within a second.
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
          // Either Postgres refuses the error's text, the only part from outside, or operators have something to mend.
          warn("settle.refused", error);
          if (settling.error !== null) settling = { ...settling, error: "(not storable)" };
          await Bun.sleep(ASK_AGAIN_MS);
        }
      }
    },
    warn,
  };
}
