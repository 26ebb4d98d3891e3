import { NotJson } from "./json-fault.ts";

/** How many digits of one part of a number are read at once, since a body can be one number of 32 million digits. */
const DIGITS_MAX = 8_192;

const MORE_DIGITS = `[0-9]{0,${DIGITS_MAX}}`;
const FRACTION = `(?:\\.[0-9]{1,${DIGITS_MAX}})?`;
const EXPONENT = `(?:[eE][+-]?[0-9]{1,${DIGITS_MAX}})?`;
const WORD = new RegExp(`true|false|null|-?(?:0|[1-9]${MORE_DIGITS})${FRACTION}${EXPONENT}`, "y");
/** The rest of a number, by the part in which it was cut. */
const REST = {
  integer: new RegExp(`${MORE_DIGITS}${FRACTION}${EXPONENT}`, "y"),
  fraction: new RegExp(`${MORE_DIGITS}${EXPONENT}`, "y"),
  exponent: new RegExp(MORE_DIGITS, "y"),
};
type Part = keyof typeof REST;

/** Reads the words of JSON: `true`, `false`, `null` and numbers. */
export class WordReader {
  /** The part in which a long number was cut; null while no word is open. */
  private part: Part | null = null;

  get isOpen(): boolean {
    return this.part !== null;
  }

  /** Reads the word at `start`, or goes on with the one that is open. Returns where it stopped. Throws NotJson. */
  read(text: string, start: number): number {
    const pattern = this.part === null ? WORD : REST[this.part];
    pattern.lastIndex = start;
    if (!pattern.test(text)) throw new NotJson(start, "a value");
    const end = pattern.lastIndex;
    // A number that was not cut does not end before a digit. 0 does, but it is short.
    const isCut = end - start >= DIGITS_MAX && isDigit(text.charCodeAt(end));
    this.part = isCut ? partOf(text.slice(start, end), this.part ?? "integer") : null;
    return end;
  }
}

/** The part in which a slice of a number ends that began in the part `before`. */
function partOf(slice: string, before: Part): Part {
  if (/[eE]/.test(slice)) return "exponent";
  return slice.includes(".") ? "fraction" : before;
}

const isDigit = (code: number) => code >= 48 && code <= 57;
