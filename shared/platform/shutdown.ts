import type { Log } from "./log.ts";

export interface Shutdown {
  /** Adds a stop, which runs after all that were added before it. */
  add(name: string, stop: () => Promise<void>): void;
  /** True from the first signal on, so that a draining process says that it is not ready. */
  readonly begun: boolean;
}

/** Time after the drain for handing shards over, closing connections and the last checkpoint of a database. */
const MARGIN_MS = 10_000;
const INTERRUPTED_TWICE = 130;

/**
 * Makes SIGTERM and SIGINT end the process in order: the stops run once, one after the other. It exits with 0, or with
 * 1 if a stop failed or all together took longer than the drain and a margin. A further SIGINT exits at once. An uncaught
 * exception is logged and ends the process. Its supervisor starts it again, and nothing is lost, because every promise is in
 * Postgres.
 */
export function handleSignals({ log, drainTimeoutMs }: { log: Log; drainTimeoutMs: number }): Shutdown {
  const stops: { name: string; stop: () => Promise<void> }[] = [];
  let begun = false;

  async function begin(signal: string): Promise<void> {
    begun = true;
    log.info({ signal }, "stopping");
    let stopping = "";
    setTimeout(() => {
      log.error({ stopping }, "not stopped in time");
      process.exit(1);
    }, drainTimeoutMs + MARGIN_MS);

    let exitCode = 0;
    // A part that was still starting when the signal came may add its stop while this loop runs.
    for (const { name, stop } of stops) {
      stopping = name;
      try {
        await stop();
      } catch (error) {
        log.error({ err: error, stopping }, "not stopped cleanly");
        exitCode = 1;
      }
    }
    log.info({}, "stopped");
    process.exit(exitCode);
  }

  process.on("SIGTERM", () => {
    if (!begun) void begin("SIGTERM");
  });
  process.on("SIGINT", () => {
    if (begun) process.exit(INTERRUPTED_TWICE);
    void begin("SIGINT");
  });
  for (const event of ["uncaughtException", "unhandledRejection"] as const) {
    process.on(event, (error: unknown) => {
      log.error({ err: error }, event);
      process.exit(1);
    });
  }

  return {
    add: (name, stop) => stops.push({ name, stop }),
    get begun() {
      return begun;
    },
  };
}
