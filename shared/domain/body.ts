import { ApiError } from "./errors.ts";
import { PAYLOAD_BYTES_MAX } from "./job.ts";

/** The body of a request may take RECEIVE_MS to arrive, and one second more for each BYTES_PER_SECOND_MIN bytes. */
export const RECEIVE_MS = 30_000;
/** At 1 Mbit/s the largest batch arrives in time. */
export const BYTES_PER_SECOND_MIN = 131_072;
/** A large answer that the client has not taken by then is given up. It is as long as a small body may take to arrive. */
export const TAKE_TIMEOUT_MS = 30_000;

/** `receiveMs` is RECEIVE_MS, except in tests. */
export function bodyTooSlow(receiveMs: number): ApiError {
  return new ApiError(
    "request_timeout",
    `The body was not complete in time: ${receiveMs / 1_000} seconds, and one more for each ${BYTES_PER_SECOND_MIN} bytes.`,
  );
}

export function payloadTooLarge(): ApiError {
  return new ApiError(
    "payload_too_large",
    `payload must have at most ${PAYLOAD_BYTES_MAX} bytes of JSON text, white space between tokens not counted.`,
    "payload",
  );
}
