/** Lets a bounded number of acts run at once; the others wait in the order in which they came. */
export type Turns = <Result>(act: () => Promise<Result>) => Promise<Result>;

export function createTurns(atOnceMax: number): Turns {
  const waiting: (() => void)[] = [];
  let free = atOnceMax;
  return async (act) => {
    if (free === 0) await new Promise<void>((resolve) => waiting.push(resolve));
    else free--;
    try {
      return await act();
    } finally {
      // The turn is handed to the act that has waited longest, so that no newcomer takes it first.
      const next = waiting.shift();
      if (next === undefined) free++;
      else next();
    }
  };
}
