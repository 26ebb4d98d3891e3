import { parseArgs } from "node:util";
import { type Command, type Input, UsageError } from "./command.ts";

/** The options of every command. */
const COMMON = {
  json: { type: "boolean" },
  profile: { type: "string" },
  help: { type: "boolean", short: "h" },
} as const;

/** The words behind the name of a command. Throws UsageError. */
export function readInput(name: string, command: Command, words: string[]) {
  const wanted = command.operands ?? [];
  try {
    const options = { ...command.options, ...COMMON };
    const { values, positionals } = parseArgs({ args: words, options, allowPositionals: true });
    const given = values as Record<string, string | boolean | string[] | undefined>;
    if (!values.help && positionals.length !== wanted.length)
      throw new Error(`it takes ${wanted.join(" ") || "no words"}`);
    return { values, input: inputOf(positionals, given) };
  } catch (error) {
    throw new UsageError(`${error instanceof Error ? error.message : error}\n${usageOf(name, command)}`);
  }
}

function inputOf(operands: string[], given: Record<string, string | boolean | string[] | undefined>): Input {
  const option = (name: string) => given[name] as string | undefined;
  return {
    operands,
    option,
    options: (name) => given[name] as string[] | undefined,
    has: (name) => given[name] === true,
    count(name) {
      const text = option(name);
      if (text === undefined || /^[0-9]{1,9}$/.test(text))
        return text === undefined ? undefined : Number(text);
      throw new UsageError(`--${name} must be a whole number, not ${text}`);
    },
  };
}

export function usageOf(name: string, { operands = [], options = {} }: Command): string {
  const named = Object.entries(options).map(
    ([option, { type }]) => `[--${option}${type === "string" ? " …" : ""}]`,
  );
  return ["jobwheel", name, ...operands, ...named].join(" ");
}
