/**
 * Handles the names of members without the engine's hash tables. Anybody can compute the engine's hash, and thousands of
 * names that share one hash would keep a table, a Set or a Map busy for seconds.
 */

/** JSON.parse enters no longer string into its table of names. */
const TABLED_CHARACTERS_MAX = 256;

/** Resolves the escapes in the text between the quotes of a JSON string. */
export function unescapeString(text: string): string {
  if (text.length > TABLED_CHARACTERS_MAX) return JSON.parse(`"${text}"`);
  return text.replaceAll(/\\(?:u(....)|(.))/g, (_escape, hex: string | undefined, letter: string) =>
    hex === undefined ? (CONTROLS[letter] ?? letter) : String.fromCharCode(Number.parseInt(hex, 16)),
  );
}

const CONTROLS: Readonly<Record<string, string>> = { b: "\b", f: "\f", n: "\n", r: "\r", t: "\t" };

/** Up to this many names, comparing each with each is faster than sorting. */
const COMPARED_EACH_MAX = 8;

/** A name that occurs twice from index `start` on; null if all differ. */
export function findRepeated(names: readonly string[], start: number): string | null {
  if (names.length - start <= COMPARED_EACH_MAX) {
    for (let one = start + 1; one < names.length; one++) {
      for (let other = start; other < one; other++) {
        if (names[one] === names[other]) return names[one] ?? null;
      }
    }
    return null;
  }
  const sorted = names.slice(start).sort();
  return sorted.find((name, index) => index > 0 && name === sorted[index - 1]) ?? null;
}
