/** A gate lets many callers work at a time, and at certain moments one caller alone. */
export interface Gate {
  /** Runs `act` once no caller is alone. `act` must not call the gate again. */
  within<Result>(act: () => Promise<Result>): Promise<Result>;
  /** Runs `act` once all calls of `within` have ended. New ones wait until `act` has ended. One caller at a time. */
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
