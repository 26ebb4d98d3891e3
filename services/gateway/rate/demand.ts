/** How many requests come to this gateway, for each environment by its name, and how many of them had to be asked for. */
export interface RateDemand {
  /** One request has come. */
  note(name: string): void;
  /** One that has come could not be accepted from a loan. */
  noteAsked(): void;
  /** What to expect of an environment in one tick: 0 for one that has only begun, unless it begins with a burst. */
  of(name: string): number;
  /** The part of all requests that had to be asked for, from 0 to 1. */
  askedPart(): number;
}

/** As long as a tick of the request rate. */
const SPAN_MS = 100;
/** A client that asks a few times in a row is told by every gateway exactly what is left: nothing is lent for it. */
const BURST = 20;

/** Counts in spans of time, and judges by the one that is over. Whoever does not come is forgotten after two. */
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
