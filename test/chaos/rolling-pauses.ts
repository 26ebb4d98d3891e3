import { watchPauses } from "../support/pauses.ts";

/** How long the machine held up a process, by the time of day. */
export interface Pauses {
  /** How long, in milliseconds, between these instants at most. */
  between(fromAt: number, toAt: number): number;
  stop(): Promise<void>;
}

/** About the time within which the watch counts what a process waits for as one pause. */
const WINDOW_MS = 2_000;

export async function recordPauses(
  databaseUrl: string,
  processes: () => readonly { pid: number }[],
): Promise<Pauses> {
  const watch = await watchPauses(databaseUrl, processes);
  const windows: { fromAt: number; toAt: number; longestMs: number }[] = [];
  let fromAt = Date.now();
  function close(): void {
    const toAt = Date.now();
    windows.push({ fromAt, toAt, longestMs: watch.longestMs() });
    fromAt = toAt;
  }
  const timer = setInterval(close, WINDOW_MS);
  return {
    between(beginAt, endAt) {
      const within = windows.filter((window) => window.toAt > beginAt && window.fromAt < endAt);
      return within.reduce((sum, { longestMs }) => sum + longestMs, 0);
    },
    async stop() {
      clearInterval(timer);
      close();
      await watch.stop();
    },
  };
}
