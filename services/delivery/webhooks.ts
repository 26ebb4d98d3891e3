import type { Bus } from "../../shared/bus/bus.ts";
import { sendHints } from "../../shared/bus/hints.ts";
import { eventText } from "../../shared/contract/event.ts";
import {
  brokenOffDelivery,
  DELIVERY_WINDOW_SECONDS,
  type DeliveryOutcome,
  judgeDelivery,
  settleDelivery,
  unsentDelivery,
} from "../../shared/domain/delivery.ts";
import { ATTEMPT_PREFIX, type IdSource } from "../../shared/domain/ids.ts";
import { INTERRUPTED_ERROR } from "../../shared/domain/run.ts";
import { unrecordedContext } from "../../shared/domain/trace.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Metrics } from "../../shared/platform/metrics/metrics.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import type { Span, Traces } from "../../shared/platform/traces/traces.ts";
import { createBatcher } from "../../shared/store/database/batch.ts";
import type { Database } from "../../shared/store/database/database.ts";
import {
  claimDeliveries,
  type DeliveryClaim,
  type GrantedDelivery,
} from "../../shared/store/queue/delivery-claim.ts";
import { type DeliverySettlement, settleDeliveries } from "../../shared/store/queue/delivery-settle.ts";
import { type Parked, parkAttempts } from "../../shared/store/queue/parking.ts";
import { findEndpointUrls, type OwedPlace } from "../../shared/store/queue/target-urls.ts";
import { type Sender, USER_AGENT } from "./attempts.ts";
import { BATCH } from "./batches.ts";
import type { Outgoing, OwedItem } from "./outgoing.ts";
import type { Patience } from "./patience.ts";
import { signHeaders } from "./sign.ts";
import { beginAttempt, endAttempt, sendTraced } from "./traced.ts";

/** Deliveries of events to webhook endpoints. */
export function createWebhooks(options: {
  db: Database;
  bus: Bus;
  log: Log;
  metrics: Metrics;
  traces: Traces;
  nodeId: number;
  ids: IdSource;
  seal: Seal;
  sender: DeliverySender;
  patience: Patience;
}): Outgoing<GrantedDelivery> {
  const { db, bus, log, metrics, traces, nodeId, ids, seal, sender, patience } = options;
  const windowMs = DELIVERY_WINDOW_SECONDS * 1_000 * sender.scale;
  const locating = createBatcher({ run: (places: OwedPlace[]) => findEndpointUrls(db, places), ...BATCH });
  const parking = createBatcher({ run: (items: Parked[]) => parkAttempts(db, "webhooks", items), ...BATCH });
  const timedClaim = metrics.statement("claim_webhooks");
  const timedSettlement = metrics.statement("settle_webhooks");
  const noteLateness = metrics.lateness("webhooks");
  const claiming = createBatcher({
    run: (claims: DeliveryClaim[]) => timedClaim(claims.length, () => claimDeliveries(db, nodeId, claims)),
    ...BATCH,
  });
  const settling = createBatcher({
    async run(items: DeliverySettlement[]) {
      const settled = await timedSettlement(items.length, () => settleDeliveries(db, items, windowMs));
      sendHints(bus, settled);
      return settled.items;
    },
    ...BATCH,
  });

  return {
    locate: (item) => locating.submit(item),
    park: ({ projectNo, environment, region, id, attempt }, at) =>
      parking.submit({ projectNo, environment, region, id, attempt, ...at }),
    claim({ projectNo, environment, region, id: deliveryId, attempt }) {
      const attemptId = ids.next(ATTEMPT_PREFIX, sender.clock.now());
      return claiming.submit({ projectNo, environment, region, deliveryId, attempt, attemptId });
    },
    urlOf: ({ endpoint }) => endpoint?.url ?? null,
    async send(item, granted) {
      const { attempt, id: deliveryId } = item;
      const { webhookId, event } = granted;
      const span = beginAttempt(traces, item, granted, () => ({
        name: "delivery",
        attributes: {
          "jobwheel.delivery_id": deliveryId,
          "jobwheel.webhook_id": webhookId,
          "jobwheel.event_id": event.id,
          "jobwheel.job_id": event.job.id,
        },
      }));
      const secrets = openSecrets(granted, seal, log);
      if (granted.endpoint !== null && secrets.length > 0) {
        noteLateness(item.region, sender.clock.now() - item.dueAt);
      }
      const settlement = await sendDelivery({ item, granted, secrets, span }, sender);
      return async () => {
        const settled = await patience.untilSettled(settlement, (it) => settling.submit(it));
        metrics.deliveriesSettled[settlement.status].inc();
        if (settled?.isDisabling) metrics.webhooksDisabled.inc();
        const next = settled?.status ?? "settled before";
        endAttempt(span, sender.clock.now(), { ...settlement, next });
        log.info(
          {
            deliveryId,
            webhookId,
            eventId: event.id,
            attempt,
            durationMs: Math.round(settlement.durationMs),
            outcome: settlement.status,
            responseStatus: settlement.responseStatus,
            delivery: next,
            nextAttemptAt:
              settled?.nextAttemptAt == null ? null : new Date(settled.nextAttemptAt).toISOString(),
            ...(settled?.isDisabling ? { webhook: "disabled" } : {}),
            ...(span === null ? {} : { traceId: span.context.traceId }),
          },
          "delivery.settled",
        );
      };
    },
  };
}

