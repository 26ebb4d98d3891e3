import { watchPauses } from "./pauses.ts";

/** How long the machine held up a process, by the time of day. */
export interface Pauses {
  /** The sum, in milliseconds, of the pauses in all windows that overlap the time between these instants. */
  between(fromAt: number, toAt: number): number;
  stop(): Promise<void>;
}

/** About the time within which the watch counts the waits of a process as one pause. */
const WINDOW_MS = 2_000;

export async function recordPauses(
  databaseUrl: string,
  processes: () => readonly { pid: number }[],
): Promise<Pauses> {
  const watch = await watchPauses(databaseUrl, processes, { withBackends: true });
  const windows: { fromAt: number; toAt: number; totalMs: number }[] = [];
  let fromAt = Date.now();
  function close(): void {
    const toAt = Date.now();
    windows.push({ fromAt, toAt, totalMs: watch.read().totalMs });
    fromAt = toAt;
  }
  const timer = setInterval(close, WINDOW_MS);
  const within = (beginAt: number, endAt: number) =>
    windows.filter((window) => window.toAt > beginAt && window.fromAt < endAt);
  return {
    between: (beginAt, endAt) => within(beginAt, endAt).reduce((sum, { totalMs }) => sum + totalMs, 0),
    async stop() {
      clearInterval(timer);
      close();
      await watch.stop();
    },
  };
}
