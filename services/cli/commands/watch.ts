import type { Answered } from "../../../shared/client/index.ts";
import type { Session } from "../command.ts";

const ASK_EVERY_MS = 500;

interface Watched<Result> {
  id: string;
  ask(): Promise<Answered<Result>>;
  isOver(result: Result): boolean;
  /** Its progress in words, which are shown behind the id. */
  say(result: Result): string;
}

/** Asks until something is over, and shows on a terminal how far it is. Rejects once the signal is aborted. */
export async function watch<Result>(
  { progress, signal }: Pick<Session, "progress" | "signal">,
  { id, ask, isOver, say }: Watched<Result>,
): Promise<Answered<Result>> {
  const begunAt = Date.now();
  progress(`${id}: waiting for its end`);
  for (;;) {
    const answered = await ask();
    if (isOver(answered.result)) return answered;
    progress(`${id} ${say(answered.result)}, ${Math.round((Date.now() - begunAt) / 1_000)} s`);
    await pause(signal);
  }
}

function pause(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", end);
      resolve();
    };
    const timer = setTimeout(end, signal.aborted ? 0 : ASK_EVERY_MS);
    signal.addEventListener("abort", end);
  });
}
