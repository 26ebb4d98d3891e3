/** Guesses the known word that the writer of an unknown word may have meant. The work is bounded for any text. */

/** A longer text is not taken for a mistyped word, and no message with a guess repeats it. */
export const GUESSED_CHARACTERS_MAX = 64;
/** Words of fewer characters have too many neighbours. */
const GUESSED_CHARACTERS_MIN = 4;
/** One mistake is allowed for every so many characters, and DISTANCE_MAX mistakes at most. */
const CHARACTERS_PER_MISTAKE = 4;
const DISTANCE_MAX = 2;

/** Words that may have been meant. */
export class KnownWords {
  private readonly words: readonly { word: string; plain: string }[];

  constructor(words: Iterable<string>) {
    this.words = Array.from(words, (word) => ({ word, plain: plainName(word) }));
  }

  /**
   * The word that was meant: the same letters joined in another way (`runAt` for `run_at`), else the nearest one within a
   * mistake or two. Null if there is none, or if several are equally near.
   */
  nearest(text: string): string | null {
    if (text.length > GUESSED_CHARACTERS_MAX) return null;
    const given = plainName(text);
    const same = this.words.find(({ plain }) => plain === given);
    if (same !== undefined || given.length < GUESSED_CHARACTERS_MIN) return same?.word ?? null;
    let nearest: string | null = null;
    // A word at this distance is too far.
    let least = 1 + Math.min(DISTANCE_MAX, Math.floor(given.length / CHARACTERS_PER_MISTAKE));
    for (const { word, plain } of this.words) {
      const distance = editDistance(given, plain, least);
      if (distance === least) nearest = null;
      if (distance >= least) continue;
      nearest = word;
      least = distance;
    }
    return nearest;
  }
}

/** KnownWords.nearest for a few words that are asked about only once. */
export function findNearest(text: string, known: Iterable<string>): string | null {
  return text.length > GUESSED_CHARACTERS_MAX ? null : new KnownWords(known).nearest(text);
}

/** The end of a message: ` Did you mean run_at?`, or nothing. The word is one of the known ones. */
export function didYouMean(word: string | null): string {
  return word === null ? "" : ` Did you mean ${word}?`;
}

function plainName(name: string): string {
  return name.replaceAll(/[_\- ]/g, "").toLowerCase();
}

/**
 * How many characters were inserted, left out, replaced, or swapped with their neighbour (optimal string alignment); `most` + 1
 * if they are more than `most`. `one` has at most GUESSED_CHARACTERS_MAX characters. Only the cells that can lie within `most`
 * of the diagonal are looked at (Ukkonen 1985).
 */
export function editDistance(one: string, other: string, most: number): number {
  if (Math.abs(one.length - other.length) > most) return most + 1;
  // A common beginning or end does not change the distance, and most names of a kind begin alike.
  let begin = 0;
  while (begin < one.length && begin < other.length && one[begin] === other[begin]) begin++;
  let [rows, columns] = [one.length - begin, other.length - begin];
  while (rows > 0 && columns > 0 && one[begin + rows - 1] === other[begin + columns - 1]) {
    rows--;
    columns--;
  }
  const beyond = most + 1;
  let [before, last, next] = scratch;
  for (let column = 0; column <= columns; column++) last[column] = Math.min(column, beyond);
  for (let row = 1; row <= rows; row++) {
    const letter = one.charCodeAt(begin + row - 1);
    const [from, to] = [Math.max(1, row - most), Math.min(columns, row + most)];
    // The cell before the band: a column of letters left out, or too far.
    let cost = Math.min(from === 1 ? row : beyond, beyond);
    next[from - 1] = cost;
    let least = cost;
    for (let column = from; column <= to; column++) {
      const letterThere = other.charCodeAt(begin + column - 1);
      const replaced = (last[column - 1] as number) + (letter === letterThere ? 0 : 1);
      cost = Math.min(replaced, (last[column] as number) + 1, cost + 1, beyond);
      const isSwap = row > 1 && column > 1 && letter === other.charCodeAt(begin + column - 2);
      if (isSwap && one.charCodeAt(begin + row - 2) === letterThere)
        cost = Math.min(cost, (before[column - 2] as number) + 1);
      next[column] = cost;
      least = Math.min(least, cost);
    }
    if (to < columns) next[to + 1] = beyond;
    if (least > most) return beyond;
    [before, last, next] = [last, next, before];
  }
  return last[columns] as number;
}

/** Three rows of the table, long enough for the longest word and the mistakes in it. */
const scratch = Array.from(
  { length: 3 },
  () => new Uint8Array(GUESSED_CHARACTERS_MAX + DISTANCE_MAX + 2),
) as [Uint8Array, Uint8Array, Uint8Array];
