/**
 * The database's clock, followed by a measured offset, so that nodes whose own clocks differ agree on when something
 * is due. Between measurements time is monotonic: a wall clock that is set does not move it.
 */
export interface Clock {
  /** Milliseconds since 1970 by the database's clock, with a fraction. */
  now(): number;
  stop(): void;
}

/** Asks the database for its time; milliseconds since 1970. */
export type AskTime = () => Promise<number>;

/** A minute of drift between ordinary clocks is well under a millisecond; failovers and set clocks are noticed sooner. */
const MEASURE_EVERY_MS = 5_000;
/** The best of a few: the round trip bounds the error, and the shortest one bounds it best. */
const SAMPLES = 3;

/** Measures before it returns, so that nothing is ever decided by a clock that nobody has compared. */
export async function startClock(ask: AskTime): Promise<Clock> {
  let offsetMs = await measureOffset(ask);
  let measuring = false;
  const timer = setInterval(async () => {
    if (measuring) return;
    measuring = true;
    // While the database cannot be asked, the last offset stands.
    offsetMs = await measureOffset(ask).catch(() => offsetMs);
    measuring = false;
  }, MEASURE_EVERY_MS);
  return { now: () => performance.now() + offsetMs, stop: () => clearInterval(timer) };
}

/** What to add to performance.now() (Cristian's algorithm, 1989: the answer was made half a round trip ago). */
async function measureOffset(ask: AskTime): Promise<number> {
  let best = { roundTripMs: Number.POSITIVE_INFINITY, offsetMs: 0 };
  for (let sample = 0; sample < SAMPLES; sample++) {
    const sentAt = performance.now();
    const time = await ask();
    const roundTripMs = performance.now() - sentAt;
    if (roundTripMs < best.roundTripMs) best = { roundTripMs, offsetMs: time - sentAt - roundTripMs / 2 };
  }
  return best.offsetMs;
}
