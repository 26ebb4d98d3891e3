import type { Call, Client } from "../../shared/client/index.ts";

/** One thing that a user can ask for. */
export interface Command {
  about: string;
  /** The words that are no options, each of which must be given. */
  operands?: readonly string[];
  /** The options beside those that every command has (input.ts). */
  options?: Readonly<Record<string, Option>>;
  run(input: Input, session: Session): Promise<Output>;
}

export interface Option {
  about: string;
  /** The name of its text in the help, such as `INSTANT`. An option without it is a switch. */
  value?: string;
  /** May be given several times. */
  multiple?: true;
  required?: true;
}

export interface Input {
  operands: string[];
  /** The text of an option; undefined if it was not given. */
  option(name: string): string | undefined;
  /** All texts of an option that may be given several times; undefined if there is none. */
  options(name: string): string[] | undefined;
  has(name: string): boolean;
  /** Throws UsageError for a text that is no whole number. */
  count(name: string): number | undefined;
}

/** A terminal, a pipe or a file. */
export interface Screen {
  write(text: string): unknown;
  isTTY?: boolean;
}

/** The process that the command line runs in, or what a test has in its place. */
export interface Surroundings {
  environment: NodeJS.ProcessEnv;
  stdin: NodeJS.ReadStream;
  stdout: Screen;
  stderr: Screen;
  /** Is aborted by Ctrl-C, SIGTERM and the end of the terminal. */
  signal: AbortSignal;
}

export interface Session extends Pick<Surroundings, "environment" | "stdin" | "stderr" | "signal"> {
  /** Throws UsageError if no key is known. */
  client(): Client;
  profile: string;
  /** The service's address, which error texts name. */
  url: string;
  /** Shows a line of progress, on a terminal alone; the next line takes its place. */
  progress(line: string): void;
  /** The same for a line that stays. */
  note(line: string): void;
  /** Shows a finding before the command ends: with `--json` as the JSON text in a line of its own, else as `text`. */
  tell(json: string, text: string): void;
  /** Asks a person for a yes. Throws UsageError, which names `--yes`, where no person can be asked. */
  confirm(question: () => Promise<string>): Promise<boolean>;
}

export interface Output {
  /** The JSON text of `--json`: the service's own if possible, with every digit. An empty one is not printed. */
  json: string;
  /** The output without `--json`. */
  text: string | Table;
  /** The parts that a terminal shows in place of the text. */
  onTerminal?: readonly (string | Table)[];
  /** A line that a terminal shows below the text. */
  hint?: string | undefined;
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

/** The options of each list (`pageOf`). */
export const PAGE_OPTIONS = {
  limit: { value: "N", about: "the most to show: 1 to 200, without it 50" },
  cursor: { value: "CURSOR", about: "go on where another page has ended" },
} as const;

/** A page of a list. */
export async function listed(
  call: Call<{ data: readonly object[]; next_cursor: string | null }>,
  ...columns: string[]
): Promise<Output> {
  const { result, answer } = await call.withAnswer();
  const hint = result.next_cursor === null ? undefined : `There is more: --cursor ${result.next_cursor}`;
  return { json: answer.text, text: tableOf(result.data, ...columns), hint };
}

/** An object of the API, a member a line. A value that JavaScript cannot hold as it was written is left to `--json`. */
export async function shown(call: Call<object>, hint?: string): Promise<Output> {
  const { result, answer } = await call.withAnswer();
  const rows = Object.entries(result).map(([name, value]) => {
    const isExact = typeof value !== "object" || answer.text.includes(JSON.stringify(value));
    return [name, isExact ? value : "--json shows it"];
  });
  return { json: answer.text, text: { columns: [], rows }, hint };
}
