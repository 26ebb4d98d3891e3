import type { Log } from "./log.ts";

export interface Shutdown {
  /** Adds what is to be stopped after everything that was added before it. */
  add(name: string, stop: () => Promise<void>): void;
  /** True from the first signal on, so that a draining process says that it is not ready. */
  readonly begun: boolean;
}

/** For what follows the drain: handing shards over, closing connections, a database's last checkpoint. */
const MARGIN_MS = 10_000;
const INTERRUPTED_TWICE = 130;

/**
 * From here on SIGTERM and SIGINT end the process in order: the stops run one after the other, once, and it exits
 * with 0; with 1 if one of them failed or all together took longer than the drain and a margin. A further SIGINT
 * exits at once. An exception that nobody caught is logged and ends the process: whoever runs it starts it again,
 * and nothing is lost, because what was promised is in Postgres.
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
    // What was still starting when the signal came is added while this runs, and the loop goes on to it.
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
