import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { runCommandLine } from "../../../services/cli/command-line.ts";
import { until } from "../../flow/support.ts";
import { createTestDatabase } from "../../support/postgres.ts";
import { startService } from "../../support/service-process.ts";
import { type Ended, installPackage } from "../package/installed.ts";

export const PROGRAM = "node_modules/@jobwheel/cli/dist/jobwheel.js";

/** The packed command line in a clean folder, beside a service that runs. */
export interface CommandLine {
  folder: string;
  url: string;
  apiKey: string;
  /** A target that answers 200. */
  echo: string;
  environment: Record<string, string>;
  run(command: readonly string[], environment: Record<string, string>): Promise<Ended>;
  jobwheel(...words: string[]): Promise<Ended>;
  /** Answers the output of a command with --json. Throws if the command fails. */
  ask<Answer = { id: string }>(...words: string[]): Promise<Answer>;
  stop(): Promise<void>;
}

export async function startCommandLine(): Promise<CommandLine> {
  const [{ folder, run, remove }, database] = await Promise.all([
    installPackage("services/cli"),
    createTestDatabase("cli"),
  ]);
  const dataDir = join(folder, "data");
  mkdirSync(dataDir);
  const standalone = await startService("standalone", { DATA_DIR: dataDir, DATABASE_URL: database.url });
  const apiKey = await until(() => /svc_dev_[A-Za-z0-9]+(?=\s)/.exec(standalone.output)?.[0]);
  const environment = {
    PATH: process.env.PATH ?? "",
    HOME: folder,
    XDG_CONFIG_HOME: join(folder, "config"),
    JOBWHEEL_OPS_URL: `http://127.0.0.1:${standalone.opsPort}`,
  };
  /** Runs a command in this process, which costs less than a process of its own. */
  async function jobwheel(...words: string[]): Promise<Ended> {
    let [said, complaint] = ["", ""];
    const code = await runCommandLine(words, {
      ...{ environment, stdin: process.stdin, signal: new AbortController().signal },
      stdout: { write: (text) => (said += text) },
      stderr: { write: (text) => (complaint += text) },
    });
    return { code, said, complaint };
  }
  return {
    folder,
    url: `http://127.0.0.1:${standalone.port}`,
    apiKey,
    echo: `http://127.0.0.1:${standalone.opsPort}/echo`,
    environment,
    run,
    jobwheel,
    async ask(...words) {
      const { code, said, complaint } = await jobwheel(...words, "--json");
      if (code !== 0) throw new Error(`${words.join(" ")} ended with ${code}: ${complaint}`);
      return JSON.parse(said);
    },
    async stop() {
      await standalone.end("SIGTERM");
      await database.drop();
      remove();
    },
  };
}

/** Makes the text the same on each run: without ids, instants, ports, keys and measured times. */
export function steady(text: string): string {
  return text
    .replace(/\b(job|run|sch|whk|evt|dlv|prj|req|att|blk|key)_[0-9a-z]{26}\b/g, "$1_")
    .replace(/\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)/g, "<instant>")
    .replace(/"(date|period)":"\d[\d-]+"/g, '"$1":"<date>"')
    .replace(/\S+\/jobwheel-package-\w+/g, "<folder>")
    .replace(/127\.0\.0\.1:\d+/g, "<here>")
    .replace(/(svc_dev|whsec)_[A-Za-z0-9+/=*]+/g, "$1_")
    .replace(/("next_cursor":"|--cursor )[\w-]+/g, "$1<cursor>")
    .replace(/"(duration_ms|runs_this_period|runs_total)":\d+/g, '"$1":0')
    .replace(/("by_day":\[)[^\]]*/, "$1")
    .replace(/^\{"period":"1h".*$/m, steadyInsights);
}

/** Blanks the figures of insights, since the machine decides how many runs are counted by then. */
function steadyInsights(text: string): string {
  return text
    .replace(/"buckets":\[.*\],"hosts":\[.*\],/, '"buckets":[…],"hosts":[…],')
    .replace(/"(waited_for|by_reason)":\{[^}]*\}/g, '"$1":{…}')
    .replace(/:(?:\d+|null)/g, ":0");
}

const COLOURS: Record<string, string> = {
  2: "dim",
  22: "",
  31: "red",
  32: "green",
  33: "yellow",
  36: "cyan",
  39: "",
};

/** Does the same for output to a terminal, with the names of colours, and without progress and the width of columns. */
export function steadyTerminal(text: string): string {
  const plain = text
    .replaceAll("\x1b", "⎋")
    .replace(/\r⎋\[K[^\r\n]*(?=\r)/g, "")
    .replaceAll("\r⎋[K", "")
    .replace(/⎋\[(\d+)m/g, (_, code: string) => (COLOURS[code] === "" ? "»" : `${COLOURS[code] ?? code}«`));
  return steady(plain)
    .replace(/ {2,}/g, "  ")
    .replace(/(?<=(?:\d{3}|-) {2})\d+(?= {2}<instant>)/g, "0")
    .replace(/(?<=^(?:duration_ms|runs_total) {2})\d+/gm, "0")
    .replace(/(?<=^by_day {2}).*/gm, "[]")
    .replace(/(?<=^period {2})\d{4}-\d\d/gm, "<date>")
    .replace(/[▁-█]{60} {2}.*/g, "<bars>")
    .replace(/^\S*HOST\b(?:.|\n)*?(?=\ndue now)/m, "")
    .replace(/\n{3,}(?=due now)/, "\n\n")
    .replace(/due now: .*/g, "due now: …");
}
