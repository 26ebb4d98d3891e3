import { parseArgs } from "node:util";
import { ApiError } from "../../shared/domain/errors.ts";
import { ConfigError, readConfig } from "../../shared/platform/config.ts";
import { faultText, tellError } from "../../shared/platform/error-text.ts";
import { isDatabaseFault } from "../../shared/store/database/database.ts";
import { readOperator, type Variables } from "./cause.ts";
import { openCell } from "./cell.ts";
import { type Calculation, type Command, type Input, type Output, Refusal, table } from "./command.ts";
import { auditList } from "./commands/audit.ts";
import { bulkAbort, bulkList } from "./commands/bulk.ts";
import { cronPreview } from "./commands/cron.ts";
import { hold, holdList, resume } from "./commands/hold.ts";
import { hostClear, hostLimit, hostList } from "./commands/host.ts";
import { keyCreate, keyList, keyRevoke, keyRotate } from "./commands/key.ts";
import { nodeDead, nodeList } from "./commands/node.ts";
import { projectCreate, projectList, projectSet, projectShow } from "./commands/project.ts";
import { secretRotate, secretShow } from "./commands/secret.ts";
import { secretsKeyList, secretsKeyLost, secretsKeyReseal } from "./commands/secrets-key.ts";
import { shardList } from "./commands/shard.ts";

/** The texts that a command prints, and the code with which its process ends. */
export interface Answer {
  code: number;
  stdout: string;
  stderr: string;
}

const COMMANDS: Readonly<Record<string, Command | Calculation>> = {
  "project create": projectCreate,
  "project list": projectList,
  "project show": projectShow,
  "project set": projectSet,
  "key create": keyCreate,
  "key list": keyList,
  "key revoke": keyRevoke,
  "key rotate": keyRotate,
  "secret show": secretShow,
  "secret rotate": secretRotate,
  "secrets-key list": secretsKeyList,
  "secrets-key reseal": secretsKeyReseal,
  "secrets-key lost": secretsKeyLost,
  "node list": nodeList,
  "node dead": nodeDead,
  "shard list": shardList,
  "host list": hostList,
  "host limit": hostLimit,
  "host clear": hostClear,
  "bulk list": bulkList,
  "bulk abort": bulkAbort,
  "audit list": auditList,
  "cron preview": cronPreview,
  hold,
  "hold list": holdList,
  resume,
};
/** A command's name has one word or two. */
const NAME_WORDS_MAX = 2;

/**
 * Runs the command that the words name, on the database of DATABASE_URL, or on that of the standalone which runs on
 * DATA_DIR. A refusal is one line on stderr and the code 1.
 */
export async function runCommandLine(words: readonly string[], variables: Variables): Promise<Answer> {
  try {
    const { code, text } = await run(words, variables);
    return { code, stdout: `${text}\n`, stderr: "" };
  } catch (error) {
    return { code: 1, stdout: "", stderr: `${refusalOf(error) ?? Bun.inspect(tellError(error))}\n` };
  }
}

async function run(words: readonly string[], variables: Variables): Promise<{ code: number; text: string }> {
  if (words[0] === "--help") return { code: 0, text: help() };
  const named = words.slice(0, NAME_WORDS_MAX).join(" ");
  const name = [named, words[0] ?? ""].find((candidate) => Object.hasOwn(COMMANDS, candidate));
  const command = name === undefined ? undefined : COMMANDS[name];
  if (name === undefined || command === undefined) {
    throw new Refusal(
      `${named === "" ? "a command is needed" : `there is no command ${named}`}\n\n${help()}`,
    );
  }
  const { input, json, as } = readInput(command, words.slice(name.split(" ").length));
  const output =
    "calculate" in command ? command.calculate(input) : await runOnCell(command, input, variables, as);
  if (output.isRefusal && !json) throw new Refusal(output.text);
  return { code: output.isRefusal ? 1 : 0, text: json ? JSON.stringify(output.json) : output.text };
}

async function runOnCell(
  command: Command,
  input: Input,
  variables: Variables,
  as: string | undefined,
): Promise<Output> {
  const operator = readOperator(as, variables);
  const cell = await openCell(readConfig(variables, "admin"), operator);
  try {
    return await command.run(input, cell);
  } finally {
    await cell.db.close();
  }
}

function readInput(
  command: Command | Calculation,
  words: readonly string[],
): { input: Input; json: boolean; as: string | undefined } {
  const options: Record<string, { type: "boolean" | "string" }> = {
    json: { type: "boolean" },
    as: { type: "string" },
  };
  for (const name of command.options ?? []) options[name] = { type: "string" };
  const { values, positionals, tokens } = parseArgs({
    args: joinValues(words, options),
    options,
    allowPositionals: true,
    strict: true,
    tokens: true,
  });
  const given = tokens.flatMap((token) => (token.kind === "option" ? [token.name] : []));
  const repeated = given.find((name, index) => given.indexOf(name) !== index);
  if (repeated !== undefined) throw new Refusal(`--${repeated} is given more than once`);

  const [operand, ...surplus] = positionals;
  if (command.operand !== undefined && operand === undefined)
    throw new Refusal(`${command.operand} is missing`);
  const unexpected = command.operand === undefined ? operand : surplus[0];
  if (unexpected !== undefined) throw new Refusal(`unexpected: ${unexpected}`);

  const option = (name: string) => {
    const value = values[name];
    return typeof value === "string" ? value : undefined;
  };
  const required = (name: string) => {
    const value = option(name);
    if (value === undefined) throw new Refusal(`--${name} is required`);
    return value;
  };
  return {
    input: { operand: operand ?? "", option, required },
    json: values.json === true,
    as: option("as"),
  };
}

/** Options have two dashes. A word with a single dash is the value of the option before it, if that takes a value. */
function joinValues(words: readonly string[], options: Record<string, { type: string }>): string[] {
  const joined: string[] = [];
  for (const word of words) {
    const option = joined.at(-1) ?? "";
    const takesValue = option.startsWith("--") && options[option.slice(2)]?.type === "string";
    if (takesValue && /^-[^-]/.test(word)) joined.splice(-1, 1, `${option}=${word}`);
    else joined.push(word);
  }
  return joined;
}

function help(): string {
  const lines = Object.entries(COMMANDS).map(([name, { usage }]) => [`  ${name}`, usage]);
  return `The commands, each with --json if wanted, and with --as NAME (or OPERATOR=NAME), by which the audit names you:\n${table(lines)}`;
}

/** The message for an error that is no bug; null for a bug. */
function refusalOf(error: unknown): string | null {
  if (error instanceof Refusal || error instanceof ApiError || error instanceof ConfigError) {
    return error.message;
  }
  if (!(error instanceof Error)) return null;
  const code = (error as { code?: unknown }).code;
  if (typeof code === "string" && code.startsWith("ERR_PARSE_ARGS")) {
    // The rest of the message suggests that an unknown option may be a plain word, which is never so here.
    return error.message.replace(/\. To specify a positional.*/s, "").replaceAll("\n", " ");
  }
  if (isDatabaseFault(error)) {
    return `the database did not answer, so a change may or may not have been made: ${faultText(error)}`;
  }
  return null;
}
