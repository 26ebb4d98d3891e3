/**
 * Long work is done in slices, and each turn of the event loop has one of them, whosever it is: every request waits for
 * one slice at a time, however many large bodies are being read. Whoever asks comes after those who asked before.
 */
export function nextTurn(): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>();
  waiting.push(resolve);
  if (waiting.length === 1) setImmediate(giveTurn);
  return promise;
}

/** The event loop is one for the process, and so is this. Each request in progress waits here at most once. */
const waiting: (() => void)[] = [];

function giveTurn(): void {
  waiting[0]?.();
  // The first one's slice runs once this function has returned, so it stays counted until the next turn.
  setImmediate(endTurn);
}

function endTurn(): void {
  waiting.shift();
  if (waiting.length > 0) giveTurn();
}
