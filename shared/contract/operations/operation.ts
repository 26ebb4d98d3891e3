import { type TObject, type TSchema, Type } from "@sinclair/typebox";
import { type ErrorCode, STATUS_OF_CODE } from "../../domain/errors.ts";
import { type Access, isPermitted, KEY_SCOPES, type Resource } from "../../domain/key.ts";
import type { ErrorView } from "../error.ts";

/** One method of one path. The gateway serves it, and the published document describes it. */
export interface Operation {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** At most two parameters, in braces. */
  path: string;
  /** The schema of the path's parameter; null where the path has none. */
  id: TSchema | null;
  /** The schema of the path's second parameter, the id of something that belongs to the first. */
  innerId?: TSchema;
  resource: Resource;
  /** The access that a key needs, where the method does not tell it (`accessOf`). */
  access?: Access;
  summary: string;
  description: string;
  query: TObject;
  body: (Content & { isOptional?: true }) | null;
  /** The status of every answer that is no refusal. */
  status: 200 | 201;
  /** True for a PUT that may create something, and then answers 201. */
  mayCreate?: true;
  response: Content;
  /** The codes that do not follow from the other members; `errorCodesOf` adds the codes that do. */
  codes: readonly ErrorCode[];
  /** The attempts and events that result from the operation join the trace of its request. */
  isTraced?: true;
  /** The example of an invalid_request that has more members than in other operations. */
  invalidExample?: ErrorView;
}

export interface Content {
  schema: TSchema;
  /** The examples by name. */
  examples: Readonly<Record<string, unknown>>;
}

/** The members that most operations have in common. */
const USUAL = { id: null, query: Type.Object({}), body: null, status: 200, codes: [] } as const;

type Given = Omit<Operation, keyof typeof USUAL> & Partial<Operation>;

/** An operation with the members given, and the usual ones in place of those left out. */
export function operation<const Own extends Given>(own: Own): Omit<typeof USUAL, keyof Own> & Own {
  return { ...USUAL, ...own };
}

const EVERYWHERE = [
  "invalid_request",
  "unauthorized",
  "method_not_allowed",
  "rate_limit_exceeded",
  "internal_error",
  "service_unavailable",
] as const satisfies ErrorCode[];

/** The access that a key needs for the operation. */
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
  // Requests with the same key are compared by their bodies, so those without a body cannot conflict.
  if (method === "POST" && body !== null) found.add("idempotency_conflict");
  return (Object.keys(STATUS_OF_CODE) as ErrorCode[]).filter((code) => found.has(code));
}
