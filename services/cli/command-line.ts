import { opsUrlOf } from "../../shared/client/client.ts";
import { ApiError, ConnectionError, createClient } from "../../shared/client/index.ts";
import { CLIENT_VERSION } from "../../shared/client/send.ts";
import { didYouMean, findNearest } from "../../shared/domain/nearest.ts";
import { type Command, type Session, type Surroundings, UsageError } from "./command.ts";
import { BULK_COMMANDS } from "./commands/bulk.ts";
import { CLOCK_COMMANDS } from "./commands/clock.ts";
import { FLOW_COMMANDS } from "./commands/flows.ts";
import { HOST_COMMANDS } from "./commands/hosts.ts";
import { JOB_COMMANDS } from "./commands/jobs.ts";
import { KEY_COMMANDS } from "./commands/keys.ts";
import { login } from "./commands/login.ts";
import { PROJECT_COMMANDS } from "./commands/project.ts";
import { RUN_COMMANDS } from "./commands/runs.ts";
import { SCHEDULE_COMMANDS } from "./commands/schedules.ts";
import { WEBHOOK_COMMANDS } from "./commands/webhooks.ts";
import { columnsOf, helpOf, readInput, usageOf } from "./input.ts";
import { DEFAULT_PROFILE, findProfile } from "./profiles.ts";
import { createTerminal, readLine } from "./terminal.ts";

export const COMMANDS: Readonly<Record<string, Command>> = {
  login,
  ...JOB_COMMANDS,
  ...RUN_COMMANDS,
  ...SCHEDULE_COMMANDS,
  ...BULK_COMMANDS,
  ...FLOW_COMMANDS,
  ...WEBHOOK_COMMANDS,
  ...PROJECT_COMMANDS,
  ...HOST_COMMANDS,
  ...KEY_COMMANDS,
  ...CLOCK_COMMANDS,
};

/** README.md tells scripts what they mean. */
const EXIT = { refused: 1, usage: 2, unanswered: 3, interrupted: 130 } as const;
/** A person waits for the answer, so the command gives up on a silent service after some seconds. */
const RETRIES_MAX = 2;
const FOOT = `Times may be given as an instant (2030-01-31T09:00:00Z), or as 90s, 10m, 48h or 7d from now or ago.
JOBWHEEL_URL and JOBWHEEL_KEY win over what login has kept.
It exits with 0 when all is done, with 1 if the API refuses or what was watched has failed, with 2 if the command is wrong,
with 3 if the service does not answer, and with 130 after Ctrl-C.`;

