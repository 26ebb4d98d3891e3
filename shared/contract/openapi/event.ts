import { Type } from "@sinclair/typebox";
import { DELIVERY_WAITS_SECONDS, DELIVERY_WINDOW_HOURS } from "../../domain/delivery.ts";
import { EVENT_TYPES, type EventType } from "../../domain/webhook.ts";
import { Event, EventId } from "../event.ts";
import { sampleFacts, sampleRun } from "../event-sample.ts";
import { eventText } from "../event-text.ts";
import type { Json, Schemas } from "./schemas.ts";
import {
  describeSentHeaders,
  SERVICE_ENVIRONMENT,
  type SentHeader,
  signatureHeaders,
  TRACEPARENT,
  USER_AGENT,
} from "./sent-headers.ts";

const HEADERS: SentHeader[] = [
  USER_AGENT,
  SERVICE_ENVIRONMENT,
  {
    name: "Service-Webhook-Test",
    description: "On a requested sample event: what it tells of does not exist.",
    schema: Type.Literal("true"),
    optional: true,
  },
  TRACEPARENT,
  ...signatureHeaders("endpoint", {
    description: "Standard Webhooks: the event's id, the same on every attempt and to every endpoint.",
    schema: EventId,
  }),
];

export const ENDPOINTS_TAG = {
  name: "Endpoints",
  description: "What the service sends to webhook endpoints.",
};

/** The request that an endpoint receives, and the meaning of its answers. */
export function describeEvent(schemas: Schemas): Json {
  const examples = EVENT_TYPES.map((type) => [type, { value: JSON.parse(exampleText(type)) }]);
  return {
    operationId: "receiveEvent",
    tags: [ENDPOINTS_TAG.name],
    summary: "What happened that an endpoint hears of",
    description:
      "The service sends the event to the endpoints that subscribe to it, to each at least once: an endpoint that must not act " +
      "twice recognizes it by `webhook-id`. The answer is awaited for 15 seconds. A failed delivery is sent again for " +
      `${DELIVERY_WINDOW_HOURS} hours: after ${WAITS}, give or take a tenth, and a last time. Redirects are never ` +
      "followed. The endpoints of an environment in one region share their turns, so one that stalls delays the others by up to " +
      "15 seconds for each request that waits for it.",
    security: [],
    parameters: describeSentHeaders(HEADERS, schemas),
    requestBody: {
      description: "The same bytes on every attempt and to every endpoint.",
      required: true,
      content: {
        "application/json": { schema: schemas.refer(Event), examples: Object.fromEntries(examples) },
      },
    },
    responses: {
      "2XX": { description: "Delivered, also where its body stalls or breaks off." },
      "410": { description: "Failed, and not sent again." },
      default: {
        description:
          "Failed, and sent again. An attempt that failed by a fault of the service, or on a kept connection that was closed " +
          "without a byte of an answer, does not count against the endpoint.",
      },
    },
  };
}

const [second, third, fourth, ...later] = DELIVERY_WAITS_SECONDS;
const hours = later.map((seconds) => seconds / 3_600);
const WAITS = `${second} seconds, ${third / 60} minutes, ${fourth / 60} minutes, ${hours.slice(0, -1).join(", ")} and ${hours.at(-1)} hours`;

function exampleText(type: EventType): string {
  const run = sampleRun(type);
  const facts = sampleFacts({
    id: "evt_01m7ybr3vq81qbcnqxb2xa9jzd",
    type,
    occurredAt: Date.UTC(2026, 10, 21, 6, 12, 25, 618),
    apiVersion: "2026-11-01",
    projectId: "prj_01m7ybr1f6vn9s8d2w4k0x5t3q",
    environment: "production",
    region: "us-east",
    run: run && { ...run, startedAt: Date.UTC(2026, 10, 21, 6, 12, 25, 498) },
  });
  return eventText(facts);
}
