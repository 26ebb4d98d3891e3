/** Counts the requests that come to this gateway by environment, and how many of them need a question to Postgres. */
export interface RateDemand {
  /** Counts a request. */
  note(name: string): void;
  /** Counts a request that could not be accepted from a loan. */
  noteAsked(): void;
  /** The expected requests of an environment in one tick. 0 if it has just begun, unless it begins with a burst. */
  of(name: string): number;
  /** The part of all requests that needed a question, from 0 to 1. */
  askedPart(): number;
}

/** As long as a tick of the request rate. */
const SPAN_MS = 100;
/** An environment that has just begun is lent nothing below this, so that its clients hear exactly what is left. */
const BURST = 20;

/** Counts in spans of time, and keeps the last complete span and the present one. The demand is the larger count. */
export function createRateDemand(monotonicNow: () => number): RateDemand {
  let span = emptySpan();
  let before = emptySpan();
  let endsAt = monotonicNow() + SPAN_MS;

  function turn(): void {
    const now = monotonicNow();
    if (now < endsAt) return;
    before = now < endsAt + SPAN_MS ? span : emptySpan();
    span = emptySpan();
    endsAt = now + SPAN_MS;
  }

  return {
    note(name) {
      turn();
      span.count++;
      span.countOf.set(name, (span.countOf.get(name) ?? 0) + 1);
    },
    noteAsked() {
      span.askedCount++;
    },
    of(name) {
      turn();
      const [now, lately] = [span.countOf.get(name) ?? 0, before.countOf.get(name) ?? 0];
      return lately === 0 && now < BURST ? 0 : Math.max(now, lately);
    },
    askedPart: () => (before.count === 0 ? 1 : Math.min(1, before.askedCount / before.count)),
  };
}

function emptySpan() {
  return { count: 0, askedCount: 0, countOf: new Map<string, number>() };
}
