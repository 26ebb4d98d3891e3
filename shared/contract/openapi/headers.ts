import { Type } from "@sinclair/typebox";
import { REQUEST_PREFIX } from "../../domain/ids.ts";
import { RATE_WAIT_SECONDS_MAX } from "../../domain/plan.ts";
import { API_VERSIONS } from "../../domain/version.ts";
import { idOf } from "../id.ts";
import { wordOf } from "../validator.ts";
import type { Json, Schemas } from "./schemas.ts";

const wholeNumber = Type.Integer({ minimum: 0 });

/** The headers of answers, each by the name of its component. */
const HEADERS = {
  RequestId: {
    name: "Request-Id",
    description: "Names this request. The operators of the service find it in their records by this id.",
    schema: idOf(REQUEST_PREFIX, "The id of a request."),
  },
  ServiceVersion: {
    name: "Service-Version",
    description: "The API version that was used.",
    schema: wordOf(API_VERSIONS, "A version of the API."),
  },
  RateLimitLimit: {
    name: "RateLimit-Limit",
    description: "Requests allowed per minute.",
    schema: wholeNumber,
  },
  RateLimitRemaining: {
    name: "RateLimit-Remaining",
    description: "Requests left in the window.",
    schema: wholeNumber,
  },
  RateLimitReset: {
    name: "RateLimit-Reset",
    description: `Seconds until the window has fully replenished, at most ${RATE_WAIT_SECONDS_MAX}.`,
    schema: wholeNumber,
  },
  RetryAfter: {
    name: "Retry-After",
    description: "Seconds to wait. Only answers of status 429 have it.",
    schema: Type.Integer({ minimum: 1 }),
  },
  IdempotentReplayed: {
    name: "Idempotent-Replayed",
    description: "Present where this is the first answer to the request's Idempotency-Key once more.",
    schema: Type.Literal("true"),
  },
  WwwAuthenticate: {
    name: "WWW-Authenticate",
    description: "How to authenticate.",
    schema: Type.Literal("Bearer"),
  },
  Allow: {
    name: "Allow",
    description: "The methods that the path takes.",
    schema: Type.String({ examples: ["GET, HEAD, POST"] }),
  },
};

type HeaderName = keyof typeof HEADERS;
const RATE: HeaderName[] = ["RateLimitLimit", "RateLimitRemaining", "RateLimitReset"];

/** The headers of an answer of this status. `mayBeReplayed` adds that of a repeated first answer to an Idempotency-Key. */
export function headersOf(status: number, schemas: Schemas, mayBeReplayed = false): Json {
  const names: HeaderName[] = ["RequestId", "ServiceVersion"];
  // Without a valid key the project is unknown, and so is its rate.
  if (status < 500 && status !== 401) names.push(...RATE);
  if (status === 401) names.push("WwwAuthenticate");
  if (status === 405) names.push("Allow");
  if (status === 429) names.push("RetryAfter");
  const optional: HeaderName[] = [];
  // A fault can happen before the rate is known.
  if (status >= 500) optional.push(...RATE);
  if (mayBeReplayed) optional.push("IdempotentReplayed");
  return Object.fromEntries([
    ...names.map((name) => [HEADERS[name].name, { $ref: `#/components/headers/${name}` }]),
    ...optional.map((name) => [HEADERS[name].name, describe(name, false, schemas)]),
  ]);
}

/** The headers that all answers of some status have. */
export function headerComponents(schemas: Schemas): Json {
  const names = Object.keys(HEADERS).filter((name) => name !== "IdempotentReplayed") as HeaderName[];
  return Object.fromEntries(names.map((name) => [name, describe(name, true, schemas)]));
}

function describe(name: HeaderName, required: boolean, schemas: Schemas): Json {
  const { description, schema } = HEADERS[name];
  return { description, required, schema: schemas.refer(schema) };
}
