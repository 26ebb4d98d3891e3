import type { Log } from "./log.ts";

export interface Repeat {
  /** Runs the tick now, or once more after the running one, however often this is called meanwhile. */
  soon(): void;
  /** After this no tick begins. Resolves when the last one has ended. */
  stop(): Promise<void>;
}

/**
 * Runs `tick` every `everyMs`, one at a time, beginning at once. An error of a tick is logged, and the next tick comes at its
 * usual time. With an infinite `everyMs` it runs only when `soon` is called.
 */
export function repeat(name: string, everyMs: number, tick: () => Promise<unknown>, log: Log): Repeat {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let running: Promise<void> | null = null;
  let again = false;
  let stopped = false;

  function run(): void {
    clearTimeout(timer);
    if (stopped) return;
    if (running !== null) {
      again = true;
      return;
    }
    const startedAt = performance.now();
    running = tick()
      .then(
        () => undefined,
        (error) => log.warn({ loop: name, err: error }, "loop.failed"),
      )
      .then(() => {
        running = null;
        if (again) {
          again = false;
          run();
        } else if (Number.isFinite(everyMs) && !stopped) {
          timer = setTimeout(run, Math.max(0, startedAt + everyMs - performance.now()));
        }
      });
  }

  if (Number.isFinite(everyMs)) run();
  return {
    soon: run,
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
  };
}
