import { parseId } from "../../shared/domain/ids.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import type { Database } from "../../shared/store/database/database.ts";

/** One thing that an operator can ask for. */
export interface Command {
  /** The words that follow the command's name, as the help shows them. */
  usage: string;
  /** The name of the one word that is not an option, if there is one. */
  operand?: string;
  /** The options, without dashes, that take a value. `--json` and `--as` always exist. */
  options?: readonly string[];
  run(input: Input, cell: CellAccess): Promise<Output>;
}

/** A command that needs no cell, because it only calculates. */
export interface Calculation extends Omit<Command, "run"> {
  calculate(input: Input): Output;
}

export interface Input {
  operand: string;
  option(name: string): string | undefined;
  /** Throws Refusal if the option is missing. */
  required(name: string): string;
}

/** An operator's access to a cell. */
export interface CellAccess {
  db: Database;
  /** The name under which changes are recorded. */
  operator: string;
  /** Throws Refusal if no key is at hand, or if the cell seals with another one. */
  openSeal(): Promise<Seal>;
  /** The seal of the keys at hand, which the cell has not been asked about; null if there is none. */
  findSeal(): Seal | null;
}

export interface Output {
  /** The output with `--json`. */
  json: object;
  /** The output without `--json`. */
  text: string;
  /** The answer is no: the process ends with 1. */
  isRefusal?: boolean;
}

/** The command cannot be carried out. The message is shown as one line, without a stack. */
export class Refusal extends Error {}

export function parseChoice<Choice extends string>(
  text: string,
  name: string,
  choices: readonly Choice[],
): Choice {
  const choice = choices.find((candidate) => candidate === text);
  if (choice === undefined) throw new Refusal(`${name} must be one of ${choices.join(", ")}`);
  return choice;
}

export function parseInteger(text: string, name: string, least: number, most: number): number {
  const value = /^[0-9]{1,9}$/.test(text) ? Number(text) : Number.NaN;
  if (value >= least && value <= most) return value;
  throw new Refusal(`${name} must be a whole number from ${least} to ${most}`);
}

export function parseIdOf(prefix: string, text: string, name: string): string {
  const id = parseId(prefix, text);
  if (id === null) throw new Refusal(`${name} must be an id that begins with ${prefix}`);
  return id;
}

/** Lines of columns; a row that is shorter than the others ends early. */
export function table(rows: readonly (readonly string[])[]): string {
  const widths: number[] = [];
  for (const row of rows) {
    row.forEach((cell, column) => {
      widths[column] = Math.max(widths[column] ?? 0, Bun.stringWidth(cell));
    });
  }
  const pad = (cell: string, column: number) =>
    cell + " ".repeat((widths[column] ?? 0) - Bun.stringWidth(cell));
  return rows.map((row) => row.map(pad).join("  ").trimEnd()).join("\n");
}
