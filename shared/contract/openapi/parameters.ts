import { type TSchema, Type } from "@sinclair/typebox";
import { KEY_LIFE_HOURS } from "../../domain/idempotency.ts";
import { API_VERSIONS } from "../../domain/version.ts";
import type { Operation } from "../operations/operation.ts";
import { wordOf } from "../validator.ts";
import type { Json, Schemas } from "./schemas.ts";

/** The request headers that several operations take, each by the name of its component. */
const HEADERS = {
  ServiceVersion: {
    name: "Service-Version",
    description: "The API version to use instead of the one that the project is pinned to.",
    schema: wordOf(API_VERSIONS, "A version of the API."),
  },
  IdempotencyKey: {
    name: "Idempotency-Key",
    description:
      `Makes it safe to send the request again: for ${KEY_LIFE_HOURS} hours the same request with the same key has the first answer once ` +
      "more. A refused request leaves the key free. A comma before a blank is refused, since a header that is sent twice " +
      "reads like that.",
    schema: Type.String({
      minLength: 1,
      maxLength: 255,
      pattern: "^(?!.*, )[\\x20-\\x7e]+$",
      examples: ["b5b2e0a4-invoice-4711"],
    }),
  },
  Traceparent: {
    name: "traceparent",
    description:
      "W3C Trace Context: what is sent to targets and webhook endpoints because of this request has a `traceparent` of the " +
      "same trace, with the same sampled flag. One that is malformed is ignored; `tracestate` is not passed on.",
    schema: Type.String({ examples: ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"] }),
  },
};

export function parametersOf(
  { method, path, id, innerId, query, isTraced }: Operation,
  schemas: Schemas,
): Json[] {
  const headers = method === "POST" ? ["IdempotencyKey", "ServiceVersion"] : ["ServiceVersion"];
  if (isTraced) headers.push("Traceparent");
  return [
    ...[id, innerId].flatMap((schema, index) =>
      schema ? [describe("path", namesIn(path)[index] ?? "", schema, schemas)] : [],
    ),
    ...Object.entries(query.properties).map(([name, schema]) => describe("query", name, schema, schemas)),
    ...headers.map((name) => ({ $ref: `#/components/parameters/${name}` })),
  ];
}

export function parameterComponents(schemas: Schemas): Json {
  return Object.fromEntries(
    Object.entries(HEADERS).map(([component, { name, description, schema }]) => [
      component,
      { name, in: "header", required: false, description, schema: schemas.refer(schema) },
    ]),
  );
}

function describe(place: "path" | "query", name: string, schema: TSchema, schemas: Schemas): Json {
  const { description } = schema;
  return { name, in: place, required: place === "path", description, schema: schemas.refer(schema) };
}

/** The names within braces. */
function namesIn(path: string): string[] {
  return [...path.matchAll(/\{(\w+)\}/g)].map(([, name = ""]) => name);
}
