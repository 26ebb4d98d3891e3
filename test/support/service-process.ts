import { spawn } from "node:child_process";
import { dirname } from "node:path";
import { claimPort } from "./port.ts";

/** A service as the process that operators run, on ports of its own. */
export interface ServiceProcess {
  port: number;
  opsPort: number;
  pid: number;
  /** Its output since it was first started. */
  readonly output: string;
  /** Ends it with a signal. Answers its exit code; null if the signal killed it. */
  end(signal: NodeJS.Signals): Promise<number | null>;
  /** Starts it again as before, or from the checkout of another version. Resolves once it is ready. */
  startAgain(otherCheckout?: string): Promise<void>;
}

const READY_TIMEOUT_MS = 60_000;
const LOOK_EVERY_MS = 50;
/** The folder of this version. */
export const CHECKOUT = dirname(dirname(import.meta.dir));

/** Starts `services/<name>/main.ts`. Resolves once it says that it is ready. It dies with the test process. */
export async function startService(
  name: "gateway" | "worker" | "delivery" | "standalone",
  environment: Record<string, string>,
  checkout = CHECKOUT,
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
  let child: ReturnType<typeof spawn>;
  let ended: Promise<number | null>;
  async function start(cwd = checkout): Promise<void> {
    const command = [process.execPath, `services/${name}/main.ts`];
    const [file = "", ...args] =
      process.platform === "linux" ? ["setpriv", "--pdeathsig", "KILL", ...command] : command;
    const started = spawn(file, args, { cwd, env: settings, stdio: ["ignore", "pipe", "pipe"] });
    child = started;
    started.stdout.on("data", (chunk) => (output += chunk));
    started.stderr.on("data", (chunk) => (output += chunk));
    let exited = false;
    // "close" rather than "exit": after "exit" the last output may still be on its way.
    ended = new Promise((resolve) =>
      started.on("close", (code) => {
        exited = true;
        resolve(code);
      }),
    );
    const giveUpAt = performance.now() + READY_TIMEOUT_MS;
    while (!(await isReady(opsPort))) {
      if (exited) throw new Error(`${name} ended at its start:\n${output.slice(-2_000)}`);
      if (performance.now() > giveUpAt)
        throw new Error(`${name} was not ready in time:\n${output.slice(-2_000)}`);
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
      return output;
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
