import { createHash } from "node:crypto";
import { ApiError, invalidRequest } from "./errors.ts";
import type { Scope } from "./scope.ts";

/** Requests are one and the same if they have one operation and one Idempotency-Key, in one environment of a project. */

/**
 * How long a key belongs to its first request. The statements that take a key apply it (ON_CONFLICT_TAKE_KEY and takeKeyFrom,
 * store/resources/idempotency.ts).
 */
export const KEY_LIFE_HOURS = 24;

/** A comma before a blank is refused: servers and proxies join a header that was sent twice like that. */
const KEY_PATTERN = /^(?!.*, )[\x20-\x7e]{1,255}$/;

/** The request's key; null if it has none. Throws invalid_request for an Idempotency-Key that cannot be honoured. */
export function readIdempotencyKey(header: string | null): string | null {
  if (header === null || KEY_PATTERN.test(header)) return header;
  throw invalidRequest(
    "Idempotency-Key must be given once: 1 to 255 printable ASCII characters, no comma before a blank among them.",
    "Idempotency-Key",
  );
}

/**
 * The SHA-256 under which a key is kept. `operation` is method and path, in the one spelling that all requests of the
 * operation have.
 */
export function keyDigest({ projectNo, environment }: Scope, operation: string, key: string): Buffer {
  const name = JSON.stringify([projectNo, environment, operation, key]);
  return createHash("sha256").update(name).digest();
}

/** Throws idempotency_conflict unless two requests with one key have the same body, by the hashes of its JSON value. */
export function checkSameBody(requestHash: Buffer, firstHash: Buffer): void {
  if (requestHash.equals(firstHash)) return;
  throw new ApiError("idempotency_conflict", KEY_CONFLICT, "Idempotency-Key");
}

export const KEY_CONFLICT = `This Idempotency-Key was used within ${KEY_LIFE_HOURS} hours for a request with another body.`;
