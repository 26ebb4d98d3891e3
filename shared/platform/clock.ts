/**
 * The database's clock, followed by a measured offset, so that nodes with different clocks agree on what is due. Between
 * measurements it is monotonic: setting the machine's clock does not move it.
 */
export interface Clock {
  /** Milliseconds since 1970 by the database's clock, with a fraction. */
  now(): number;
  /** Real time, as targets and receivers have it. Given only under a test clock (test-clock.ts), where `now` differs. */
  real?: Pick<Clock, "now">;
  stop(): void;
}

/** The present time by real clocks, in milliseconds since 1970. */
export const realNow = (clock: Pick<Clock, "now" | "real">): number => (clock.real ?? clock).now();

/** Asks the database for its time; milliseconds since 1970. */
export type AskTime = () => Promise<number>;

/** Ordinary clocks drift apart by much less than a millisecond a minute. Failovers and set clocks need more frequent measurements. */
const MEASURE_EVERY_MS = 5_000;
/** The sample with the shortest round trip counts, because the round trip bounds the error. */
const SAMPLES = 3;

/** Measures before it returns, so that nothing is decided by an unmeasured clock. */
export async function startClock(ask: AskTime): Promise<Clock> {
  let offsetMs = await measureOffset(ask);
  let measuring = false;
  const timer = setInterval(async () => {
    if (measuring) return;
    measuring = true;
    // While the database cannot be asked, the last offset remains in use.
    offsetMs = await measureOffset(ask).catch(() => offsetMs);
    measuring = false;
  }, MEASURE_EVERY_MS);
  return { now: () => performance.now() + offsetMs, stop: () => clearInterval(timer) };
}

/** The offset to add to performance.now() (Cristian's algorithm, 1989: the answer was made half a round trip ago). */
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
