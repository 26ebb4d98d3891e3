import { StoreUnavailable } from "../../shared/store/database.ts";

/** The time that a request may wait for the store. */
export interface Deadline {
  /** Rejects with StoreUnavailable when the time is over. */
  passed: Promise<never>;
  /** While it is paused no time passes. */
  pause(): void;
  resume(): void;
  /** It must be stopped in the end, or its timer stays. */
  stop(): void;
}

export function startDeadline(limitMs: number): Deadline {
  const { promise, reject } = Promise.withResolvers<never>();
  const pass = () => reject(new StoreUnavailable(`the store did not answer within ${limitMs} ms`));
  let leftMs = limitMs;
  let resumedAt = performance.now();
  let timer = setTimeout(pass, leftMs);
  return {
    passed: promise,
    pause() {
      clearTimeout(timer);
      leftMs -= performance.now() - resumedAt;
    },
    resume() {
      resumedAt = performance.now();
      timer = setTimeout(pass, Math.max(0, leftMs));
    },
    stop: () => clearTimeout(timer),
  };
}
