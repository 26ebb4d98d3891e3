import type { Exchange } from "./run.ts";

/**
 * Hosts that are down, for one environment of a project: whose attempts are parked, and how they come back. When a host goes down,
 * is probed and opens is decided by the statements that settle and release (store/queue/).
 */

/** A host is down once so many attempts in a row, over so long, have found nobody there. */
export const HOST_DOWN_ATTEMPTS_MIN = 20;
export const HOST_DOWN_SECONDS_MIN = 30;

/** `down`: nothing is sent there but probes. `opening`: what was parked starts at a rate that doubles. */
export const HOST_STATES = ["down", "opening"] as const;
export type HostState = (typeof HOST_STATES)[number];

/** Who has brought a host into its state: the service, or a client. */
export const HOST_CAUSES = ["breaker", "hand"] as const;
export type HostCause = (typeof HOST_CAUSES)[number];

/** A probe follows so long after the host went down, and after each one that failed twice as long as before, up to the last. */
export const PROBE_SECONDS = { first: 5, max: 300 } as const;

/** Hosts of an environment that are parked by hand. */
export const HOSTS_PARKED_BY_HAND_MAX = 1_000;

/** A host that is not open. Instants are milliseconds since 1970. */
export interface HostStanding {
  /** As hostOfTarget spells it. */
  host: string;
  state: HostState;
  by: HostCause;
  /** When it came into its state. */
  since: number;
  /** Attempts that are parked there now. */
  parked: number;
  /** Null where none is planned: while it is opening, or parked by hand. */
  nextProbeAt: number | null;
}

/** Answers of those that stand before a target which is not there. */
const NOBODY_STATUSES: readonly number[] = [502, 503, 504];

/** Whether an attempt found nobody: no connection, no TLS, no end in time, or such an answer. Null if nobody knows. */
export function foundNobody(exchange: Exchange): boolean | null {
  switch (exchange.kind) {
    case "faulted":
    case "stalled":
      return true;
    case "unknown":
      return null;
    case "answered":
      return exchange.bodyEnd === "stalled" || NOBODY_STATUSES.includes(exchange.status);
  }
}
