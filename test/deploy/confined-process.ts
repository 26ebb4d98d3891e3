import { spawn, spawnSync } from "node:child_process";

/** A process as a container runs it, as far as that can be had without one: no capabilities and no new privileges. */
export interface ConfinedProcess {
  readonly output: string;
  /** Sends SIGTERM, and answers when the process has ended. */
  stop(): Promise<void>;
  kill(): void;
  /** Null if a signal ended it. */
  ended: Promise<number | null>;
}

/** Without capabilities even root may not write where the mode says that nobody may. It dies with the test process. */
const CONFINEMENT = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--pdeathsig", "KILL"];
const setpriv = Bun.which("setpriv");
const isConfinable = setpriv !== null && spawnSync(setpriv, [...CONFINEMENT, "true"]).status === 0;

/** Runs Bun with the arguments and nothing in its environment but what is given. */
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
  // Not "exit", upon which what it said last may still be on its way.
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
