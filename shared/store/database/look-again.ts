import { setTimeout } from "node:timers/promises";
import { StoreUnavailable } from "./database.ts";

const LOOKS_MAX = 50;
/** Of two processes that go in step, the same one would lose each time. */
const WAIT_MS_MAX = 10;

/**
 * How a change that is rare is made. `act` reads a row, lets the domain decide on it, and writes the decision only if the
 * row is still as it was read; it answers null if another writer was faster, and then begins again. Each time somebody
 * else's change has gone through, so nobody waits for a lock that is held over a round trip. Throws StoreUnavailable.
 */
export async function lookAgain<Answer>(name: string, act: () => Promise<Answer | null>): Promise<Answer> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const answer = await act();
    if (answer !== null) return answer;
    await setTimeout(Math.random() * WAIT_MS_MAX);
  }
  throw new StoreUnavailable(`${name} changed ${LOOKS_MAX} times while it was being changed`);
}
