import { type Static, Type } from "@sinclair/typebox";
import { DELIVERY_WINDOW_HOURS } from "../domain/delivery.ts";
import { WEBHOOK_PREFIX } from "../domain/ids.ts";
import { filterOf, parseQuery, readPage } from "../domain/page.ts";
import { TARGET_URL_CHARACTERS_MAX } from "../domain/target.ts";
import {
  DESCRIPTION_CHARACTERS_MAX,
  ENDPOINT_STATUSES,
  type EndpointFields,
  type EndpointRequest,
  type EndpointStatus,
  EVENT_TYPES,
} from "../domain/webhook.ts";
import { EventTypeSchema } from "./event.ts";
import { idOf } from "./id.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOf } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

export const WebhookId = idOf(WEBHOOK_PREFIX, "The id of a webhook endpoint.");

const Url = Type.String({
  documented: { format: "uri", maxLength: TARGET_URL_CHARACTERS_MAX },
  description: "HTTPS URL with a public host and without credentials that receives the events.",
  examples: ["https://example.com/hooks/jobwheel"],
});
const Events = Type.Array(EventTypeSchema, {
  minItems: 1,
  maxItems: EVENT_TYPES.length,
  documented: { uniqueItems: true },
  description: "The events that the endpoint receives.",
});
const Description = Type.String({
  documented: { maxLength: DESCRIPTION_CHARACTERS_MAX },
  description: "A label; null is none.",
  examples: ["Billing"],
});
const StatusSchema = wordOf(
  ENDPOINT_STATUSES,
  `Whether events are sent to the endpoint. It is disabled when everything sent to it has failed for ${DELIVERY_WINDOW_HOURS} hours.`,
  "WebhookStatus",
);

export const NewWebhookRequest = Type.Object(
  { url: Url, events: Events, description: Type.Optional(Description) },
  { ...closed, title: "NewWebhookRequest" },
);

export const WebhookUpdateRequest = Type.Object(
  {
    url: Type.Optional(Url),
    events: Type.Optional(Events),
    status: Type.Optional(StatusSchema),
    description: Type.Optional(Type.Union([Description, Type.Null()])),
  },
  { ...closed, title: "WebhookUpdateRequest", description: "What is left out keeps its value." },
);

const endpointFields = {
  id: WebhookId,
  url: Url,
  events: Events,
  status: StatusSchema,
  description: Type.Union([Description, Type.Null()]),
  created_at: Timestamp,
};
const BASE64 = "[A-Za-z0-9+/]";

export const MaskedSecret = Type.String({
  pattern: `^whsec_\\*{4}${BASE64}{3}=$`,
  description: "Masked but for its last characters.",
  examples: ["whsec_****Qw8="],
});
export const revealedSecret = (description: string) =>
  Type.String({
    pattern: `^whsec_${BASE64}{43}=$`,
    description,
    examples: ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw4bN1c7tFQw8="],
  });

export const Webhook = Type.Object(
  {
    ...endpointFields,
    secret: MaskedSecret,
  },
  { ...closed, title: "Webhook", description: "An endpoint that is told how jobs end." },
);
export const RevealedWebhook = Type.Object(
  {
    ...endpointFields,
    secret: revealedSecret("What deliveries are signed with. It is shown this once."),
  },
  { ...closed, title: "RevealedWebhook", description: "An endpoint with its new secret." },
);
export const WebhookList = listOf(Webhook, "WebhookList");
export const DeletedWebhook = Type.Object(
  { id: WebhookId, deleted: Type.Literal(true) },
  { ...closed, title: "DeletedWebhook" },
);

export const WebhookListParameters = Type.Object({
  ...pageParameters,
  status: Type.Optional(StatusSchema),
});

/** The body of POST /v2/webhooks. Throws ApiError. */
export function readNewWebhook(value: unknown): EndpointRequest {
  return { description: null, ...validateNew(value) };
}

/** The body of PATCH /v2/webhooks/{id}. Its rules are checked later, with the rest of the endpoint. Throws ApiError. */
export function readWebhookUpdate(value: unknown): Partial<EndpointRequest & { status: EndpointStatus }> {
  return validateUpdate(value);
}

/** The query string of GET /v2/webhooks. Throws ApiError. */
export function readWebhookListQuery(query: string) {
  const { status, ...page } = parseQuery(query, namesOf(WebhookListParameters));
  return {
    ...readPage(page),
    status: filterOf(status, "status", ENDPOINT_STATUSES),
  };
}

/** `secret` as it is to be shown; instants are milliseconds since 1970. */
export function viewWebhook(
  endpoint: EndpointFields & { id: string; createdAt: number },
  secret: string,
): Static<typeof Webhook> {
  return {
    id: endpoint.id,
    url: endpoint.url,
    events: endpoint.events,
    status: endpoint.status,
    description: endpoint.description,
    created_at: timestampOf(endpoint.createdAt),
    secret,
  };
}

const validateNew = validatorOf(NewWebhookRequest);
const validateUpdate = validatorOf(WebhookUpdateRequest);
