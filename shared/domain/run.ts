import { parseRetryAfterMs, type Random, type RetryPolicy, retryDelayMs } from "./backoff.ts";
import { idTimeMs } from "./ids.ts";

/** The outcome of one attempt, and the effect of that outcome on the job. */

export const RUN_STATUSES = ["running", "succeeded", "failed", "timed_out"] as const;
export type RunStatus = (typeof RUN_STATUSES)[number];

/** How much of a target's answer is read before the attempt ends. */
export const RESPONSE_BODY_BYTES_MAX = 65_536;
export const ERROR_BYTES_MAX = 4_096;

/** A run that started more than this earlier or later than its id tells is noted, so that lists by time find it. */
export const START_SHIFT_MS = 5_000;

/** Whether a run started when its id tells, as nearly all do. `startedAt` is in milliseconds since 1970. */
export function startedInTime(runId: string, startedAt: number): boolean {
  return Math.abs(startedAt - idTimeMs(runId)) <= START_SHIFT_MS;
}

export type Outcome =
  | { kind: "succeeded"; responseStatus: number; error: null }
  | {
      kind: "failed" | "timed_out";
      /** Null if no response was received. */
      responseStatus: number | null;
      error: string;
      retry: "backoff" | "at_once" | "never";
      /** The wait that the target asked for; null if it asked for none. */
      retryAfterMs: number | null;
    };

/** An attempt that has ended, and what its job allows. */
export interface FinishedAttempt {
  /** Counts from 1. */
  number: number;
  attemptsAllowed: number;
  retryPolicy: RetryPolicy;
}

export type NextOfJob =
  | { status: "succeeded" }
  | { status: "failed" }
  /** The next attempt is due `waitMs` milliseconds after this one ended. */
  | { status: "queued"; waitMs: number };

/**
 * Decides what a finished attempt does to its job. The statement that settles the attempt (store/queue/settle.ts) sees
 * whether the job was canceled meanwhile; then no attempt follows. It also makes the event of a job that is over.
 */
export function settleAttempt(attempt: FinishedAttempt, outcome: Outcome, random: Random): NextOfJob {
  if (outcome.kind === "succeeded") return { status: "succeeded" };
  if (attempt.number >= attempt.attemptsAllowed || outcome.retry === "never") return { status: "failed" };
  // An attempt that the service itself broke off says nothing about the target: there is nothing to back off from.
  if (outcome.retry === "at_once") return { status: "queued", waitMs: 0 };
  const waitMs = retryDelayMs(attempt.retryPolicy, attempt.number, outcome.retryAfterMs, random);
  return { status: "queued", waitMs };
}

/** How the HTTP exchange of an attempt ended. */
export type Exchange =
  | {
      kind: "answered";
      status: number;
      headers: AnswerHeaders;
      /** The beginning of the body, long enough for the text of a run's error. */
      body: Uint8Array;
      /** How much of the body was read, at most RESPONSE_BODY_BYTES_MAX. */
      bodyBytes: number;
      /** `enough`: the most that is ever read was read. `stalled`: the deadline came before the end. */
      bodyEnd: "complete" | "enough" | "broken" | "stalled";
    }
  /**
   * No answer of HTTP came: the name, the connection or TLS failed, or the address may not be dialled. `hasAnswered`: the target
   * sent something else, or the beginning of an answer's head.
   */
  | { kind: "faulted"; message: string; hasAnswered?: true }
  | { kind: "stalled" }
  /** Nothing was sent: the deadline had come before, or there was no secret to sign with. */
  | { kind: "unsent"; because: "late" | "unsigned" }
  /** The request went out on a kept connection, which the target closed without a byte of an answer. */
  | { kind: "unknown" };

/** The headers of a target's answer that the service reads; null where they are absent. */
export interface AnswerHeaders {
  location: string | null;
  retryAfter: string | null;
  serviceNoRetry: string | null;
  contentEncoding: string | null;
}

/** Decides what an attempt came to. `attemptTimeoutMs` is only named in the text of the error. */
export function judgeResponse(exchange: Exchange, now: number, attemptTimeoutMs: number): Outcome {
  const timeLimit = `the limit of ${attemptTimeoutMs / 1_000} seconds`;
  switch (exchange.kind) {
    case "faulted":
      return failure("failed", null, errorText(exchange.message));
    case "stalled":
      return failure("timed_out", null, `The target did not answer within ${timeLimit}.`);
    case "unsent":
      return exchange.because === "late"
        ? failure("timed_out", null, TIME_OVER_ERROR)
        : failure("failed", null, UNSIGNED_ERROR);
    case "unknown":
      return unknownOutcome();
    case "answered":
      return judgeAnswer(exchange, now, timeLimit);
  }
}

