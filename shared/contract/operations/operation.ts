import { type TObject, type TSchema, Type } from "@sinclair/typebox";
import { type ErrorCode, STATUS_OF_CODE } from "../../domain/errors.ts";
import { type Access, isPermitted, KEY_SCOPES, type Resource } from "../../domain/key.ts";
import type { ErrorView } from "../error.ts";

/** One method of one path. The gateway finds its routes by it, and the published document describes it. */
export interface Operation {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  /** At most two parameters, in braces. */
  path: string;
  /** What the path's parameter is; null where it has none. */
  id: TSchema | null;
  /** What its second parameter is, of something that belongs to the first. */
  innerId?: TSchema;
  resource: Resource;
  /** What a key's scope must allow, where the method does not tell (`accessOf`). */
  access?: Access;
  summary: string;
  description: string;
  query: TObject;
  body: Content | null;
  /** Of every answer that is not a refusal. */
  status: 200 | 201;
  response: Content;
  /** Those that follow from the rest are not repeated here (`errorCodesOf`). */
  codes: readonly ErrorCode[];
  /** What is sent because of it belongs to the trace of the request. */
  isTraced?: true;
  /** Of an invalid_request that says more than those of other operations do. */
  invalidExample?: ErrorView;
}

export interface Content {
  schema: TSchema;
  /** By name. */
  examples: Readonly<Record<string, unknown>>;
}

export const NO_PARAMETERS = Type.Object({});

const EVERYWHERE = [
  "invalid_request",
  "unauthorized",
  "method_not_allowed",
  "rate_limit_exceeded",
  "internal_error",
  "service_unavailable",
] as const satisfies ErrorCode[];

/** What a key's scope must allow. */
export function accessOf({ method, access }: Operation): Access {
  return access ?? (method === "GET" ? "read" : "write");
}

/** Every code with which the operation can answer, in the order of the table of codes. */
export function errorCodesOf(operation: Operation): ErrorCode[] {
  const { method, id, resource, body, codes } = operation;
  const found = new Set<ErrorCode>([...EVERYWHERE, ...codes]);
  if (!KEY_SCOPES.every((scope) => isPermitted(scope, resource, accessOf(operation))))
    found.add("insufficient_scope");
  if (id !== null) found.add("resource_not_found");
  if (body !== null) found.add("request_timeout").add("payload_too_large").add("unsupported_media_type");
  // Requests with the same key are compared by their bodies: without one there is nothing to differ in.
  if (method === "POST" && body !== null) found.add("idempotency_conflict");
  return (Object.keys(STATUS_OF_CODE) as ErrorCode[]).filter((code) => found.has(code));
}
