import { spawn, spawnSync } from "node:child_process";

/**
 * A process confined like one in a container, as far as possible without a container: no capabilities and no new
 * privileges.
 */
export interface ConfinedProcess {
  readonly output: string;
  /** Sends SIGTERM. Resolves when the process has ended. */
  stop(): Promise<void>;
  kill(): void;
  /** The exit code; null if a signal ended the process. */
  ended: Promise<number | null>;
}

/** Without capabilities the file mode binds even root. The process dies with the test process. */
const CONFINEMENT = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--pdeathsig", "KILL"];
const setpriv = Bun.which("setpriv");
const isConfinable = setpriv !== null && spawnSync(setpriv, [...CONFINEMENT, "true"]).status === 0;

/** Runs Bun with these arguments and only the given environment. */
export function startConfined(
  args: readonly string[],
  cwd: string,
  env: Record<string, string>,
): ConfinedProcess {
  const command = [process.execPath, ...args];
  const [file = "", ...rest] =
    isConfinable && setpriv !== null ? [setpriv, ...CONFINEMENT, ...command] : command;
  const child = spawn(file, rest, { cwd, env, stdio: ["ignore", "pipe", "pipe"] });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (chunk) => (output += chunk));
  // "close" rather than "exit": after "exit" the last output may still be on its way.
  const ended = new Promise<number | null>((resolve) => child.on("close", resolve));
  return {
    get output() {
      return output;
    },
    async stop() {
      child.kill("SIGTERM");
      await ended;
    },
    kill: () => child.kill("SIGKILL"),
    ended,
  };
}
