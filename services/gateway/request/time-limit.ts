/** A limit of time that passes at `endsAt`, unless it is ended before. */
export interface TimeLimit {
  /** By performance.now(). Infinity while the limit stands still. */
  readonly endsAt: number;
  /** Called at each tick from `endsAt` on, until the limit ends or has another `endsAt`. */
  pass(): void;
}

/**
 * A limit may last so much longer. One timer serves all limits, because a timer for each would cost as much as its request's
 * checks.
 */
const TICK_MS = 20;

const running = new Set<TimeLimit>();
let timer: Timer | undefined;

export function beginLimit(limit: TimeLimit): void {
  running.add(limit);
  timer ??= setInterval(tick, TICK_MS);
}

export function endLimit(limit: TimeLimit): void {
  running.delete(limit);
}

function tick(): void {
  const now = performance.now();
  for (const limit of running) if (limit.endsAt <= now) limit.pass();
  if (running.size > 0) return;
  clearInterval(timer);
  timer = undefined;
}
