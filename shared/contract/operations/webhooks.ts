import type { Static } from "@sinclair/typebox";
import { DELIVERY_WINDOW_HOURS } from "../../domain/delivery.ts";
import { WEBHOOK_ENDPOINTS_MAX } from "../../domain/plan.ts";
import { DELIVERY_ATTEMPTS_MAX, DELIVERY_RETENTION_DAYS, OLD_SECRET_HOURS } from "../../domain/webhook.ts";
import { Delivery, DeliveryId, DeliveryList, DeliveryListParameters } from "../delivery.ts";
import { NEXT_CURSOR_EXAMPLE } from "../list.ts";
import {
  DeletedWebhook,
  NewWebhookRequest,
  RevealedWebhook,
  Webhook,
  WebhookId,
  WebhookList,
  WebhookListParameters,
  WebhookUpdateRequest,
} from "../webhook.ts";
import { operation } from "./operation.ts";

const WEBHOOK_ID = "whk_01m7ybr3kgsnpd4n830jn3f3ba";

const WEBHOOK_REQUEST_EXAMPLE: Static<typeof NewWebhookRequest> = {
  url: "https://example.com/hooks/jobwheel",
  events: ["job.succeeded", "job.failed"],
  description: "Billing",
};

const REVEALED_EXAMPLE: Static<typeof RevealedWebhook> = {
  id: WEBHOOK_ID,
  url: WEBHOOK_REQUEST_EXAMPLE.url,
  events: ["job.succeeded", "job.failed"],
  status: "enabled",
  description: "Billing",
  created_at: "2026-11-21T06:12:25.328Z",
  secret: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw4bN1c7tFQw8=",
};
const WEBHOOK_EXAMPLE: Static<typeof Webhook> = { ...REVEALED_EXAMPLE, secret: "whsec_****Qw8=" };

const DELIVERY_EXAMPLE: Static<typeof Delivery> = {
  id: "dlv_01m7ybr3w8k5vz2n6r9tq4c1x7",
  webhook_id: WEBHOOK_ID,
  event_id: "evt_01m7ybr3vq81qbcnqxb2xa9jzd",
  event_type: "job.failed",
  job_id: "job_01m7ybr3kgsnpd4n830jn3f3ba",
  status: "pending",
  attempts: [
    {
      attempt: 1,
      status: "failed",
      response_status: 503,
      error: "The target answered 503 with an empty body.",
      started_at: "2026-11-21T06:12:25.640Z",
      duration_ms: 31,
    },
  ],
  next_attempt_at: "2026-11-21T06:12:30.702Z",
  created_at: "2026-11-21T06:12:25.618Z",
};

const SAMPLE_EXAMPLE: Static<typeof Delivery> = {
  ...DELIVERY_EXAMPLE,
  id: "dlv_01m7ybr9c2w1k3v5t7s9q1n3m5",
  event_id: "evt_01m7ybr9c2w1k3v5t7s9q1n3m5",
  event_type: "job.succeeded",
  job_id: null,
  attempts: [],
  next_attempt_at: "2026-11-21T06:12:28.017Z",
  created_at: "2026-11-21T06:12:28.017Z",
};

