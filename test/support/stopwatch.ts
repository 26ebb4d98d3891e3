/** Measures how long this process takes, without the time in which the machine held it up. */
export interface Stopwatch {
  /** Milliseconds since its start. */
  read(): number;
  /** Reads it for the last time. */
  stop(): number;
}

const LOOK_EVERY_MS = 10;
/** A timer that is less late than this is an ordinary one. */
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
  const read = () => {
    look();
    return performance.now() - startedAt - stalledMs;
  };
  return {
    read,
    stop() {
      clearInterval(timer);
      return read();
    },
  };
}
