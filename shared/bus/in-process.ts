import { createLog, type Log } from "../platform/log.ts";
import { type Bus, zeroCounts } from "./bus.ts";
import { subjectMatches } from "./subjects.ts";
import { busOver, type Listener } from "./wire.ts";

/** A process that cannot keep up loses messages beyond this number, as over NATS, so that its memory is bounded. */
const WAITING_TEXTS_MAX = 100_000;

/**
 * The bus inside one process. Messages are encoded and decoded as on the network. So every receiver has a copy of its
 * own, and nothing works in one process that would fail between several.
 */
export function createInProcessBus(log: Log = createLog({ level: "warn", name: "bus" })): Bus {
  const counts = zeroCounts();
  const listeners = new Set<Listener>();
  let waiting: { subject: string; text: string }[] = [];
  let waitingCount = 0;
  let closed = false;

  // Delivery goes through the event loop. In microtasks two handlers that answer each other would starve timers and
  // sockets.
  function deliverWaiting(): void {
    const texts = waiting;
    waiting = [];
    for (const { subject, text } of texts) {
      waitingCount--;
      for (const listener of listeners) {
        if (subjectMatches(listener.filter, subject)) listener.onText(text);
      }
    }
  }

  return busOver(
    {
      publish(subject, text) {
        if (closed || waitingCount >= WAITING_TEXTS_MAX) {
          counts.dropped++;
          return;
        }
        waitingCount++;
        if (waiting.push({ subject, text }) === 1) setImmediate(deliverWaiting);
      },
      listen(listener) {
        listeners.add(listener);
        return { unsubscribe: () => listeners.delete(listener) };
      },
      get connected() {
        return !closed;
      },
      async close() {
        closed = true;
        listeners.clear();
      },
    },
    counts,
    log,
  );
}
