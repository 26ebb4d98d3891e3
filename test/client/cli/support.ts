import { mkdirSync } from "node:fs";
import { join } from "node:path";
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
  /** What a command prints with --json; throws if it fails. */
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
  };
  const jobwheel = (...words: string[]) => run(["node", PROGRAM, ...words], environment);
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

/** The same on each run: without ids, instants, ports, keys and measured times. */
export function steady(text: string): string {
  return text
    .replace(/\b(job|run|sch|whk|evt|dlv|prj|req|att)_[0-9a-z]{26}\b/g, "$1_")
    .replace(/\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d)/g, "<instant>")
    .replace(/"(date|period)":"[\d-]+"/g, '"$1":"<date>"')
    .replace(/127\.0\.0\.1:\d+/g, "<here>")
    .replace(/whsec_[A-Za-z0-9+/=*]+/g, "whsec_")
    .replace(/"(duration_ms|runs_this_period|runs_total)":\d+/g, '"$1":0')
    .replace(/("by_day":\[)[^\]]*/, "$1");
}