export const WEBHOOK_OPERATIONS = {
  createWebhook: operation({
    method: "POST",
    path: "/v2/webhooks",
    resource: "webhooks",
    summary: "Create a webhook endpoint",
    description:
      "The answer shows the endpoint's secret, which no later answer does: deliveries are signed with it. A project has at " +
      `most ${WEBHOOK_ENDPOINTS_MAX} endpoints in each environment, disabled ones included.`,
    body: { schema: NewWebhookRequest, examples: { billing: WEBHOOK_REQUEST_EXAMPLE } },
    status: 201,
    response: { schema: RevealedWebhook, examples: { enabled: REVEALED_EXAMPLE } },
    codes: ["plan_limit_exceeded"],
  }),
  listWebhooks: operation({
    method: "GET",
    path: "/v2/webhooks",
    resource: "webhooks",
    summary: "List webhook endpoints",
    description: "Newest first.",
    query: WebhookListParameters,
    response: {
      schema: WebhookList,
      examples: { firstPage: { data: [WEBHOOK_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  getWebhook: operation({
    method: "GET",
    path: "/v2/webhooks/{webhook_id}",
    id: WebhookId,
    resource: "webhooks",
    summary: "Get a webhook endpoint",
    description: "An endpoint of another project or of the other environment is not found.",
    response: { schema: Webhook, examples: { enabled: WEBHOOK_EXAMPLE } },
  }),
  updateWebhook: operation({
    method: "PATCH",
    path: "/v2/webhooks/{webhook_id}",
    id: WebhookId,
    resource: "webhooks",
    summary: "Change, disable or enable a webhook endpoint",
    description:
      "`events` replaces the whole list. Retries go to the endpoint's present `url`. Disabling drops the deliveries owed to the " +
      `endpoint; enabling it does not bring them back, and begins a new ${DELIVERY_WINDOW_HOURS} hours. The secret stays what it is.`,
    body: {
      schema: WebhookUpdateRequest,
      examples: { disable: { status: "disabled" }, clearDescription: { description: null } },
    },
    response: { schema: Webhook, examples: { disabled: { ...WEBHOOK_EXAMPLE, status: "disabled" } } },
  }),
  deleteWebhook: operation({
    method: "DELETE",
    path: "/v2/webhooks/{webhook_id}",
    id: WebhookId,
    resource: "webhooks",
    summary: "Delete a webhook endpoint",
    description: "Nothing is sent to it any more, and deliveries owed to it are discarded.",
    response: { schema: DeletedWebhook, examples: { deleted: { id: WEBHOOK_ID, deleted: true } } },
  }),
  rotateWebhookSecret: operation({
    method: "POST",
    path: "/v2/webhooks/{webhook_id}/rotate",
    id: WebhookId,
    resource: "webhooks",
    summary: "Give a webhook endpoint a new secret",
    description:
      `The answer shows the new secret, which no later answer does. For ${OLD_SECRET_HOURS} hours \`webhook-signature\` holds a signature of ` +
      "the one before as well, while `Service-Signature` is made with the new one at once. A second rotation within that time " +
      "ends the older one. A body is ignored.",
    response: { schema: RevealedWebhook, examples: { rotated: REVEALED_EXAMPLE } },
  }),
  testWebhook: operation({
    method: "POST",
    path: "/v2/webhooks/{webhook_id}/test",
    id: WebhookId,
    resource: "webhooks",
    summary: "Send a sample event",
    description:
      "A sample of the first event that the endpoint subscribes to is sent to it once, at once. It is signed like any other event and has " +
      "the header `Service-Webhook-Test: true`. A disabled endpoint is refused with `invalid_request`. A body is ignored.",
    response: { schema: Delivery, examples: { owed: SAMPLE_EXAMPLE } },
  }),
  listDeliveries: operation({
    method: "GET",
    path: "/v2/webhooks/{webhook_id}/deliveries",
    id: WebhookId,
    resource: "webhooks",
    summary: "List what was sent to a webhook endpoint",
    description:
      `Newest first, of the last ${DELIVERY_RETENTION_DAYS} days, with every attempt. A page of long errors holds fewer than \`limit\`: \`next_cursor\` ` +
      "alone tells whether others follow.",
    query: DeliveryListParameters,
    response: {
      schema: DeliveryList,
      examples: { firstPage: { data: [DELIVERY_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  retryDelivery: operation({
    method: "POST",
    path: "/v2/webhooks/{webhook_id}/deliveries/{delivery_id}/retry",
    id: WebhookId,
    innerId: DeliveryId,
    resource: "webhooks",
    summary: "Retry a delivery now",
    description:
      "The next attempt of a delivery that waits for one is due at once. One that is over, be it succeeded, failed or " +
      "dropped, has exactly one more. While an attempt is in progress, where the endpoint is disabled, and after " +
      `${DELIVERY_ATTEMPTS_MAX} attempts ` +
      "it is refused with `invalid_request`. What fails by hand, samples included, does not count against the endpoint; what " +
      "succeeds counts for it. A body is ignored.",
    response: { schema: Delivery, examples: { pending: DELIVERY_EXAMPLE } },
  }),
};
