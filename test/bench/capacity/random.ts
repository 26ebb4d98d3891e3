/** Numbers in [0, 1) that are the same for the same seed (Mulberry32, by Tommy Ettinger). */
export function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** An exponentially distributed number of this mean, for random durations and intervals. */
export const drawExponential = (random: () => number, mean: number) => -Math.log(1 - random()) * mean;

/** A number from a distribution that is known at these parts, with straight lines between them. */
export function drawFrom(random: () => number, parts: readonly number[], figures: readonly number[]): number {
  const part = random();
  let above = 1;
  while (above < parts.length - 1 && (parts[above] ?? 1) < part) above++;
  const [from = 0, to = 1] = [parts[above - 1], parts[above]];
  const [low = 0, high = 0] = [figures[above - 1], figures[above]];
  return low + ((part - from) / (to - from)) * (high - low);
}
