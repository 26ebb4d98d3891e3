import type { Log } from "../platform/log.ts";
import { StoreUnavailable } from "../store/database/database.ts";

const ASK_AGAIN_MS = 500;

/**
 * Takes a step of a process's start until Postgres has answered: an outage that begins after the first answer must not end the
 * process. The step may be taken again although it has taken effect.
 */
export async function untilAnswered<T>(log: Log, step: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await step();
    } catch (error) {
      if (!(error instanceof StoreUnavailable)) throw error;
      if (tries === 1) log.warn({ why: error.message }, "waiting for Postgres");
      await Bun.sleep(ASK_AGAIN_MS);
    }
  }
}
