import { readdirSync } from "node:fs";

const LOOK_EVERY_MS = 10;
const UNTIL_TIMEOUT_MS = 120_000;

/** Resolves once `holds` is true. Rejects with the text of `describe` if that takes too long. */
export async function until(
  holds: () => boolean | Promise<boolean>,
  describe: () => string = () => String(holds),
  timeoutMs = UNTIL_TIMEOUT_MS,
): Promise<void> {
  const giveUpAt = performance.now() + timeoutMs;
  while (!(await holds())) {
    if (performance.now() > giveUpAt) throw new Error(`did not come in ${timeoutMs} ms: ${describe()}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

/** The open file descriptors of this process, sockets included. */
export function countFds(): number {
  return readdirSync("/proc/self/fd").length;
}
