import { invalidRequest } from "./errors.ts";

/** The rules for names and labels that customers choose. Characters are Unicode code points. */

export const PROJECT_NAME_CHARACTERS_MAX = 80;

// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for.
const CONTROL_CHARACTERS = /[\u0000-\u001f\u007f-\u009f]/;

/** Throws invalid_request for a name that is blank, too long, or impossible to store and show. */
export function checkName(text: string, param: string, charactersMax: number): void {
  if (text.trim() === "") throw invalidRequest(`${param} must not be blank.`, param);
  checkLabel(text, param, charactersMax);
}

/** Checks an optional label, which may be empty. */
export function checkLabel(text: string, param: string, charactersMax: number): void {
  if (hasMoreCharacters(text, charactersMax)) {
    throw invalidRequest(`${param} must have at most ${charactersMax} characters.`, param);
  }
  if (CONTROL_CHARACTERS.test(text) || !text.isWellFormed()) {
    throw invalidRequest(`${param} must not contain control characters or broken Unicode.`, param);
  }
}

/** A code point takes one or two units of a string, so most texts need no counting, not even those of megabytes. */
export function hasMoreCharacters(text: string, charactersMax: number): boolean {
  if (text.length <= charactersMax) return false;
  return text.length > 2 * charactersMax || [...text].length > charactersMax;
}
