/** Does things of one name one after the other, in the order in which they were asked for. */
export type InTurn = <Result>(name: string, act: () => Promise<Result>) => Promise<Result>;

export function createInTurn(): InTurn {
  /** Of each name that is in use, the end of what was asked for last. */
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
