import type { Log } from "./log.ts";

export interface Repeat {
  /** Runs the tick now, or once more after the running one, however often this is called meanwhile. */
  soon(): void;
  /** Like `soon`. Resolves when a tick that began after this call has ended: true if it ended without an error. */
  now(): Promise<boolean>;
  /** After this no tick begins. Resolves when the last one has ended. */
  stop(): Promise<void>;
}

/**
 * The loops of a process take their turns at different parts of their periods, so that none waits for what another has
 * just begun. Steps of the golden ratio keep any number of them apart (Weyl's sequence).
 */
const PART_STEP = (Math.sqrt(5) - 1) / 2;
/** Timers drop the fractions of milliseconds. A tick that comes this early comes at its turn. */
const EARLY_MS = 2;
/** How many loops the process has begun. A simulation sets it for each of its processes. */
export const loops = { count: 0 };

/**
 * Runs `tick` every `everyMs`, one at a time. It begins at once, and the second tick comes within `everyMs`, when the
 * loop's part of the period has come. An error of a tick is logged, and the next tick comes at its usual time. With an
 * infinite `everyMs` it runs only when `soon` is called.
 */
export function repeat(name: string, everyMs: number, tick: () => Promise<unknown>, log: Log): Repeat {
  let timer: ReturnType<typeof setTimeout> | undefined;
  let running: Promise<void> | null = null;
  let again = false;
  let stopped = false;
  let hasFailed = false;
  const turnAt = everyMs * ((loops.count++ * PART_STEP) % 1);

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
        () => {
          hasFailed = false;
        },
        (error) => {
          hasFailed = true;
          log.warn({ loop: name, err: error }, "loop.failed");
        },
      )
      .then(() => {
        running = null;
        if (again) {
          again = false;
          run();
        } else if (Number.isFinite(everyMs) && !stopped) {
          const sinceTurnMs = ((startedAt + EARLY_MS - turnAt + everyMs) % everyMs) - EARLY_MS;
          timer = setTimeout(run, Math.max(0, startedAt + everyMs - sinceTurnMs - performance.now()));
        }
      });
  }

  if (Number.isFinite(everyMs)) run();
  return {
    soon: run,
    async now() {
      const before = running;
      run();
      await before;
      await running;
      return !hasFailed;
    },
    async stop() {
      stopped = true;
      clearTimeout(timer);
      await running;
    },
  };
}
