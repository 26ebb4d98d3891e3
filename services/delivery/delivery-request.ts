import { eventText, traceSubject } from "../../shared/contract/event-text.ts";
import {
  brokenOffDelivery,
  type DeliveryOutcome,
  judgeDelivery,
  settleDelivery,
  unsentDelivery,
} from "../../shared/domain/delivery.ts";
import { INTERRUPTED_ERROR, TIME_OVER_ERROR, UNSIGNED_ERROR } from "../../shared/domain/run.ts";
import { unrecordedContext } from "../../shared/domain/trace.ts";
import { realNow } from "../../shared/platform/clock.ts";
import type { Span } from "../../shared/platform/traces/traces.ts";
import type { GrantedDelivery } from "../../shared/store/queue/delivery-claim.ts";
import type { DeliverySettlement } from "../../shared/store/queue/delivery-settle.ts";
import type { Asked, OwedItem } from "./attempt-kind.ts";
import { sendTraced } from "./attempt-span.ts";
import { type Sender, timeLeftMs, USER_AGENT } from "./job-request.ts";
import { signHeaders } from "./sign.ts";

export interface DeliverySender extends Sender {
  /** Multiplies every wait between attempts, and the 48 hours, for trials. */
  scale: number;
}

export interface SendingDelivery {
  item: Pick<OwedItem, "projectNo" | "environment" | "region" | "shard" | "attempt">;
  granted: Asked<GrantedDelivery>;
  /** Empty if they cannot be read; an unsigned request is not sent. */
  secrets: readonly string[];
  span: Span | null;
}

/** Sends one event to one endpoint and decides what follows from how that ended. Never throws. */
export async function sendDelivery(
  { item, granted, secrets, span }: SendingDelivery,
  sender: DeliverySender,
): Promise<DeliverySettlement> {
  const begunAt = performance.now();
  const outcome = await attempt({ granted, secrets, span }, sender);
  const { deliveryId, attemptId, startedAt, firstStartedAt, waits, byHand } = granted;
  const { projectNo, environment, region, shard } = item;
  const ended = { waits, startedAt, firstStartedAt, byHand };
  const next = settleDelivery(ended, outcome, { random: Math.random, scale: sender.scale });
  return {
    projectNo,
    environment,
    region,
    shard,
    deliveryId,
    attemptId,
    status: outcome.kind,
    responseStatus: outcome.responseStatus,
    error: outcome.error,
    isOurFault: outcome.kind !== "succeeded" && outcome.fault === "ours",
    durationMs: performance.now() - begunAt,
    next,
  };
}

async function attempt(
  { granted, secrets, span }: Omit<SendingDelivery, "item">,
  sender: DeliverySender,
): Promise<DeliveryOutcome> {
  const { outbound, clock, timeoutMs, shutdown } = sender;
  // Past the deadline others may take the attempt for lost, so it is not sent any more.
  const leftMs = timeLeftMs(granted, sender);
  if (leftMs <= 0) return unsentDelivery(TIME_OVER_ERROR);
  if (granted.endpoint === null) return unsentDelivery("The endpoint was deleted before anything was sent.");
  if (secrets.length === 0) return unsentDelivery(UNSIGNED_ERROR);
  const body = eventText(granted.event);
  const { url } = granted.endpoint;
  const unrecorded = granted.trace ?? unrecordedContext(traceSubject(granted.event), granted.attemptId);
  const exchange = await sendTraced(span, unrecorded, clock, (traceparent) => {
    const headers = headersOf(granted, body, { secrets, traceparent, now: realNow(clock) });
    return outbound.post({ url, headers, body, timeoutMs: leftMs, signal: shutdown });
  });
  // A status that has arrived decides the outcome, since the endpoint has heard of the event.
  if (shutdown.aborted && exchange.kind === "faulted") return brokenOffDelivery(INTERRUPTED_ERROR);
  return judgeDelivery(exchange, realNow(clock), timeoutMs);
}

/** The headers beside the event; the API promises each of them. */
function headersOf(
  { event, isSample }: GrantedDelivery,
  body: string,
  { secrets, traceparent, now }: { secrets: readonly string[]; traceparent: string; now: number },
): Record<string, string> {
  return {
    "content-type": "application/json",
    "user-agent": USER_AGENT,
    "service-environment": event.environment,
    ...(isSample ? { "service-webhook-test": "true" } : {}),
    traceparent,
    ...signHeaders(body, { id: event.id, sentAt: now, secrets }),
  };
}
