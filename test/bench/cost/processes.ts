import { createServer } from "node:net";
import { dirname } from "node:path";

/** What a benchmark's processes are started and waited for by. */

export const ROOT = dirname(dirname(dirname(import.meta.dir)));
const WAIT_MS_MAX = 120_000;
const LOOK_EVERY_MS = 20;
const STOP_TIMEOUT_MS = 10_000;

/** Starts a process, answers with its id, and adds to `stops` what ends it. */
export function spawnBound(
  command: string[],
  environment: Record<string, string>,
  stops: (() => unknown)[],
): number {
  // Whatever ends the benchmark ends its processes.
  const bound = process.platform === "linux" ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
  const child = Bun.spawn(bound, {
    cwd: ROOT,
    env: { PATH: process.env.PATH ?? "", HOME: process.env.HOME ?? "", ...environment },
    stdio: ["ignore", "ignore", "inherit"],
  });
  stops.push(async () => {
    child.kill("SIGTERM");
    const overdue = setTimeout(() => child.kill("SIGKILL"), STOP_TIMEOUT_MS);
    await child.exited;
    clearTimeout(overdue);
  });
  return child.pid;
}

export async function isOk(url: string): Promise<boolean> {
  try {
    return (await fetch(url)).ok;
  } catch {
    return false;
  }
}

export async function until(what: string, condition: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + WAIT_MS_MAX;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error(`not within ${WAIT_MS_MAX} ms: ${what}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

/** Held open together until all are known, so that no two are the same. */
export async function freePorts(count: number): Promise<number[]> {
  const servers = await Promise.all(
    Array.from({ length: count }, () => {
      const { promise, resolve, reject } = Promise.withResolvers<ReturnType<typeof createServer>>();
      const server = createServer();
      server.on("error", reject);
      server.listen(0, "127.0.0.1", () => resolve(server));
      return promise;
    }),
  );
  return servers.map((server) => {
    const address = server.address();
    server.close();
    return typeof address === "object" && address !== null ? address.port : 0;
  });
}
