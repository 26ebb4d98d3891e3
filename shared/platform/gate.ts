/** Lets many work at a time, and at certain moments one alone. */
export interface Gate {
  /** Does it once nobody is alone. What is called within it must not ask the gate again. */
  within<Result>(act: () => Promise<Result>): Promise<Result>;
  /** Does it once all that was begun within has ended. What comes meanwhile waits. One caller at a time. */
  alone<Result>(act: () => Promise<Result>): Promise<Result>;
}

export function createGate(): Gate {
  let withinCount = 0;
  let closed: PromiseWithResolvers<void> | null = null;
  let emptied: PromiseWithResolvers<void> | null = null;
  return {
    async within(act) {
      while (closed !== null) await closed.promise;
      withinCount++;
      try {
        return await act();
      } finally {
        withinCount--;
        if (withinCount === 0) emptied?.resolve();
      }
    },
    async alone(act) {
      closed = Promise.withResolvers();
      try {
        if (withinCount > 0) {
          emptied = Promise.withResolvers();
          await emptied.promise;
        }
        return await act();
      } finally {
        emptied = null;
        closed.resolve();
        closed = null;
      }
    },
  };
}
