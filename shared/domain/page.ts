import { type ApiError, invalidRequest } from "./errors.ts";
import { parseId } from "./ids.ts";
import { parseInstant } from "./job.ts";
import { didYouMean, findNearest } from "./nearest.ts";

/** The rules of query strings and of pages. */

export const PAGE_SIZE_DEFAULT = 50;
export const PAGE_SIZE_MAX = 200;
const PLAIN_NUMBER = /^[1-9][0-9]{0,2}$/;

/** The parameters of a query string by name. Throws invalid_request for an unknown or repeated one. */
export function parseQuery<Name extends string>(
  query: string,
  known: readonly Name[],
): Partial<Record<Name, string>> {
  const values: Partial<Record<Name, string>> = {};
  if (query === "" || query === "?") return values;
  for (const [name, value] of new URLSearchParams(query)) {
    const match = known.find((candidate) => candidate === name);
    if (match === undefined) {
      throw unknownParameter(name, known);
    }
    if (values[match] !== undefined) {
      throw invalidRequest(`The query parameter ${name} is given more than once.`, name);
    }
    values[match] = value;
  }
  return values;
}

/** How much of an unknown name a message repeats. */
const SHOWN_CHARACTERS_MAX = 64;

function unknownParameter(name: string, known: readonly string[]): ApiError {
  const shown = name.slice(0, SHOWN_CHARACTERS_MAX).replace(/\p{C}/gu, "\ufffd");
  const hint = known.length === 0 ? "This route takes none." : `Known are ${known.join(", ")}.`;
  const meant = didYouMean(findNearest(name, known));
  return invalidRequest(`"${shown}" is not a known query parameter.${meant} ${hint}`, name);
}

/** The page size that `limit` asks for. Only plain decimal digits are a number here: not 0x10, 1e2 or +5. */
function pageSizeOf(limit: string | undefined): number {
  if (limit === undefined) return PAGE_SIZE_DEFAULT;
  const size = PLAIN_NUMBER.test(limit) ? Number(limit) : 0;
  if (size >= 1 && size <= PAGE_SIZE_MAX) return size;
  throw invalidRequest(`limit must be an integer from 1 to ${PAGE_SIZE_MAX}.`, "limit");
}

/** The page that the parameters of a list's query ask for. */
export function readPage({ limit, cursor }: { limit?: string; cursor?: string }) {
  return { pageSize: pageSizeOf(limit), cursor: cursor ?? null };
}

/** A filter that must be one of some words, null if it is absent. */
export function filterOf<Choice extends string>(
  value: string | undefined,
  name: string,
  choices: readonly Choice[],
): Choice | null {
  if (value === undefined) return null;
  const choice = choices.find((candidate) => candidate === value);
  if (choice === undefined) throw invalidRequest(`${name} must be one of ${choices.join(", ")}.`, name);
  return choice;
}

/** A filter by an id: `none` is one that no resource can have. Its list is empty, like that of an unknown id. */
export type IdFilter = { kind: "any" } | { kind: "none" } | { kind: "one"; id: string };

export function idFilterOf(text: string | undefined, prefix: string): IdFilter {
  if (text === undefined) return { kind: "any" };
  const id = parseId(prefix, text);
  return id === null ? { kind: "none" } : { kind: "one", id };
}

/** A filter by an instant, in milliseconds since 1970; null if it is absent. Digits beyond the millisecond are dropped. */
export function instantFilterOf(text: string | undefined, name: string): number | null {
  if (text === undefined) return null;
  const at = parseInstant(text);
  if (at !== null) return at;
  throw invalidRequest(
    `${name} must be an ISO 8601 date and time with Z or an offset. In a query string a + is written as %2B.`,
    name,
  );
}
