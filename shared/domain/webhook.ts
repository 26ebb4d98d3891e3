import { invalidRequest } from "./errors.ts";
import { checkLabel } from "./name.ts";
import { checkTarget, type TargetRules } from "./target.ts";

/** The rules of endpoints: which events there are, what an endpoint may be, what a change makes of it, and what can be retried. */

/** The events of a job's end by a settlement. The project's row in `flows` notes which of them its endpoints hear of. */
export const JOB_END_TYPES = ["job.succeeded", "job.failed"] as const;
export const EVENT_TYPES = [
  ...JOB_END_TYPES,
  "job.canceled",
  "schedule.firing_missed",
  "schedule.firing_skipped",
  "webhook.disabled",
  "quota.reached",
  "host.down",
  "host.up",
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

/**
 * Why an endpoint is disabled: the service did it since everything sent there has failed, or a client did it. A settlement
 * disables an endpoint after DELIVERY_WINDOW_HOURS of failures (domain/delivery.ts; store/queue/endpoint-health.ts).
 */
export const DISABLED_REASONS = ["failing", "patched"] as const;
export type DisabledReason = (typeof DISABLED_REASONS)[number];

export const ENDPOINT_STATUSES = ["enabled", "disabled"] as const;
export type EndpointStatus = (typeof ENDPOINT_STATUSES)[number];

export const DELIVERY_STATUSES = ["pending", "succeeded", "failed", "dropped"] as const;
export type DeliveryStatus = (typeof DELIVERY_STATUSES)[number];

export const DESCRIPTION_CHARACTERS_MAX = 200;
/** After a rotation the old secret goes on signing beside the new one for this long. */
export const OLD_SECRET_HOURS = 24;
/** A delivery is shown, and can be retried, for this long after its event. */
export const DELIVERY_RETENTION_DAYS = 30;
/** The attempts need a bound: a page of deliveries shows them all, and a client can add attempts by hand. */
export const DELIVERY_ATTEMPTS_MAX = 100;

/** The fields of an endpoint that a client chooses. */
export interface EndpointFields {
  url: string;
  /** At least one, without duplicates, in the order in which the client gave them. */
  events: EventType[];
  status: EndpointStatus;
  description: string | null;
}

export interface EndpointRequest {
  url: string;
  events: EventType[];
  description: string | null;
}

/** The endpoint that a request makes. Throws ApiError. */
export function decideNewEndpoint(request: EndpointRequest, targets: TargetRules): EndpointFields {
  return decideEndpointChange({ ...request, status: "enabled" }, request, targets);
}

/** The endpoint after a change. Fields that the change leaves out are not judged again. Throws ApiError. */
export function decideEndpointChange(
  endpoint: EndpointFields,
  change: Partial<EndpointRequest & { status: EndpointStatus }>,
  targets: TargetRules,
): EndpointFields {
  const { url, events, status, description } = change;
  if (url !== undefined) checkTarget(url, "url", targets);
  if (events !== undefined) checkEvents(events);
  if (typeof description === "string") checkLabel(description, "description", DESCRIPTION_CHARACTERS_MAX);
  return {
    url: url ?? endpoint.url,
    events: events ?? endpoint.events,
    status: status ?? endpoint.status,
    description: description === undefined ? endpoint.description : description,
  };
}

function checkEvents(events: readonly EventType[]): void {
  events.forEach((event, index) => {
    if (events.indexOf(event) !== index) {
      throw invalidRequest(`events[${index}] is given twice.`, `events[${index}]`);
    }
  });
}

/** Deliveries that were made before this instant are not shown any more. */
export function deliveriesSince(now: number): number {
  return now - DELIVERY_RETENTION_DAYS * DAY_MS;
}

const DAY_MS = 86_400_000;

/** The facts on which a retry of a delivery by hand is decided. */
export interface RetriableDelivery {
  /** As clients see it: a delivery that was owed before its endpoint was disabled is dropped. */
  status: DeliveryStatus;
  isInProgress: boolean;
  /** How many attempts it has had. */
  attemptCount: number;
  /** When its next attempt is due, in milliseconds since 1970; null if none is. */
  nextAttemptAt: number | null;
  /** How many of the waits between attempts were used. */
  waits: number;
  /** True if it was opened again for one attempt, so that none follows by itself. */
  byHand: boolean;
}

/**
 * Decides a retry by hand. A delivery that waits has its next attempt at once, and a wait that is cut short is not used up. A
 * delivery that is over is opened again for exactly one attempt. Throws ApiError.
 */
export function decideDeliveryRetry(
  { status, isInProgress, attemptCount, nextAttemptAt, waits, byHand }: RetriableDelivery,
  endpointStatus: EndpointStatus,
  now: number,
): Pick<RetriableDelivery, "waits" | "byHand"> {
  checkEnabled(endpointStatus);
  if (isInProgress) throw invalidRequest("An attempt of this delivery is in progress.");
  if (attemptCount >= DELIVERY_ATTEMPTS_MAX) {
    throw invalidRequest(`A delivery has at most ${DELIVERY_ATTEMPTS_MAX} attempts.`);
  }
  if (status !== "pending") return { waits: 0, byHand: true };
  const isCutShort = nextAttemptAt !== null && nextAttemptAt > now;
  return { waits: isCutShort ? Math.max(waits - 1, 0) : waits, byHand };
}

/** Throws invalid_request for an endpoint to which nothing is sent. */
export function checkEnabled(status: EndpointStatus): void {
  if (status === "disabled") throw invalidRequest("The endpoint is disabled.");
}
