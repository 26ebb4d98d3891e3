import { claimPort } from "./port.ts";
import { CHECKOUT } from "./service-process.ts";

/** A program as a person runs it at a terminal. */
export interface Terminal {
  /** The text that the terminal has been sent so far, with line feeds alone. */
  readonly text: string;
  type(text: string): void;
  end(signal: NodeJS.Signals): Promise<number>;
  readonly ended: Promise<number>;
}

/** Runs a command in a pseudo-terminal, on which the program reads and writes. It has only this environment. */
export function runInTerminal(command: string[], environment: Record<string, string>): Terminal {
  const decoder = new TextDecoder();
  let text = "";
  const child = Bun.spawn(command, {
    cwd: CHECKOUT,
    env: { TERM: "xterm-256color", ...environment },
    terminal: {
      // Wide enough that no line is broken.
      cols: 2_000,
      data(_, bytes) {
        text += decoder.decode(bytes, { stream: true });
      },
    },
  });
  return {
    get text() {
      return text.replaceAll("\r\n", "\n");
    },
    type: (typed) => void child.terminal?.write(typed),
    end(signal) {
      child.kill(signal);
      return child.exited;
    },
    ended: child.exited,
  };
}

export const STANDALONE = [process.execPath, "services/standalone/main.ts"];

/** The settings of a standalone on ports of its own. */
export async function standaloneSettings(settings: Record<string, string>): Promise<Record<string, string>> {
  return {
    PATH: process.env.PATH ?? "",
    HOME: process.env.HOME ?? "",
    PORT: String(await claimPort()),
    OPS_PORT: String(await claimPort()),
    ...settings,
  };
}