/** Empty if they cannot be read; unsigned requests are not sent. */
function openSecrets({ endpoint, webhookId }: GrantedDelivery, seal: Seal, log: Log): string[] {
  try {
    return endpoint?.sealedSecrets.map((sealed) => seal.open(sealed)) ?? [];
  } catch (error) {
    log.error({ err: error, webhookId }, "webhook_secret.unreadable");
    return [];
  }
}

export interface DeliverySender extends Omit<Sender, "attemptTimeoutMs"> {
  timeoutMs: number;
  /** Multiplies every wait and the window, for trials. */
  scale: number;
}

export interface SendingDelivery {
  item: Pick<OwedItem, "projectNo" | "environment" | "region" | "shard" | "attempt">;
  granted: GrantedDelivery;
  secrets: readonly string[];
  span: Span | null;
}

/** Sends one event to one endpoint and decides what follows from how that ended. Never throws. */
export async function sendDelivery(
  { item, granted, secrets, span }: SendingDelivery,
  sender: DeliverySender,
): Promise<DeliverySettlement> {
  const { clock, scale } = sender;
  const begunAt = performance.now();
  const outcome = await attempt({ granted, secrets, span }, sender);
  const { deliveryId, attemptId, startedAt, firstStartedAt, waits, byHand } = granted;
  const { projectNo, environment, region, shard } = item;
  const ended = { waits, startedAt, firstStartedAt, byHand };
  const next = settleDelivery(ended, outcome, { now: clock.now(), random: Math.random, scale });
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
  { outbound, clock, timeoutMs, shutdown }: DeliverySender,
): Promise<DeliveryOutcome> {
  // The deadline counts from the recorded start. Past it others may hold the attempt to be lost: it is not sent any more.
  const leftMs = granted.startedAt + timeoutMs - clock.now();
  if (leftMs <= 0) return unsentDelivery("The time of this attempt was over before anything was sent.");
  if (granted.endpoint === null) return unsentDelivery("The endpoint was deleted before anything was sent.");
  if (secrets.length === 0) return unsentDelivery("The request could not be signed.");
  const body = eventText(granted.event);
  const { url } = granted.endpoint;
  const unrecorded = granted.trace ?? unrecordedContext(granted.event.job.id, granted.attemptId);
  const exchange = await sendTraced(span, unrecorded, clock, (traceparent) => {
    const headers = headersOf(granted, body, { secrets, traceparent, now: clock.now() });
    return outbound.post({ url, headers, body, timeoutMs: leftMs, signal: shutdown });
  });
  // Where a status had come, it decides: the endpoint has been told.
  if (shutdown.aborted && exchange.kind === "faulted") return brokenOffDelivery(INTERRUPTED_ERROR);
  return judgeDelivery(exchange, clock.now(), timeoutMs);
}

/** What the endpoint is told beside the event (decisions.md, section 6). */
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
