import type { ParseArgsConfig } from "node:util";
import type { Call, Client } from "../../shared/client/index.ts";

/** One thing that a user can ask for. */
export interface Command {
  about: string;
  /** The words that are no options, each of which must be given. */
  operands?: readonly string[];
  /** Beside those that every command has (main.ts). */
  options?: NonNullable<ParseArgsConfig["options"]>;
  run(input: Input, session: Session): Promise<Output>;
}

export interface Input {
  operands: string[];
  /** The text of an option; undefined if it was not given. */
  option(name: string): string | undefined;
  /** All texts of an option that may be given several times; undefined if there is none. */
  options(name: string): string[] | undefined;
  has(name: string): boolean;
  /** Throws UsageError for what is no whole number. */
  count(name: string): number | undefined;
}

export interface Session {
  /** Throws UsageError if no key is known. */
  client(): Client;
  profile: string;
  /** The service's address, and where it was read. */
  url: string;
  /** Is aborted by Ctrl-C and SIGTERM. */
  signal: AbortSignal;
  /** Shows how far something is, on a terminal alone; the next one takes its place. */
  progress(line: string): void;
  /** Shows a finding before the command ends: as the JSON text in a line of its own, or as the other one. */
  tell(json: string, text: string): void;
}

export interface Output {
  /** The JSON text that `--json` prints. It is the service's own where it can be, every digit included. Empty: nothing. */
  json: string;
  /** What is shown else. */
  text: string | Table;
  exitCode?: number;
}

/** A cell may be an instant, a number or nothing. */
export interface Table {
  columns: readonly string[];
  rows: readonly (readonly unknown[])[];
}

/** The command cannot be carried out as it was given. */
export class UsageError extends Error {
  override name = "UsageError";
}

/** Columns of the members that the items have. Members of members are named by a dot. */
export function tableOf(items: readonly object[], ...columns: string[]): Table {
  const cellOf = (item: object, column: string) =>
    column
      .split(".")
      .reduce<unknown>((value, name) => (value as Record<string, unknown> | null)?.[name], item);
  return { columns, rows: items.map((item) => columns.map((column) => cellOf(item, column))) };
}

/** A page of a list. */
export async function listed(call: Call<{ data: readonly object[] }>, ...columns: string[]): Promise<Output> {
  const { result, answer } = await call.withAnswer();
  return { json: answer.text, text: tableOf(result.data, ...columns) };
}

/** An object of the API, a member a line. A value that JavaScript cannot hold as it was written is left to `--json`. */
export async function shown(call: Call<object>): Promise<Output> {
  const { result, answer } = await call.withAnswer();
  const rows = Object.entries(result).map(([name, value]) => {
    const isExact = typeof value !== "object" || answer.text.includes(JSON.stringify(value));
    return [name, isExact ? value : "--json shows it"];
  });
  return { json: answer.text, text: { columns: [], rows } };
}

/** A text that is one of these words. Throws UsageError. */
export function wordOf<Word extends string>(
  input: Input,
  name: string,
  words: readonly Word[],
): Word | undefined {
  const given = input.option(name);
  const word = words.find((one) => one === given);
  if (given === undefined || word !== undefined) return word;
  throw new UsageError(`--${name} must be one of ${words.join(", ")}`);
}
