import type { ApiVersion } from "../../../shared/domain/version.ts";
import { type RateStanding, setRateHeaders } from "../rate/standing.ts";

/** The answer of a route. */
export interface ApiAnswer {
  status: number;
  /** JSON, in parts where it can be so large that joining them would take long. */
  text: string | readonly string[];
  headers?: Record<string, string>;
}

/** An answer in the form in which it is sent. */
export interface ReadyAnswer extends ApiAnswer {
  text: string;
  /** Sent instead of the text, which is empty then. */
  large?: LargeAnswer;
}

/**
 * A large answer is sent piece by piece, as its client takes it. If the server had the whole answer, a client that
 * never reads would keep it in memory unnoticed, for as long as the client likes. The answer waits as bytes, because
 * text can take twice as many.
 */
export interface LargeAnswer {
  byteCount: number;
  stream: ReadableStream<Uint8Array>;
  /** Resolves when the client has taken all of it, or will be given no more. */
  taken: Promise<void>;
  /** Gives up an answer that nobody will take. */
  drop(): void;
}

/** The facts of a request that the headers of its answer tell. */
export interface Known {
  requestId: string;
  /** Null where the answer names no version. */
  version: ApiVersion | null;
  /** Null until the rate limiter has answered. */
  rate: RateStanding | null;
  /** The methods that the path takes; null for an unknown path. */
  allow: string | null;
}

export function respond(answer: ReadyAnswer, { requestId, version, rate, allow }: Known): Response {
  const headers: Record<string, string> = {
    "Content-Type": "application/json",
    "Request-Id": requestId,
  };
  if (rate !== null) setRateHeaders(headers, rate);
  Object.assign(headers, answer.headers);
  if (version !== null) headers["Service-Version"] = version;
  if (answer.status === 405 && allow !== null) headers.Allow = allow;
  return new Response(answer.large?.stream ?? answer.text, { status: answer.status, headers });
}
