import { type ParseArgsConfig, parseArgs } from "node:util";
import { didYouMean, findNearest } from "../../shared/domain/nearest.ts";
import { type Command, type Input, type Option, UsageError } from "./command.ts";

/** The options of every command. */
const COMMON: Readonly<Record<string, Option>> = {
  json: { about: "print JSON" },
  profile: { value: "NAME", about: "use the key that was kept under this name" },
  help: { about: "show this" },
};

export interface ReadInput {
  input: Input;
  profile: string | undefined;
  wantsHelp: boolean;
}

/** Reads the words behind the name of a command. Throws UsageError. */
export function readInput(name: string, command: Command, words: string[]): ReadInput {
  const wanted = command.operands ?? [];
  const known = { ...command.options, ...COMMON };
  try {
    checkNames(words, Object.keys(known));
    const { values, positionals } = parseArgs({
      args: words,
      options: settingsOf(known),
      allowPositionals: true,
    });
    const given = values as Record<string, string | boolean | string[] | undefined>;
    const { help: wantsHelp = false, profile } = values as { help?: boolean; profile?: string };
    if (!wantsHelp && positionals.length !== wanted.length)
      throw new Error(
        `it takes ${wanted.join(" ") || "no words"}, and ${positionals.length || "none"} ${positionals.length === 1 ? "was" : "were"} given`,
      );
    const missing = Object.entries(known).find(
      ([option, { required }]) => required && given[option] === undefined,
    );
    if (!wantsHelp && missing !== undefined)
      throw new Error(`--${missing[0]} is needed: ${missing[1].about}`);
    return { input: inputOf(positionals, given), profile, wantsHelp };
  } catch (error) {
    throw new UsageError(
      `${error instanceof Error ? error.message : error}\nusage: ${usageOf(name, command)}\njobwheel ${name} --help tells more`,
    );
  }
}

function settingsOf(known: Readonly<Record<string, Option>>): NonNullable<ParseArgsConfig["options"]> {
  const settings = Object.entries(known).map(([option, { value, multiple = false }]) => [
    option,
    { type: value === undefined ? "boolean" : "string", multiple, ...(option === "help" && { short: "h" }) },
  ]);
  return Object.fromEntries(settings);
}

/** Throws for an option that is not known, and names the one that was meant. */
function checkNames(words: string[], known: readonly string[]): void {
  const { tokens } = parseArgs({ args: words, allowPositionals: true, strict: false, tokens: true });
  for (const token of tokens) {
    if (token.kind !== "option" || known.includes(token.name) || token.rawName === "-h") continue;
    const meant = findNearest(token.name, known) ?? findLonger(token.name, known);
    throw new Error(
      `there is no option ${token.rawName}.${didYouMean(meant === null ? null : `--${meant}`)}`,
    );
  }
}

/** The first option that goes on where the name ends, or ends where the name goes on: --flow-key and --flow. */
function findLonger(name: string, known: readonly string[]): string | null {
  return known.find((one) => one.startsWith(`${name}-`) || name.startsWith(`${one}-`)) ?? null;
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

/** A command in one line, with the options that it must have. */
export function usageOf(name: string, { operands = [], options = {} }: Command): string {
  const needed = Object.entries(options).flatMap(([option, { value, required }]) =>
    required ? [`--${option} ${value}`] : [],
  );
  return ["jobwheel", name, ...operands, ...needed].join(" ");
}

/** All that a command takes, an option a line. */
export function helpOf(name: string, command: Command): string {
  const options = Object.entries({ ...command.options, ...COMMON }).map(
    ([option, { value, about, multiple }]) =>
      [
        `--${option}${value === undefined ? "" : ` ${value}`}`,
        multiple ? `${about}; may be given several times` : about,
      ] as const,
  );
  return `${usageOf(name, command)}\n\n${sentenceOf(command.about)}\n\n${columnsOf(options)}`;
}

/** Two columns, the first as wide as it must be. */
export function columnsOf(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([first]) => first.length));
  return rows.map(([first, second]) => `  ${first.padEnd(width)}  ${second}`).join("\n");
}

const sentenceOf = (about: string) => `${about[0]?.toUpperCase()}${about.slice(1)}.`;

/** A text that is one of these words. Throws UsageError. */
export function wordOf<Word extends string>(
  input: Input,
  name: string,
  words: readonly Word[],
): Word | undefined {
  const given = input.option(name);
  const word = words.find((one) => one === given);
  if (given === undefined || word !== undefined) return word;
  throw new UsageError(
    `--${name} must be one of ${words.join(", ")}.${didYouMean(findNearest(given, words))}`,
  );
}

const UNITS_MS = { s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** An instant: as it is given, or `90s`, `10m`, `48h` or `7d` from now, or before now. */
export function instantOf(input: Input, name: string, direction: "from now" | "ago"): string | undefined {
  const given = input.option(name);
  const [, count, unit] = /^([0-9]{1,6})([smhd])$/.exec(given ?? "") ?? [];
  if (count === undefined) return given;
  const distanceMs = Number(count) * UNITS_MS[unit as keyof typeof UNITS_MS];
  return new Date(Date.now() + (direction === "ago" ? -distanceMs : distanceMs)).toISOString();
}

export function pageOf(input: Input): { limit?: number; cursor?: string } {
  return definedOf({ limit: input.count("limit"), cursor: input.option("cursor") });
}

/** The members that are not undefined. */
export function definedOf<Query extends object>(
  query: Query,
): { [Name in keyof Query]?: Exclude<Query[Name], undefined> } {
  const given = Object.entries(query).filter(([, value]) => value !== undefined);
  return Object.fromEntries(given) as { [Name in keyof Query]?: Exclude<Query[Name], undefined> };
}
