import { type Static, Type } from "@sinclair/typebox";
import { DELIVERY_PREFIX } from "../domain/ids.ts";
import { filterOf, parseQuery, readPage } from "../domain/page.ts";
import { RUN_STATUSES, type RunStatus } from "../domain/run.ts";
import { DELIVERY_STATUSES, type DeliveryStatus, type EventType } from "../domain/webhook.ts";
import { EventId, EventTypeSchema } from "./event.ts";
import { idOf } from "./id.ts";
import { JobId } from "./job.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOf, timestampOrNull } from "./timestamp.ts";
import { namesOf, wordOf } from "./validator.ts";
import { WebhookId } from "./webhook.ts";

const closed = { additionalProperties: false } as const;

export const DeliveryId = idOf(DELIVERY_PREFIX, "The id of a delivery.");

const DeliveryStatusSchema = wordOf(
  DELIVERY_STATUSES,
  "pending while attempts follow or one is in progress; dropped when its endpoint was disabled before it had ended.",
  "DeliveryStatus",
);

const DeliveryAttempt = Type.Object(
  {
    attempt: Type.Integer({ minimum: 1, description: "The attempt's number, from 1." }),
    status: wordOf(RUN_STATUSES, "What the attempt came to."),
    response_status: Type.Union([Type.Integer(), Type.Null()], {
      description: "HTTP status returned by the endpoint; null if no response was received.",
    }),
    error: Type.Union([Type.String(), Type.Null()], {
      description:
        "What went wrong, or the beginning of the endpoint's answer. Null on success and while running.",
    }),
    started_at: Timestamp,
    duration_ms: Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
      description: "Null while running.",
    }),
  },
  { ...closed, title: "DeliveryAttempt", description: "One request to the endpoint." },
);

export const Delivery = Type.Object(
  {
    id: DeliveryId,
    webhook_id: WebhookId,
    event_id: EventId,
    event_type: EventTypeSchema,
    job_id: Type.Union([JobId, Type.Null()], {
      description: "The job that the event is about; null where it is about none.",
    }),
    status: DeliveryStatusSchema,
    attempts: Type.Array(DeliveryAttempt, { description: "In their order, one in progress included." }),
    next_attempt_at: Type.Union([Timestamp, Type.Null()], {
      description: "When the next attempt is due; null where none is waited for.",
    }),
    created_at: Timestamp,
  },
  { ...closed, title: "Delivery", description: "One event on its way to one endpoint." },
);
export const DeliveryList = listOf(Delivery, "DeliveryList");

export const DeliveryListParameters = Type.Object({
  ...pageParameters,
  status: Type.Optional(DeliveryStatusSchema),
});

/** The query string of GET /v2/webhooks/{id}/deliveries. Throws ApiError. */
export function readDeliveryListQuery(query: string) {
  const { status, ...page } = parseQuery(query, namesOf(DeliveryListParameters));
  return {
    ...readPage(page),
    status: filterOf(status, "status", DELIVERY_STATUSES),
  };
}

/** A delivery as the store knows it. Instants are milliseconds since 1970. */
export interface DeliveryFacts {
  id: string;
  webhookId: string;
  eventId: string;
  eventType: EventType;
  jobId: string | null;
  status: DeliveryStatus;
  attempts: readonly DeliveryAttemptFacts[];
  nextAttemptAt: number | null;
  createdAt: number;
}

export interface DeliveryAttemptFacts {
  attempt: number;
  status: RunStatus;
  responseStatus: number | null;
  error: string | null;
  startedAt: number;
  durationMs: number | null;
}

export function viewDelivery(delivery: DeliveryFacts): Static<typeof Delivery> {
  return {
    id: delivery.id,
    webhook_id: delivery.webhookId,
    event_id: delivery.eventId,
    event_type: delivery.eventType,
    job_id: delivery.jobId,
    status: delivery.status,
    attempts: delivery.attempts.map((attempt) => ({
      attempt: attempt.attempt,
      status: attempt.status,
      response_status: attempt.responseStatus,
      error: attempt.error,
      started_at: timestampOf(attempt.startedAt),
      duration_ms: attempt.durationMs,
    })),
    next_attempt_at: timestampOrNull(delivery.nextAttemptAt),
    created_at: timestampOf(delivery.createdAt),
  };
}
