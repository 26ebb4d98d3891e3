import { ApiError, ConnectionError, createClient } from "../../shared/client/index.ts";
import { CLIENT_VERSION } from "../../shared/client/send.ts";
import { type Command, type Session, shown, UsageError } from "./command.ts";
import { JOB_COMMANDS } from "./commands/jobs.ts";
import { login } from "./commands/login.ts";
import { RUN_COMMANDS } from "./commands/runs.ts";
import { SCHEDULE_COMMANDS } from "./commands/schedules.ts";
import { WEBHOOK_COMMANDS } from "./commands/webhooks.ts";
import { readInput, usageOf } from "./input.ts";
import { DEFAULT_PROFILE, findProfile } from "./profiles.ts";
import { createTerminal } from "./terminal.ts";

/**
 * `jobwheel`, the command line of API users. It exits with 0; with 1 if the API refuses or a job that is watched fails; with 2
 * if the command is wrong; with 3 if the service does not answer; with 130 after Ctrl-C.
 */

const COMMANDS: Readonly<Record<string, Command>> = {
  login,
  ...JOB_COMMANDS,
  ...RUN_COMMANDS,
  ...SCHEDULE_COMMANDS,
  ...WEBHOOK_COMMANDS,
  project: {
    about: "show the project of the key",
    run: async (_, { client, signal }) => shown(client().project.get({ signal })),
  },
  usage: {
    about: "show what the project has used of a month's runs",
    options: { period: { type: "string" } },
    async run(input, { client, signal }) {
      const period = input.option("period");
      return shown(client().project.usage(period === undefined ? {} : { period }, { signal }));
    },
  },
};

const EXIT = { refused: 1, usage: 2, unanswered: 3, interrupted: 130 } as const;

const { stdout, stderr, env } = process;
const asJson = process.argv.includes("--json");
const interrupted = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"] as const) process.on(signal, () => interrupted.abort());
// `jobwheel jobs list | head` ends the pipe early.
stdout.on("error", () => process.exit(0));
const terminal = createTerminal({
  isTerminal: stdout.isTTY === true,
  hasColours: stdout.isTTY === true && !env.NO_COLOR,
});
const isWatched = stderr.isTTY === true && !asJson;
const clearLine = () => isWatched && stderr.write("\r\x1b[K");

try {
  process.exitCode = await run(process.argv.slice(2));
} catch (error) {
  clearLine();
  process.exitCode = tellError(error);
}

async function run(words: string[]): Promise<number> {
  const name = [words.slice(0, 2).join(" "), words[0] ?? ""].find((one) => Object.hasOwn(COMMANDS, one));
  const command = name === undefined ? undefined : COMMANDS[name];
  if (name === undefined || command === undefined) {
    if (words.length === 0 || words.includes("--help") || words.includes("-h")) return say(help());
    if (words.includes("--version")) return say(CLIENT_VERSION);
    throw new UsageError(`there is no command "${words.slice(0, 2).join(" ")}"; jobwheel --help lists them`);
  }
  const { values, input } = readInput(name, command, words.slice(name.split(" ").length));
  if (values.help) return say(`${usageOf(name, command)}\n  ${command.about}`);
  const output = await command.run(
    input,
    openSession(values.profile ?? env.JOBWHEEL_PROFILE ?? DEFAULT_PROFILE),
  );
  clearLine();
  const text = terminal.show(output, asJson);
  if (text !== "") say(text);
  return interrupted.signal.aborted ? EXIT.interrupted : (output.exitCode ?? 0);
}

function openSession(profile: string): Session {
  const { url, key } = findProfile(profile, env);
  return {
    profile,
    url,
    signal: interrupted.signal,
    client() {
      if (key !== undefined) return createClient({ baseUrl: url, apiKey: key });
      throw new UsageError(
        `no key is known for the profile "${profile}": run jobwheel login, or set JOBWHEEL_KEY`,
      );
    },
    progress(line) {
      if (isWatched) stderr.write(`\r\x1b[K${line}`);
    },
    tell(json, text) {
      clearLine();
      say(asJson ? json : text);
    },
  };
}

function help(): string {
  const lines = Object.entries(COMMANDS).map(
    ([name, command]) => `${usageOf(name, command)}\n    ${command.about}`,
  );
  return [
    ...lines,
    "",
    "Each takes --json and --profile NAME. JOBWHEEL_URL and JOBWHEEL_KEY win over the profile.",
  ].join("\n");
}

/** Answers the exit code. */
function tellError(error: unknown): number {
  if (interrupted.signal.aborted) return EXIT.interrupted;
  if (error instanceof ApiError) {
    const { code, message, param, requestId } = error;
    return complain(
      `${message} (${code}, ${requestId ?? "no request id"})`,
      { code, message, param, request_id: requestId },
      EXIT.refused,
    );
  }
  if (error instanceof ConnectionError)
    return complain(error.message, { code: "no_answer", message: error.message }, EXIT.unanswered);
  if (error instanceof UsageError || error instanceof TypeError)
    return complain(error.message, { code: "usage", message: error.message }, EXIT.usage);
  throw error;
}

function complain(text: string, json: object, exitCode: number): number {
  stderr.write(`${asJson ? JSON.stringify({ error: json }) : `jobwheel: ${text}`}\n`);
  return exitCode;
}

function say(text: string): number {
  stdout.write(`${text}\n`);
  return 0;
}
