import { faultText } from "../platform/error-text.ts";
import type { Log } from "../platform/log.ts";
import { isDatabaseFault } from "../store/database/database.ts";

const ASK_AGAIN_MS = 500;

/**
 * Takes a step of a process's start until Postgres has answered, because no outage may end the process, whenever it begins. The
 * step may be taken again although it has taken effect.
 */
export async function untilAnswered<T>(log: Log, step: () => Promise<T>): Promise<T> {
  for (let told = ""; ; ) {
    try {
      return await step();
    } catch (error) {
      if (!isDatabaseFault(error)) throw error;
      const why = faultText(error);
      if (why !== told) log.warn({ why }, "waiting for Postgres");
      told = why;
      await Bun.sleep(ASK_AGAIN_MS);
    }
  }
}
