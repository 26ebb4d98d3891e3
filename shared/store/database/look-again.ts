import { StoreUnavailable } from "./database.ts";

const LOOKS_MAX = 50;
/** Each wait is random: without that, the same one of two processes in step would lose each time. */
const WAIT_MS_MAX = 10;

/**
 * Makes a change that is rare. `act` reads a row, lets the domain decide the next state, and writes that state only if the
 * row is still as it was read. If another writer was faster, `act` answers null and is called again. No lock is held
 * between reading and writing. Throws StoreUnavailable after LOOKS_MAX calls.
 */
export async function lookAgain<Answer>(name: string, act: () => Promise<Answer | null>): Promise<Answer> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const answer = await act();
    if (answer !== null) return answer;
    await Bun.sleep(Math.random() * WAIT_MS_MAX);
  }
  throw new StoreUnavailable(`${name} changed ${LOOKS_MAX} times while it was being changed`);
}
