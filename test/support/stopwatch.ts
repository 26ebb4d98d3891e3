/** Times what this process does, but for the time in which it stood still: that is the machine's. */
export interface Stopwatch {
  /** Milliseconds since it was started. */
  stop(): number;
}

const LOOK_EVERY_MS = 10;
/** A timer that is late by less is an ordinary one. */
const LATE_MS_MIN = 40;

export function startStopwatch(): Stopwatch {
  const startedAt = performance.now();
  let lookedAt = startedAt;
  let stalledMs = 0;
  const look = () => {
    const lateMs = performance.now() - lookedAt - LOOK_EVERY_MS;
    if (lateMs >= LATE_MS_MIN) stalledMs += lateMs;
    lookedAt = performance.now();
  };
  const timer = setInterval(look, LOOK_EVERY_MS);
  return {
    stop() {
      look();
      clearInterval(timer);
      return performance.now() - startedAt - stalledMs;
    },
  };
}
