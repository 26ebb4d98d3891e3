import { join } from "node:path";
import type { Answer } from "./command-line.ts";

/** Runs a program of this folder as an operator does. A command alone is cheaper by `runCommandLine`. */
export async function runProgram(
  program: "main.ts" | "migrate.ts",
  words: readonly string[],
  environment: Record<string, string>,
): Promise<Answer> {
  const child = Bun.spawn([process.execPath, join(import.meta.dir, program), ...words], {
    env: { PATH: process.env.PATH ?? "", ...environment },
    stdout: "pipe",
    stderr: "pipe",
  });
  const [stdout, stderr, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  return { code, stdout, stderr };
}