/** Carries out the command that the words name. Answers the exit code. */
export async function runCommandLine(words: string[], surroundings: Surroundings): Promise<number> {
  const { environment, stdin, stdout, stderr, signal } = surroundings;
  const asJson = words.includes("--json");
  const isWatched = stderr.isTTY === true && !asJson;
  const terminal = createTerminal({
    isTerminal: stdout.isTTY === true,
    hasColours: stdout.isTTY === true && !environment.NO_COLOR,
  });
  let session: Session | undefined;
  const clearLine = () => isWatched && stderr.write("\r\x1b[K");
  const say = (text: string) => {
    stdout.write(`${text}\n`);
    return 0;
  };
  const complain = (text: string, json: object, exitCode: number) => {
    stderr.write(`${asJson ? JSON.stringify({ error: json }) : `jobwheel: ${text}`}\n`);
    return exitCode;
  };

  function openSession(profile: string): Session {
    const { url, key } = findProfile(profile, environment);
    return {
      ...{ environment, stdin, stderr, signal, profile, url },
      client() {
        const opsUrl = environment.JOBWHEEL_OPS_URL || undefined;
        if (key !== undefined)
          return createClient({ baseUrl: url, apiKey: key, retriesMax: RETRIES_MAX, opsUrl });
        throw new UsageError(
          `no key is known for the profile "${profile}": run jobwheel login, or set JOBWHEEL_KEY`,
        );
      },
      progress: (line) => isWatched && stderr.write(`\r\x1b[K${line}`),
      note(line) {
        clearLine();
        if (isWatched) stderr.write(`${line}\n`);
      },
      tell(json, text) {
        clearLine();
        say(asJson ? json : text);
      },
      async confirm(question) {
        if (!isWatched || stdin.isTTY !== true)
          throw new UsageError("nobody can be asked whether that is meant: --yes says so");
        const asked = `${await question()} [y/N] `;
        clearLine();
        return /^y(es)?$/i.test(await readLine(asked, { stdin, stderr, signal }, { isShown: true }));
      },
    };
  }

  async function carryOut(): Promise<number> {
    const name = [words.slice(0, 2).join(" "), words[0] ?? ""].find((one) => Object.hasOwn(COMMANDS, one));
    const command = name === undefined ? undefined : COMMANDS[name];
    if (name === undefined || command === undefined) {
      if (words.length === 0 || words.includes("--help") || words.includes("-h"))
        return say(listOf(words[0]));
      if (words.includes("--version")) return say(CLIENT_VERSION);
      throw new UsageError(unknownCommand(words));
    }
    const { input, profile, wantsHelp } = readInput(name, command, words.slice(name.split(" ").length));
    if (wantsHelp) return say(helpOf(name, command));
    session = openSession(profile ?? environment.JOBWHEEL_PROFILE ?? DEFAULT_PROFILE);
    const output = await command.run(input, session);
    clearLine();
    const text = terminal.show(output, asJson);
    if (text !== "") say(text);
    return signal.aborted ? EXIT.interrupted : (output.exitCode ?? 0);
  }

  /** Answers the exit code. */
  function tellError(error: unknown): number {
    clearLine();
    if (signal.aborted) return EXIT.interrupted;
    if (error instanceof ApiError) {
      const { code, message, param, requestId } = error;
      const hint =
        code === "unauthorized" ? "\njobwheel login keeps another key; JOBWHEEL_KEY wins over it." : "";
      return complain(
        `${message} (${code}, ${requestId ?? "no request id"})${hint}`,
        { code, message, param, request_id: requestId },
        EXIT.refused,
      );
    }
    if (error instanceof ConnectionError && session !== undefined) {
      const { url } = session;
      const opsUrl = environment.JOBWHEEL_OPS_URL || opsUrlOf(url);
      const asked = words[0] === "clock" ? `${opsUrl}, which JOBWHEEL_OPS_URL sets` : url;
      const message = `${error.message} It was asked for at ${asked}.`;
      return complain(message, { code: "no_answer", message }, EXIT.unanswered);
    }
    // A file that cannot be read, or a port that is in use.
    const isOfSystem = error instanceof Error && "syscall" in error;
    if (error instanceof UsageError || error instanceof TypeError || isOfSystem)
      return complain(error.message, { code: "usage", message: error.message }, EXIT.usage);
    throw error;
  }

  try {
    return await carryOut();
  } catch (error) {
    return tellError(error);
  }
}

/** All commands, or those whose names begin with a word. */
function listOf(group: string | undefined): string {
  const all = Object.entries(COMMANDS);
  const ofGroup = all.filter(([name]) => name.split(" ")[0] === group);
  const rows = (ofGroup.length > 0 ? ofGroup : all).map(
    ([name, command]) => [usageOf(name, command).replace("jobwheel ", ""), command.about] as const,
  );
  return `jobwheel COMMAND [--json] [--profile NAME] [--help]\n\n${columnsOf(rows)}\n\n${FOOT}`;
}

function unknownCommand(words: readonly string[]): string {
  const [group = "", verb] = words;
  if (group.startsWith("-")) return `the command stands before its options, such as ${group}`;
  const names = Object.keys(COMMANDS);
  const ofGroup = names.filter((name) => name.startsWith(`${group} `));
  const given = verb === undefined || verb.startsWith("-") ? group : `${group} ${verb}`;
  const meant = findNearest(given, names) ?? findNearest(group, names);
  if (ofGroup.length > 0 && meant === null) return `${given} is no command; there are ${ofGroup.join(", ")}`;
  return `there is no command "${given}".${didYouMean(meant === null ? null : `jobwheel ${meant}`)} jobwheel --help lists all.`;
}
