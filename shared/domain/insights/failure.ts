import { INTERRUPTED_ERROR, LOST_ERROR, type RunStatus, UNKNOWN_ERROR, UNSENT_RUN_ERROR } from "../run.ts";

/** Why a run did not succeed, as a word: `status_503` and its like, or one of these. */
export const FAILURE_WORDS = ["timed_out", "no_connection", "tls", "broken_body", "other"] as const;
export type FailureKind = (typeof FAILURE_WORDS)[number] | `status_${number}`;

/** A run that has ended without success. `error` is its text. */
export interface FailedRun {
  status: Exclude<RunStatus, "running" | "succeeded">;
  responseStatus: number | null;
  error: string | null;
}

export function failureKindOf({ status, responseStatus, error }: FailedRun): FailureKind {
  if (status === "timed_out") return "timed_out";
  if (responseStatus !== null) {
    return responseStatus >= 200 && responseStatus <= 299 ? "broken_body" : `status_${responseStatus}`;
  }
  if (error === null || OURS.has(error)) return "other";
  if (TLS_CODE.test(error) || TLS.test(error)) return "tls";
  return NO_CONNECTION.test(error) ? "no_connection" : "other";
}

/** Errors that the service itself gave a run say nothing of the target. */
const OURS: ReadonlySet<string> = new Set([INTERRUPTED_ERROR, LOST_ERROR, UNKNOWN_ERROR, UNSENT_RUN_ERROR]);
/** A text may end with a code. Only the codes of TLS have an underscore (delivery/http/explain.ts). */
const TLS_CODE = /\([A-Z0-9]+(?:_[A-Z0-9]+)+\)$/;
/** Texts of delivery/http/reach.ts for a handshake that failed without a code. */
const TLS =
  /^The target(?: closed the connection in the TLS handshake|'s certificate could not be verified)\.$/;
/** Texts of dial.ts, client.ts, connection.ts and explain.ts. delivery/failure-texts.test.ts holds every text against its kind. */
const NO_CONNECTION =
  /^(?:The name .* (?:could not be resolved|has no address)|The target may not be dialled|No connection to the target|The connection failed|The target (?:refused|reset) the connection|The target closed the connection without an answer|The target did not take the connection|The target's (?:host|network) cannot be reached)/;
