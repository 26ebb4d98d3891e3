import { type TSchema, Type } from "@sinclair/typebox";
import { ENVIRONMENTS } from "../../domain/scope.ts";
import { wordOf } from "../validator.ts";
import type { Json, Schemas } from "./schemas.ts";

/** A header of the requests that the service sends. `optional` marks one that only some of them have. */
export interface SentHeader {
  name: string;
  description: string;
  schema: TSchema;
  optional?: true;
}

const hexOfBytes = (count: number) => `[0-9a-f]{${2 * count}}`;

export const USER_AGENT: SentHeader = {
  name: "User-Agent",
  description: "Identifies the service.",
  schema: Type.String(),
};

export const SERVICE_ENVIRONMENT: SentHeader = {
  name: "Service-Environment",
  description: "The environment of the job.",
  schema: wordOf(ENVIRONMENTS, "An environment of a project."),
};

export const TRACEPARENT: SentHeader = {
  name: "traceparent",
  description:
    "W3C Trace Context: of the trace in which the job was asked for, if the request named one. Else all attempts and " +
    "events of a job share a trace, whose id has the 128 bits of the job's.",
  schema: Type.String({ pattern: `^00-${hexOfBytes(16)}-${hexOfBytes(8)}-${hexOfBytes(1)}$` }),
};

/** `owner` names whose secret signs the request, and `id` describes what its `webhook-id` holds. */
export function signatureHeaders(owner: string, id: { description: string; schema: TSchema }): SentHeader[] {
  return [
    {
      name: "Service-Signature",
      description: `HMAC-SHA256 of the raw body in lower-case hexadecimal, keyed with the whole signing secret of the ${owner}.`,
      schema: Type.String({ pattern: `^${hexOfBytes(32)}$` }),
    },
    { name: "webhook-id", ...id },
    {
      name: "webhook-timestamp",
      description: "Standard Webhooks: when it was sent, in seconds since 1970.",
      schema: Type.Integer({ minimum: 0 }),
    },
    {
      name: "webhook-signature",
      description: "Standard Webhooks: one signature for each secret in force, with blanks between.",
      schema: Type.String({ pattern: "^v1,[A-Za-z0-9+/]{43}=( v1,[A-Za-z0-9+/]{43}=)*$" }),
    },
  ];
}

export function describeSentHeaders(headers: readonly SentHeader[], schemas: Schemas): Json[] {
  return headers.map(({ name, description, schema, optional }) => ({
    name,
    in: "header",
    required: optional !== true,
    description,
    schema: schemas.refer(schema),
  }));
}
