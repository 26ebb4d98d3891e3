import { StoreUnavailable } from "./database.ts";

const LOOKS_MAX = 50;
/** Of two processes that go in step, the same one would lose each time. */
const WAIT_MS_MAX = 10;

/**
 * Makes a change that is rare. `act` reads a row, asks the domain what becomes of it, and writes that only if the row is
 * still as it was read. It answers null if another writer was faster, and is called again. No lock is held between reading
 * and writing. Throws StoreUnavailable.
 */
export async function lookAgain<Answer>(name: string, act: () => Promise<Answer | null>): Promise<Answer> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const answer = await act();
    if (answer !== null) return answer;
    await Bun.sleep(Math.random() * WAIT_MS_MAX);
  }
  throw new StoreUnavailable(`${name} changed ${LOOKS_MAX} times while it was being changed`);
}
