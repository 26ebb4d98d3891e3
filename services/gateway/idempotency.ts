import { invalidRequest } from "../../shared/domain/errors.ts";

const KEY_PATTERN = /^[\x20-\x7e]{1,255}$/;

/** Throws invalid_request for an Idempotency-Key that could never be honoured; null if the request has none. */
export function checkIdempotencyKey(key: string | null): void {
  if (key === null || KEY_PATTERN.test(key)) return;
  throw invalidRequest("Idempotency-Key must be 1 to 255 printable ASCII characters.", "Idempotency-Key");
}
