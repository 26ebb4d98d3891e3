/**
 * Leaves out of a list the items that a failure does not need: halves first, then ever smaller parts (Zeller and
 * Hildebrandt's ddmin, "Simplifying and Isolating Failure-Inducing Input", 2002). `fails` is asked at most `triesMax`
 * times.
 */
export function shrink<Item>(
  items: readonly Item[],
  fails: (fewer: readonly Item[]) => boolean,
  triesMax: number,
): readonly Item[] {
  let kept = items;
  let tries = 0;
  for (let size = Math.ceil(kept.length / 2); size >= 1 && kept.length > 0; ) {
    let isShorter = false;
    for (let begin = 0; begin < kept.length && tries < triesMax; ) {
      const fewer = [...kept.slice(0, begin), ...kept.slice(begin + size)];
      tries++;
      if (fails(fewer)) {
        kept = fewer;
        isShorter = true;
      } else begin += size;
    }
    if (tries >= triesMax || (size === 1 && !isShorter)) break;
    if (size > 1) size = Math.ceil(size / 2);
  }
  return kept;
}
