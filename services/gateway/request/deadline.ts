import { StoreUnavailable } from "../../../shared/store/database/database.ts";

/** The time that a request may wait for the store. */
export interface Deadline {
  /** Rejects with StoreUnavailable when the time is over. */
  passed: Promise<never>;
  readonly isPassed: boolean;
  /** Runs `act` while the deadline stands still. If `act` throws, it stands still for good: the request has its answer. */
  exempt<Result>(act: () => Promise<Result>): Promise<Result>;
  /** Must be called in the end, or the timer remains. */
  stop(): void;
}

export function startDeadline(limitMs: number): Deadline {
  const { promise, reject } = Promise.withResolvers<never>();
  let isPassed = false;
  const pass = () => {
    isPassed = true;
    reject(new StoreUnavailable(`the store did not answer within ${limitMs} ms`));
  };
  let leftMs = limitMs;
  let resumedAt = performance.now();
  let timer = setTimeout(pass, leftMs);
  return {
    passed: promise,
    get isPassed() {
      return isPassed;
    },
    async exempt(act) {
      clearTimeout(timer);
      leftMs -= performance.now() - resumedAt;
      const result = await act();
      resumedAt = performance.now();
      timer = setTimeout(pass, Math.max(0, leftMs));
      return result;
    },
    stop: () => clearTimeout(timer),
  };
}
