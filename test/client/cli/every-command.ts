import { writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Screen } from "../../../services/cli/command.ts";
import { COMMANDS, runCommandLine } from "../../../services/cli/command-line.ts";
import { until } from "../../flow/support.ts";

/** The surroundings in which the command line is used. */
export interface World {
  /** The folder of the files that commands read. */
  folder: string;
  /** A target that answers 200. */
  echo: string;
  asJson: boolean;
  environment: NodeJS.ProcessEnv;
  stdin: NodeJS.ReadStream;
  stdout: Screen;
  stderr: Screen;
}

const SCHEDULES = `schedules:
  - name: nightly
    cron: 0 3 1 1 *
    timezone: Europe/Berlin
    target_url: TARGET
    payload: { full: true }
`;
const ID = /\b(?:job|run|sch|whk|dlv|blk|key)_[0-9a-z]{26}\b/;
/** Tests of their own use these commands, since one asks for a key and the other runs without end. */
const USED_ELSEWHERE = ["login", "webhooks listen"];

/** Uses every command at least once, and writes each with its exit code. Throws if a command was left out. */
export async function useEveryCommand(world: World): Promise<void> {
  const { folder, echo, asJson, environment, stdin } = world;
  const { signal } = new AbortController();
  const unused = new Set(Object.keys(COMMANDS).filter((name) => !USED_ELSEWHERE.includes(name)));

  /** Answers the output of a command with --json. The command leaves no trace in the written output. */
  async function ask<Answer = { id: string }>(...words: string[]): Promise<Answer> {
    let text = "";
    const output: Screen = { write: (more) => (text += more) };
    await runCommandLine([...words, "--json"], {
      environment,
      stdin,
      signal,
      stdout: output,
      stderr: output,
    });
    return JSON.parse(text) as Answer;
  }

  /** Answers the first id that a command prints. */
  async function tell(...words: string[]): Promise<string> {
    for (const name of [words.slice(0, 2).join(" "), words[0] ?? ""]) unused.delete(name);
    let text = "";
    const copy = (to: Screen): Screen => ({
      isTTY: to.isTTY === true,
      write(more: string) {
        text += more;
        return to.write(more);
      },
    });
    world.stdout.write(`$ jobwheel ${words.join(" ").replace(`${folder}/`, "")}\n`);
    const code = await runCommandLine(asJson ? [...words, "--json"] : words, {
      ...{ environment, stdin, signal },
      ...{ stdout: copy(world.stdout), stderr: copy(world.stderr) },
    });
    world.stdout.write(`exit ${code}\n\n`);
    return ID.exec(text)?.[0] ?? "";
  }
  const isOver = (bulk: string) => async () =>
    (await ask<{ ended_at: string | null }>("bulk", "get", bulk)).ended_at !== null;
  // A person says yes on a terminal.
  const confirmed = asJson ? ["--yes"] : [];

  await tell("--help");
  await tell("bulk", "retry", "--help");
  const later = await tell("jobs", "create", "https://example.com/", "--run-at", "365d", "--tag", "a:1");
  await tell("jobs", "get", later);
  await tell("jobs", "explain", later);
  await tell("jobs", "list", "--tag", "a:1", "--created-after", "1h");
  await tell("jobs", "cancel", later);
  await tell("jobs", "create", echo, "--payload", '{"n":9007199254740993}', "--watch");
  const failed = (await ask("jobs", "create", echo.replace("/echo", "/none"), "--max-attempts", "1")).id;
  await tell("jobs", "watch", failed);
  await tell("jobs", "retry", failed);
  await ask("jobs", "watch", failed);
  const run = await tell("runs", "list", "--job", failed);
  await tell("runs", "get", run);
  await tell("runs", "retry", run);
  await ask("jobs", "watch", failed);

  await tell("bulk", "retry", "--error-contains", "not found", "--dry-run");
  await tell("bulk", "retry", "--error-contains", "not found", "--watch", ...confirmed);
  await ask("jobs", "watch", failed);
  const canceled = await tell("bulk", "cancel", "--tag", "none", ...confirmed);
  await until(isOver(canceled));
  await tell("bulk", "get", canceled);
  await tell("bulk", "watch", canceled);
  await tell("bulk", "abort", canceled);
  await tell("bulk", "list", "--limit", "1");
  await tell("bulk", "cancel");

  const file = join(folder, "schedules.yaml");
  writeFileSync(file, SCHEDULES.replace("TARGET", echo));
  await tell("schedules", "apply", file, "--dry-run");
  await tell("schedules", "apply", file);
  await tell("schedules", "apply", file);
  writeFileSync(file, SCHEDULES.replace("TARGET", echo).replace("0 3", "0 4"));
  await tell("schedules", "apply", file);
  await tell("schedules", "list", "--paused", "false");
  await tell("schedules", "get", "nightly");
  await tell("schedules", "preview", "--cron", "0 9 * * MON", "--timezone", "Asia/Tokyo", "--count", "2");
  await tell("schedules", "create", "yearly", echo, "--cron", "0 3 2 1 *", "--overlap", "skip");
  await tell("schedules", "edit", "yearly", "--payload", '{"year":1}', "--name", "each-year");
  for (const verb of ["pause", "resume", "run", "firings"]) await tell("schedules", verb, "each-year");
  await tell("schedules", "backfill", "each-year", "--from", "1h", "--dry-run");
  for (const name of ["each-year", "nightly"]) await tell("schedules", "delete", name);

  const limits = ["--flow-concurrency", "1", "--flow-rate", "50/60", "--flow-hold", "job"];
  await tell(
    "schedules",
    "create",
    "in-order",
    echo,
    "--cron",
    "0 3 3 1 *",
    "--flow",
    "customer:1",
    ...limits,
  );
  await tell("schedules", "delete", "in-order");
  const flowing = await tell(
    "jobs",
    "create",
    echo,
    "--run-at",
    "2030-01-01T00:00:00Z",
    "--flow",
    "customer:1",
  );
  await tell("jobs", "list", "--flow-key", "customer:1");
  await tell("jobs", "cancel", flowing);
  await tell("flows", "list");
  await tell("flows", "set", "customer:1", "--concurrency", "none", "--rate", "2/1", "--pin");
  for (const verb of ["pause", "resume", "get"]) await tell("flows", verb, "customer:1");
  await tell("flows", "set", "customer:1", "--rate", "2");

  await tell("hosts", "park", "api.example.com");
  await tell("hosts", "list", "--state", "down");
  await tell("hosts", "open", "api.example.com");

  const hook = await tell("webhooks", "create", "http://127.0.0.1:9/", "--event", "job.failed");
  for (const verb of ["get", "disable", "enable", "rotate", "test"]) await tell("webhooks", verb, hook);
  await tell("webhooks", "list");
  type Deliveries = { data: { id: string; status: string }[] };
  const firstOf = async () => (await ask<Deliveries>("webhooks", "deliveries", hook)).data[0];
  await until(async () => (await firstOf())?.status === "failed");
  await tell("webhooks", "deliveries", hook);
  await tell("webhooks", "retry", hook, (await firstOf())?.id ?? "");
  await tell("webhooks", "delete", hook);

  const key = await tell("keys", "create", "--scope", "read", "--name", "dashboards");
  await tell("keys", "list", "--limit", "1");
  const successor = await tell("keys", "rotate", key, "--overlap-hours", "0");
  await tell("keys", "delete", successor);
  await tell("signing-secret");
  await tell("signing-secret", "rotate");
  await tell("project", "edit", "--name", "First project");
  await tell("project");
  await tell("usage");
  await tell("insights", "--period", "1h");
  await tell("clock");
  await tell("clock", "advance", "48h");

  await tell("jobs", "get", "job_unknown");
  await tell("jobs", "list", "--status", "faild");
  await tell("jobs", "list", "--taag", "a:1");
  await tell("jobs", "crate", echo);
  await tell("jobs", "fly");
  await tell("schedules", "preview");
  if (unused.size > 0) throw new Error(`not used: ${[...unused].join(", ")}`);
}
