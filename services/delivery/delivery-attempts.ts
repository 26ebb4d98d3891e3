import { sendHints } from "../../shared/bus/hints.ts";
import { DELIVERY_WINDOW_SECONDS } from "../../shared/domain/delivery.ts";
import { reasonOf } from "../../shared/domain/failure-reason.ts";
import { ATTEMPT_PREFIX, type IdSource } from "../../shared/domain/ids.ts";
import type { Log } from "../../shared/platform/log.ts";
import type { Seal } from "../../shared/platform/seal/seal.ts";
import type { Span } from "../../shared/platform/traces/traces.ts";
import type { Cell } from "../../shared/process/cell.ts";
import {
  claimDeliveries,
  type DeliveryClaim,
  type GrantedDelivery,
} from "../../shared/store/queue/delivery-claim.ts";
import {
  type DeliverySettlement,
  type SettledDeliveryItem,
  settleDeliveries,
} from "../../shared/store/queue/delivery-settle.ts";
import { type Parked, parkAttempts } from "../../shared/store/queue/parking.ts";
import { findEndpointUrls, type OwedPlace } from "../../shared/store/queue/target-urls.ts";
import {
  type Asked,
  type AttemptKind,
  inBatches,
  noteAsked,
  noteCommitted,
  waitLeft,
} from "./attempt-kind.ts";
import { beginAttempt, endAttempt } from "./attempt-span.ts";
import { type DeliverySender, sendDelivery } from "./delivery-request.ts";
import type { StoreRetries } from "./retry-until-answered.ts";

/** An attempt of a delivery that was sent, and how it ended. */
interface SentDelivery {
  attempt: number;
  host: string | null;
  settlement: DeliverySettlement;
  /** By performance.now(). */
  endedAt: number;
  span: Span | null;
  webhookId: string;
  eventId: string;
}

/** Attempts of deliveries: events that are sent to webhook endpoints. */
export function createDeliveryAttempts(
  { db, bus, clock, log, metrics, traces }: Cell,
  options: { nodeId: number; ids: IdSource; seal: Seal; sender: DeliverySender; retries: StoreRetries },
): AttemptKind<Asked<GrantedDelivery>, SentDelivery> {
  const { nodeId, ids, seal, sender, retries } = options;
  const windowMs = DELIVERY_WINDOW_SECONDS * 1_000 * sender.scale;
  const locating = inBatches((places: OwedPlace[]) => findEndpointUrls(db, places));
  const parking = inBatches((items: Parked[]) => parkAttempts(db, "webhooks", items));
  const timedClaim = metrics.statement("claim_webhooks");
  const timedSettlement = metrics.statement("settle_webhooks");
  const noteLateness = metrics.lateness("webhooks");
  const claiming = inBatches(async (claims: DeliveryClaim[]) => {
    const askedAt = performance.now();
    const answers = await timedClaim(claims.length, () => claimDeliveries(db, nodeId, claims));
    const hasBegun = ({ attemptId }: GrantedDelivery, claim: DeliveryClaim) => attemptId === claim.attemptId;
    return noteAsked(answers, claims, { askedAt, hasBegun });
  });
  const settling = inBatches(async (attempts: SentDelivery[]) => {
    const settlements = attempts.map(({ settlement, endedAt }) => waitLeft(settlement, endedAt));
    const settled = await timedSettlement(attempts.length, () => settleDeliveries(db, settlements, windowMs));
    sendHints(bus, settled);
    noteCommitted(log, () => {
      for (const [index, attempt] of attempts.entries()) noteSettled(attempt, settled.items[index] ?? null);
    });
    return settled.items;
  });

  function noteSettled(sent: SentDelivery, settled: SettledDeliveryItem | null): void {
    const { attempt, host, settlement, span, webhookId, eventId } = sent;
    const { deliveryId, status, responseStatus, durationMs } = settlement;
    metrics.deliveriesSettled[status].inc();
    if (settled?.isDisabling) metrics.webhooksDisabled.inc();
    const next = settled?.status ?? "settled before";
    const reason = reasonOf(settlement);
    endAttempt(span, clock.now(), { ...settlement, next });
    log.info(
      {
        deliveryId,
        webhookId,
        eventId,
        attempt,
        durationMs: Math.round(durationMs),
        outcome: status,
        responseStatus,
        ...(reason === null ? {} : { host, reason }),
        delivery: next,
        nextAttemptAt: settled?.nextAttemptAt == null ? null : new Date(settled.nextAttemptAt).toISOString(),
        ...(settled?.isDisabling ? { webhook: "disabled" } : {}),
        ...(span === null ? {} : { traceId: span.context.traceId }),
      },
      "delivery.settled",
    );
  }

  return {
    locate: (item) => locating.submit(item),
    park: ({ projectNo, environment, region, id, attempt }, at) =>
      parking.submit({ projectNo, environment, region, id, attempt, ...at }),
    claim({ projectNo, environment, region, id: deliveryId, attempt }) {
      const attemptId = ids.next(ATTEMPT_PREFIX, clock.now());
      return claiming.submit({ projectNo, environment, region, deliveryId, attempt, attemptId });
    },
    urlOf: ({ endpoint }) => endpoint?.url ?? null,
    keyOf: () => null,
    async send(item, granted, host) {
      const { webhookId, event } = granted;
      const span = beginAttempt(traces, item, granted, () => ({
        name: "delivery",
        attributes: {
          "jobwheel.delivery_id": item.id,
          "jobwheel.webhook_id": webhookId,
          "jobwheel.event_id": event.id,
          ...("job" in event ? { "jobwheel.job_id": event.job.id } : {}),
        },
      }));
      const secrets = openSecrets(granted, seal, log);
      if (granted.endpoint !== null && secrets.length > 0)
        noteLateness(item.region, clock.now() - item.dueAt);
      const settlement = await sendDelivery({ item, granted, secrets, span }, sender);
      const { id: eventId } = event;
      return {
        attempt: item.attempt,
        host,
        settlement,
        endedAt: performance.now(),
        span,
        webhookId,
        eventId,
      };
    },
    mayTakeNext: () => false,
    async settle(sent) {
      await retries.untilSettled(sent.settlement, (settlement) => settling.submit({ ...sent, settlement }));
      return null;
    },
  };
}

/** The endpoint's secrets; none if they cannot be read. */
function openSecrets({ endpoint, webhookId }: GrantedDelivery, seal: Seal, log: Log): string[] {
  try {
    return endpoint?.sealedSecrets.map((sealed) => seal.open(sealed)) ?? [];
  } catch (error) {
    log.error({ err: error, webhookId }, "webhook_secret.unreadable");
    return [];
  }
}
