import { spawn } from "node:child_process";
import { closeSync, openSync, readFileSync } from "node:fs";
import { dirname } from "node:path";
import { claimPort } from "./port.ts";

/** A service as the process that operators run, on ports of its own. */
export interface ServiceProcess {
  port: number;
  opsPort: number;
  pid: number;
  /** Its output since it was first started. */
  readonly output: string;
  /** Resolves when the process that was started last has ended, with its exit code; null if a signal killed it. */
  readonly ended: Promise<number | null>;
  /** Ends it with a signal. Answers its exit code; null if the signal killed it. */
  end(signal: NodeJS.Signals): Promise<number | null>;
  /** Starts it again as before, or from the checkout of another version. Resolves once it is ready. */
  startAgain(otherCheckout?: string): Promise<void>;
}

const READY_TIMEOUT_MS = 180_000;
const LOOK_EVERY_MS = 50;
/** The folder of this version. */
export const CHECKOUT = dirname(dirname(import.meta.dir));

/**
 * Starts `services/<name>/main.ts`. Resolves once the service says that it is ready. The service dies with the test
 * process. Its output goes to the file `logTo`, or is kept in memory without one. `preload` is a module that it loads
 * first, and `words` are the arguments of its command. `onEnd` is called with each process that has ended.
 */
export async function startService(
  name: "gateway" | "worker" | "delivery" | "standalone",
  environment: Record<string, string>,
  {
    checkout = CHECKOUT,
    logTo,
    preload,
    words = [],
    onEnd,
  }: {
    checkout?: string;
    logTo?: string;
    preload?: string;
    words?: readonly string[];
    onEnd?: ((pid: number) => void) | undefined;
  } = {},
): Promise<ServiceProcess> {
  const [port, opsPort] = [await claimPort(), await claimPort()];
  const settings = {
    PATH: process.env.PATH ?? "",
    HOME: process.env.HOME ?? "",
    HOST: "127.0.0.1",
    PORT: String(port),
    OPS_PORT: String(opsPort),
    ALLOW_INSECURE_TARGETS: "true",
    LOG_LEVEL: "info",
    ...environment,
  };
  let output = "";
  const readOutput = () => (logTo === undefined ? output : readFileSync(logTo, "utf8"));
  let child: ReturnType<typeof spawn>;
  let ended: Promise<number | null>;
  async function start(cwd = checkout): Promise<void> {
    const preloads = preload === undefined ? [] : ["--preload", preload];
    const command = [process.execPath, ...preloads, `services/${name}/main.ts`, ...words];
    const [file = "", ...args] =
      process.platform === "linux" ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
    const log = logTo === undefined ? "pipe" : openSync(logTo, "a");
    const started = spawn(file, args, { cwd, env: settings, stdio: ["ignore", log, log] });
    if (typeof log === "number") closeSync(log);
    child = started;
    started.stdout?.on("data", (chunk) => (output += chunk));
    started.stderr?.on("data", (chunk) => (output += chunk));
    let exited = false;
    // "close" rather than "exit": after "exit" the last output may still be on its way.
    ended = new Promise((resolve) =>
      started.on("close", (code) => {
        exited = true;
        if (started.pid !== undefined) onEnd?.(started.pid);
        resolve(code);
      }),
    );
    const giveUpAt = performance.now() + READY_TIMEOUT_MS;
    while (!(await isReady(opsPort))) {
      if (exited) throw new Error(`${name} ended at its start:\n${readOutput().slice(-2_000)}`);
      if (performance.now() > giveUpAt) {
        // Whoever tries again must not meet a second process of the same name.
        started.kill("SIGKILL");
        await ended;
        throw new Error(`${name} was not ready in time:\n${readOutput().slice(-2_000)}`);
      }
      await Bun.sleep(LOOK_EVERY_MS);
    }
  }
  await start();
  return {
    port,
    opsPort,
    get pid() {
      return child.pid ?? 0;
    },
    get output() {
      return readOutput();
    },
    get ended() {
      return ended;
    },
    async end(signal) {
      child.kill(signal);
      return ended;
    },
    startAgain: start,
  };
}

async function isReady(opsPort: number): Promise<boolean> {
  try {
    return (await fetch(`http://127.0.0.1:${opsPort}/readyz`)).status === 200;
  } catch {
    return false;
  }
}
