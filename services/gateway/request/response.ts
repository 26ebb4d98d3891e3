import type { ApiVersion } from "../../../shared/domain/version.ts";
import type { RateStanding } from "../rate/standing.ts";
import { rateHeaders } from "../rate/standing.ts";
import type { RouteMatch } from "../routes/route-table.ts";
import type { ReadyAnswer } from "./answer.ts";

/** What the headers of an answer tell of its request. */
export interface Known {
  requestId: string;
  /** Null where the answer names no version. */
  version: ApiVersion | null;
  /** Null until the rate limiter has answered. */
  rate: RateStanding | null;
  match: RouteMatch;
}

export function respond(answer: ReadyAnswer, { requestId, version, rate, match }: Known): Response {
  const headers: Record<string, string> = {
    "Content-Type": "application/json",
    "Request-Id": requestId,
    ...(rate === null ? {} : rateHeaders(rate)),
    ...answer.headers,
  };
  if (version !== null) headers["Service-Version"] = version;
  if (answer.status === 405 && match !== "nothing") headers.Allow = match.allow;
  return new Response(answer.large?.stream ?? answer.text, { status: answer.status, headers });
}
