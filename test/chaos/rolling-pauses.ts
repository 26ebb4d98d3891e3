import { watchPauses } from "../support/pauses.ts";

/** How long the machine held up a process, by the time of day. */
export interface Pauses {
  /** The sum, in milliseconds, of the longest pause in each window that overlaps the time between these instants. */
  between(fromAt: number, toAt: number): number;
  /** The longest of these pauses. */
  longestBetween(fromAt: number, toAt: number): number;
  stop(): Promise<void>;
}

/** About the time within which the watch counts the waits of a process as one pause. */
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
  const within = (beginAt: number, endAt: number) =>
    windows
      .filter((window) => window.toAt > beginAt && window.fromAt < endAt)
      .map(({ longestMs }) => longestMs);
  return {
    between: (beginAt, endAt) => within(beginAt, endAt).reduce((sum, pauseMs) => sum + pauseMs, 0),
    longestBetween: (beginAt, endAt) => Math.max(0, ...within(beginAt, endAt)),
    async stop() {
      clearInterval(timer);
      close();
      await watch.stop();
    },
  };
}
