/** Runs the acts of one name one after the other, in the order of the calls. */
export type OneAtATime = <Result>(name: string, act: () => Promise<Result>) => Promise<Result>;

export function createOneAtATime(): OneAtATime {
  /** For each name in use, the end of its last act. */
  const ends = new Map<string, Promise<unknown>>();
  return async (name, act) => {
    const turn = (ends.get(name) ?? Promise.resolve()).then(act);
    const end = turn.catch(() => undefined);
    ends.set(name, end);
    try {
      return await turn;
    } finally {
      if (ends.get(name) === end) ends.delete(name);
    }
  };
}
