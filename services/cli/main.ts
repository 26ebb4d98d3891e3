import { runCommandLine } from "./command-line.ts";

/** `jobwheel`, the command line of API users. */
const interrupted = new AbortController();
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) process.on(signal, () => interrupted.abort());
// `jobwheel jobs list | head` ends the pipe early.
process.stdout.on("error", () => process.exit(0));
const { env: environment, stdin, stdout, stderr } = process;
process.exitCode = await runCommandLine(process.argv.slice(2), {
  environment,
  stdin,
  stdout,
  stderr,
  signal: interrupted.signal,
});
