import type { UnsealReason } from "../seal.ts";

/** A request as any server received it. */
export interface Incoming {
  method: string;
  /** A whole URL, or a path with its query. */
  url: string;
  /** A `Headers`, or what Node's http calls `request.headers`. */
  headers: Headers | Readonly<Record<string, string | readonly string[] | undefined>>;
  /** The raw body, before anything has parsed it. */
  body: Uint8Array | AsyncIterable<Uint8Array>;
}

/** The answer to an incoming request. */
export interface Reply {
  status: number;
  headers: Record<string, string>;
  text: string;
}

/**
 * `method`: no POST. `too_large`: more than any request of the service. `signature`: not signed by the service, or outdated.
 * `unreadable`: signed, and no request of the service. `unexpected`: no handler is given for its kind. `replay`: this very
 * attempt was here before. `late`: a later attempt of its job was here before. The others are about sealed payloads.
 */
export type RefusalReason =
  | ("method" | "too_large" | "signature" | "unreadable" | "unexpected" | "replay" | "late")
  | UnsealReason;

/** A request that was not handled. */
export class RefusedRequest extends Error {
  override name = "RefusedRequest";
  readonly reason: RefusalReason;
  readonly status: number;

  constructor(reason: RefusalReason, status: number, message: string) {
    super(message);
    this.reason = reason;
    this.status = status;
  }
}

/**
 * Thrown by a handler: this attempt has failed, and the next one comes no earlier than `after` (seconds from now, or an
 * instant), yet at the latest when the job's `cap_seconds` are over. The message becomes the `error` of the run. Deliveries
 * of events keep their own times.
 */
export class RetryLater extends Error {
  override name = "RetryLater";
  readonly after: number | Date | null;

  constructor(message = "Try again later.", { after }: { after?: number | Date } = {}) {
    super(message);
    this.after = after ?? null;
  }
}

/**
 * Thrown by a handler: no other attempt follows, and the job has failed at once. The message becomes the `error` of the run.
 * For an event, it ends the delivery.
 */
export class NoRetry extends Error {
  override name = "NoRetry";
}

/** The answer to a request whose handler has thrown. Only RetryLater and NoRetry tell the service their text. */
export function answerError(error: unknown, kind: "attempt" | "event"): Reply {
  if (error instanceof NoRetry) {
    if (kind === "event") return textReply(410, error.message);
    return { ...textReply(422, error.message), headers: { ...TEXT, "service-no-retry": "true" } };
  }
  if (!(error instanceof RetryLater)) return textReply(500, "The handler has failed.");
  const { after, message } = error;
  const told = after instanceof Date ? after.toUTCString() : String(Math.max(0, Math.ceil(after ?? 0)));
  return { ...textReply(503, message), headers: after === null ? TEXT : { ...TEXT, "retry-after": told } };
}

export function textReply(status: number, text: string): Reply {
  return { status, headers: TEXT, text };
}

const TEXT = { "content-type": "text/plain; charset=utf-8" };
