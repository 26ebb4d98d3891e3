import type { EventView } from "../contract/event.ts";
import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations.ts";
import type { Call } from "./answer.ts";
import { type List, walkList } from "./list.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Webhook = ResponseOf<"getWebhook">;
/** With its secret in full. */
export type RevealedWebhook = ResponseOf<"createWebhook">;
export type DeletedWebhook = ResponseOf<"deleteWebhook">;
export type NewWebhook = BodyOf<"createWebhook">;
export type WebhookUpdate = BodyOf<"updateWebhook">;
export type WebhookListQuery = QueryOf<"listWebhooks">;
export type Delivery = ResponseOf<"retryDelivery">;
export type DeliveryListQuery = QueryOf<"listDeliveries">;
/** What an endpoint receives, once `verifySignature` has shown that it comes from the service. */
export type WebhookEvent = EventView;

export interface Webhooks {
  /** The secret is shown in this answer alone. */
  create(webhook: NewWebhook, options?: CreationOptions): Call<RevealedWebhook>;
  get(id: string, options?: RequestOptions): Call<Webhook>;
  list(query?: WebhookListQuery, options?: RequestOptions): List<Webhook>;
  /** What is left out keeps its value; `description: null` takes it away. */
  update(id: string, changes: WebhookUpdate, options?: RequestOptions): Call<Webhook>;
  enable(id: string, options?: RequestOptions): Call<Webhook>;
  /** What is owed to it is dropped, and stays so when it is enabled again. */
  disable(id: string, options?: RequestOptions): Call<Webhook>;
  /** Refused as resource_not_found where it is gone already, also where a try of this very call has deleted it. */
  delete(id: string, options?: RequestOptions): Call<DeletedWebhook>;
  /** The new secret is shown in this answer alone. The one before it signs as well for 24 hours. */
  rotate(id: string, options?: CreationOptions): Call<RevealedWebhook>;
  /** Sends a signed sample event at once. */
  test(id: string, options?: CreationOptions): Call<Delivery>;
  /** What was sent to it in the last 30 days and is to be, with every attempt. */
  deliveries(id: string, query?: DeliveryListQuery, options?: RequestOptions): List<Delivery>;
  /** Begins an attempt at once: the one that it waits for, or one more of a delivery that is over. */
  retry(id: string, deliveryId: string, options?: CreationOptions): Call<Delivery>;
}

export function createWebhooks(send: Send): Webhooks {
  const update = (id: string, changes: WebhookUpdate, options?: RequestOptions) =>
    send<Webhook>({ method: "PATCH", path: webhookPath(id), body: () => JSON.stringify(changes), options });

  return {
    update,
    create: (webhook, options) =>
      send({ method: "POST", path: "/v2/webhooks", body: () => JSON.stringify(webhook), options }),
    get: (id, options) => send({ method: "GET", path: webhookPath(id), options }),
    list: (query, options) => walkList(send, { method: "GET", path: "/v2/webhooks", query, options }),
    enable: (id, options) => update(id, { status: "enabled" }, options),
    disable: (id, options) => update(id, { status: "disabled" }, options),
    delete: (id, options) => send({ method: "DELETE", path: webhookPath(id), options }),
    rotate: (id, options) => send({ method: "POST", path: `${webhookPath(id)}/rotate`, options }),
    test: (id, options) => send({ method: "POST", path: `${webhookPath(id)}/test`, options }),
    deliveries: (id, query, options) =>
      walkList(send, { method: "GET", path: `${webhookPath(id)}/deliveries`, query, options }),
    retry: (id, deliveryId, options) =>
      send({
        method: "POST",
        path: `${webhookPath(id)}/deliveries/${encodeURIComponent(deliveryId)}/retry`,
        options,
      }),
  };
}

function webhookPath(id: string): string {
  return `/v2/webhooks/${encodeURIComponent(id)}`;
}