/** The service chose to keep the connection, so its end says nothing about the target. */
function unknownOutcome(): Outcome {
  return { ...failure("failed", null, UNKNOWN_ERROR), retry: "at_once" };
}

export const UNKNOWN_ERROR =
  "The target closed a connection that had been kept as this attempt was sent on it: its outcome is unknown.";

export const INTERRUPTED_ERROR = "interrupted by a shutdown";

/** The node shut down before the attempt had ended. */
export function interruptedOutcome(): Outcome {
  return { ...failure("failed", null, INTERRUPTED_ERROR), retry: "at_once" };
}

/** The node that sent the attempt died, so nobody can know what the target did with it. */
export function lostOutcome(): Outcome {
  return { ...failure("failed", null, LOST_ERROR), retry: "at_once" };
}

export const LOST_ERROR = "The node that sent this attempt died before it ended: its outcome is unknown.";

/** The errors of attempts that were not sent: the deadline had come before, or there was no secret to sign with. */
export const TIME_OVER_ERROR = "The time of this attempt was over before anything was sent.";
export const UNSIGNED_ERROR = "The request could not be signed.";

/** The error of a manual retry whose job was canceled before a permit came free. */
export const UNSENT_RUN_ERROR = "canceled before it was sent";

type Unsuccessful = Exclude<Outcome, { kind: "succeeded" }>;
type AnsweredExchange = Extract<Exchange, { kind: "answered" }>;

function failure(kind: Unsuccessful["kind"], responseStatus: number | null, error: string): Unsuccessful {
  return { kind, responseStatus, error, retry: "backoff", retryAfterMs: null };
}

function judgeAnswer(answer: AnsweredExchange, now: number, timeLimit: string): Outcome {
  const { status, headers, bodyEnd } = answer;
  const isGood = status >= 200 && status <= 299;
  if (isGood && (bodyEnd === "complete" || bodyEnd === "enough")) {
    return { kind: "succeeded", responseStatus: status, error: null };
  }
  const kind = bodyEnd === "stalled" ? "timed_out" : "failed";
  const asksToWait = status === 429 || status === 503;
  return {
    kind,
    responseStatus: status,
    error: answerError(answer, isGood, timeLimit),
    retry: headers.serviceNoRetry?.trim().toLowerCase() === "true" ? "never" : "backoff",
    retryAfterMs:
      asksToWait && headers.retryAfter !== null ? parseRetryAfterMs(headers.retryAfter, now) : null,
  };
}

function answerError(answer: AnsweredExchange, isGood: boolean, timeLimit: string): string {
  const { status, headers, body, bodyBytes, bodyEnd } = answer;
  if (bodyEnd === "stalled") {
    return `The target answered ${status}, but its body was not complete within ${timeLimit}.`;
  }
  if (isGood) return `The target answered ${status}, but its body broke off.`;
  if (status >= 300 && status <= 399) {
    return headers.location === null
      ? `The target answered ${status} without a Location. Redirects are not followed.`
      : errorText(
          `The target answered ${status} with Location: ${headers.location} (redirects are not followed)`,
        );
  }
  if (body.length === 0) return `The target answered ${status} with an empty body.`;
  const coding = headers.contentEncoding?.toLowerCase() ?? "";
  // A packed body cannot be read as it is, and the service does not unpack it.
  return coding === "" || coding === "identity"
    ? errorText(body)
    : errorText(`(${coding}, ${bodyBytes} bytes)`);
}

const decoder = new TextDecoder();
const encoder = new TextEncoder();
const scratch = new Uint8Array(ERROR_BYTES_MAX);
/** A byte order mark and the broken sequence at the cut lie within this many bytes. */
const CUT_MARGIN_BYTES = 8;
// Line feeds and tabs are kept. The database cannot store U+0000, and a terminal should not obey the others.
// biome-ignore lint/suspicious/noControlCharactersInRegex: control characters are what this looks for.
const CONTROL_CHARACTERS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g;

/** The text of a run's `error`: well-formed, without control characters, at most ERROR_BYTES_MAX bytes of UTF-8. */
export function errorText(source: Uint8Array | string): string {
  const text =
    typeof source === "string"
      ? source.slice(0, ERROR_BYTES_MAX + 1).toWellFormed()
      : decoder.decode(source.subarray(0, ERROR_BYTES_MAX + CUT_MARGIN_BYTES));
  const clean = text.replace(CONTROL_CHARACTERS, "\ufffd");
  return clean.slice(0, encoder.encodeInto(clean, scratch).read);
}
