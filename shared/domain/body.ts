import { ApiError } from "./errors.ts";

/** How long the body of a request may take to arrive: so long, and one second more for so many bytes. */
export const RECEIVE_MS = 30_000;
/** At 1 Mbit/s the largest batch arrives in time. */
export const BYTES_PER_SECOND_MIN = 131_072;

/** `receiveMs` is RECEIVE_MS, unless a test is about something else. */
export function bodyTooSlow(receiveMs: number): ApiError {
  return new ApiError(
    "request_timeout",
    `The body was not complete in time: ${receiveMs / 1_000} seconds, and one more for each ${BYTES_PER_SECOND_MIN} bytes.`,
  );
}
