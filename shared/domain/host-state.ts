import type { Exchange } from "./run.ts";

/**
 * Hosts that are down, for one environment of a project. Attempts there are parked until the host comes back. The statements
 * that settle and release decide when a host goes down, is probed and opens (store/queue/).
 */

/** A host is down once at least so many attempts in a row, over at least so many seconds, have found nobody there. */
export const HOST_DOWN_ATTEMPTS_MIN = 20;
export const HOST_DOWN_SECONDS_MIN = 30;

/** `down`: nothing is sent there but probes. `opening`: parked attempts start at a rate that doubles. */
export const HOST_STATES = ["down", "opening"] as const;
export type HostState = (typeof HOST_STATES)[number];

/** The cause of a host's state: the service (`breaker`) or a client (`hand`). */
export const HOST_CAUSES = ["breaker", "hand"] as const;
export type HostCause = (typeof HOST_CAUSES)[number];

/**
 * The first probe follows `first` seconds after the host went down. Each failed probe doubles the wait, up to `max`. A probe
 * that its flow key keeps back is not sent, and another attempt becomes the probe at once. If nobody can send the probe, another
 * attempt becomes the probe within seconds: its region may have no delivery nodes, or the month no runs left.
 */
export const PROBE_SECONDS = { first: 5, max: 300 } as const;

/** The most hosts of an environment that are parked by hand. */
export const HOSTS_PARKED_BY_HAND_MAX = 1_000;

/** A host that is not open. Instants are milliseconds since 1970. */
export interface HostStanding {
  /** The host as hostOfTarget spells it. */
  host: string;
  state: HostState;
  by: HostCause;
  /** When the host came into its state. */
  since: number;
  /** Attempts that are parked there now. */
  parked: number;
  /** Null where no probe is planned: while the host is opening, or parked by hand. */
  nextProbeAt: number | null;
}

/** The statuses with which a proxy in front of a target answers while the target is not there. */
const NOBODY_STATUSES: readonly number[] = [502, 503, 504];

/**
 * Whether an attempt found nobody: no connection, no TLS, no end in time, or such a status. Null if that is unknown. A
 * host that answers in time is there, even if the answer is not HTTP.
 */
export function foundNobody(exchange: Exchange): boolean | null {
  switch (exchange.kind) {
    case "faulted":
      return exchange.hasAnswered !== true;
    case "stalled":
      return true;
    case "unsent":
    case "unknown":
      return null;
    case "answered":
      return exchange.bodyEnd === "stalled" || NOBODY_STATUSES.includes(exchange.status);
  }
}
