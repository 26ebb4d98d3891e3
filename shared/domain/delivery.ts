import type { Random } from "./backoff.ts";
import { type Exchange, judgeResponse, UNKNOWN_ERROR } from "./run.ts";

/** The rules of deliveries: what an attempt came to, and when the next one follows. */

/** The waits from the end of one attempt to the start of the next. */
export const DELIVERY_WAITS_SECONDS = [5, 300, 1_800, 7_200, 18_000, 36_000, 50_400] as const;
/** Each wait is longer or shorter by at most this part of it. */
const DELIVERY_JITTER = 0.1;
/**
 * The last attempt begins so long after the first one began. The settlement's statement disables an endpoint to which
 * everything has failed for so long (store/queue/endpoint-health.ts).
 */
export const DELIVERY_WINDOW_HOURS = 48;
export const DELIVERY_WINDOW_SECONDS = DELIVERY_WINDOW_HOURS * 3_600;

/** By this status an endpoint says that it is gone for good. */
const GONE = 410;

export type DeliveryOutcome =
  | { kind: "succeeded"; responseStatus: number; error: null }
  | {
      kind: "failed" | "timed_out";
      responseStatus: number | null;
      error: string;
      /** When the next attempt follows: after one of the waits above, at once, or never. */
      retry: "waits" | "at_once" | "never";
      /** The side at fault. A fault of ours says nothing about the endpoint. */
      fault: "endpoint" | "ours";
    };

/** Decides what an attempt came to. Only the status counts: the body behind it may break off. */
export function judgeDelivery(exchange: Exchange, now: number, timeoutMs: number): DeliveryOutcome {
  if (exchange.kind === "answered" && exchange.status >= 200 && exchange.status <= 299) {
    return { kind: "succeeded", responseStatus: exchange.status, error: null };
  }
  if (exchange.kind === "unknown") return brokenOffDelivery(UNKNOWN_ERROR);
  const { kind, responseStatus, error } = judgeResponse(exchange, now, timeoutMs);
  const retry = responseStatus === GONE ? "never" : "waits";
  return {
    kind: kind === "timed_out" ? kind : "failed",
    responseStatus,
    error: error ?? "",
    retry,
    fault: "endpoint",
  };
}

/** The outcome of an attempt that we broke off, or whose node died: there is nothing to wait for. */
export function brokenOffDelivery(error: string): DeliveryOutcome {
  return { kind: "failed", responseStatus: null, error, retry: "at_once", fault: "ours" };
}

/** The outcome of an attempt that was not sent, for a reason that may last. */
export function unsentDelivery(error: string): DeliveryOutcome {
  return { kind: "failed", responseStatus: null, error, retry: "waits", fault: "ours" };
}

/** An attempt that has ended. Instants are milliseconds since 1970, by the database's clock. */
export interface DeliveryAttempt {
  /** How many of the waits were used before it. An attempt that followed at once used none. */
  waits: number;
  startedAt: number;
  /** When the first attempt of this delivery began. */
  firstStartedAt: number;
  /** The attempt was asked for by hand once the delivery had ended, so that none follows by itself. */
  byHand: boolean;
}

export type SettledDelivery =
  | { status: "succeeded" }
  | { status: "failed" }
  /**
   * The next attempt is due `waitMs` milliseconds after this one ended, but never after the window; null if it is due when the
   * window ends. The settlement's statement reckons that instant (store/queue/delivery-settle.ts).
   */
  | { status: "pending"; waitMs: number | null; waits: number };

/** Decides what follows an attempt. `scale` multiplies every wait and the whole window; trials make it small. */
export function settleDelivery(
  attempt: DeliveryAttempt,
  outcome: DeliveryOutcome,
  { random, scale }: { random: Random; scale: number },
): SettledDelivery {
  if (outcome.kind === "succeeded") return { status: "succeeded" };
  const lastAt = attempt.firstStartedAt + DELIVERY_WINDOW_SECONDS * 1_000 * scale;
  if (outcome.retry === "never" || attempt.byHand || attempt.startedAt >= lastAt) return { status: "failed" };
  if (outcome.retry === "at_once") return { status: "pending", waitMs: 0, waits: attempt.waits };
  const waitSeconds = DELIVERY_WAITS_SECONDS[attempt.waits];
  if (waitSeconds === undefined) return { status: "pending", waitMs: null, waits: attempt.waits };
  const jitter = 1 + DELIVERY_JITTER * (2 * random() - 1);
  return { status: "pending", waitMs: waitSeconds * 1_000 * scale * jitter, waits: attempt.waits + 1 };
}
