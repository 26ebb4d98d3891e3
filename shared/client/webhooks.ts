import type { EventView } from "../contract/event.ts";
import type { BodyOf, QueryOf, ResponseOf } from "../contract/operations/all.ts";
import type { Call } from "./answer.ts";
import { type List, walkList } from "./list.ts";
import type { CreationOptions, RequestOptions, Send } from "./send.ts";

export type Webhook = ResponseOf<"getWebhook">;
/** A webhook with its whole secret. */
export type RevealedWebhook = ResponseOf<"createWebhook">;
export type DeletedWebhook = ResponseOf<"deleteWebhook">;
export type NewWebhook = BodyOf<"createWebhook">;
export type WebhookUpdate = BodyOf<"updateWebhook">;
export type WebhookListQuery = QueryOf<"listWebhooks">;
export type Delivery = ResponseOf<"retryDelivery">;
export type DeliveryListQuery = QueryOf<"listDeliveries">;
/** The body that an endpoint receives. Verify its signature first (`verifySignature`). */
export type WebhookEvent = EventView;

export interface Webhooks {
  /** Only this answer shows the secret. */
  create(webhook: NewWebhook, options?: CreationOptions): Call<RevealedWebhook>;
  get(id: string, options?: RequestOptions): Call<Webhook>;
  list(query?: WebhookListQuery, options?: RequestOptions): List<Webhook>;
  /** A field that is left out keeps its value. `description: null` removes the description. */
  update(id: string, changes: WebhookUpdate, options?: RequestOptions): Call<Webhook>;
  enable(id: string, options?: RequestOptions): Call<Webhook>;
  /** Deliveries owed to the endpoint are dropped, and enabling it again does not bring them back. */
  disable(id: string, options?: RequestOptions): Call<Webhook>;
  /** Refused as resource_not_found if the endpoint is gone, even if an earlier try of this same call deleted it. */
  delete(id: string, options?: RequestOptions): Call<DeletedWebhook>;
  /** Only this answer shows the new secret. For 24 hours requests are signed with the old one, too. */
  rotate(id: string, options?: CreationOptions): Call<RevealedWebhook>;
  /** Sends a signed sample event at once. */
  test(id: string, options?: CreationOptions): Call<Delivery>;
  /** The deliveries of the last 30 days, those still owed included, with every attempt. */
  deliveries(id: string, query?: DeliveryListQuery, options?: RequestOptions): List<Delivery>;
  /** Begins an attempt at once: the one that the delivery waits for, or one more if the delivery is over. */
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
