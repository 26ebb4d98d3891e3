import type { Log } from "../platform/log.ts";
import type { Subscription } from "./bus.ts";

const WAIT_MS_MAX = 120_000;
const LOOK_EVERY_MS = 5;

/** Waits until the condition is true. Throws after `waitMs`. */
export async function until(condition: () => boolean, waitMs = WAIT_MS_MAX): Promise<void> {
  const deadline = performance.now() + waitMs;
  while (!condition()) {
    if (performance.now() > deadline) throw new Error(`not so within ${waitMs} ms: ${condition}`);
    await Bun.sleep(LOOK_EVERY_MS);
  }
}

/**
 * Listens, and sends probes until each of them was heard: a subscription takes effect when the server has it,
 * and a consumer of JetStream some milliseconds later. Probes are not among the messages that are kept.
 */
export async function listen<M>(
  subscribe: (handler: (message: M) => void) => Subscription,
  sendProbe: () => void,
  probes: ((message: M) => boolean)[],
  isProbe: (message: M) => boolean,
): Promise<{ messages: M[]; subscription: Subscription }> {
  const messages: M[] = [];
  const heard = new Set<(message: M) => boolean>();
  const subscription = subscribe((message) => {
    for (const probe of probes) if (probe(message)) heard.add(probe);
    if (!isProbe(message)) messages.push(message);
  });
  await until(() => {
    if (heard.size < probes.length) sendProbe();
    return heard.size === probes.length;
  });
  return { messages, subscription };
}

export interface TestLog extends Log {
  lines: { level: "debug" | "info" | "warn" | "error"; fields: object; message: string }[];
}

export function createTestLog(): TestLog {
  const lines: TestLog["lines"] = [];
  return {
    lines,
    debug: (fields, message) => lines.push({ level: "debug", fields, message }),
    info: (fields, message) => lines.push({ level: "info", fields, message }),
    warn: (fields, message) => lines.push({ level: "warn", fields, message }),
    error: (fields, message) => lines.push({ level: "error", fields, message }),
  };
}
