import { faultText } from "../platform/error-text.ts";
import type { Log } from "../platform/log.ts";
import { isDatabaseFault } from "../store/database/database.ts";

const ASK_AGAIN_MS = 500;

/**
 * Takes a step of a process's start until Postgres has answered: no outage, whenever it begins, may end the process. The step may be
 * taken again although it has taken effect.
 */
export async function untilAnswered<T>(log: Log, step: () => Promise<T>): Promise<T> {
  for (let tries = 1; ; tries++) {
    try {
      return await step();
    } catch (error) {
      if (!isDatabaseFault(error)) throw error;
      if (tries === 1) log.warn({ why: faultText(error) }, "waiting for Postgres");
      await Bun.sleep(ASK_AGAIN_MS);
    }
  }
}
