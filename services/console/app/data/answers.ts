import { signal } from "@preact/signals";
import { type RateLimit, rateLimitOf } from "../../../../shared/client/answer.ts";
import type { Fetch } from "../../../../shared/client/one-try.ts";

/** The facts that answers tell beside their bodies: the requests that are left, and whether the service is there. */

/** The request rate of the environment as the last answer told it. */
export const rateLimit = signal<RateLimit | null>(null);
/** When the requests that are left become more, by `performance.now()`. */
let windowEndsAt = 0;

/** Why the service cannot answer at the moment: Postgres is gone, or the gateway itself. Null while all is well. */
export const outage = signal<"store" | "gateway" | null>(null);
/** Counts the ends of outages. Views that failed meanwhile load again. */
export const recoveries = signal(0);

/** A `fetch` that notes each answer. `onStatus` is told the status, before the caller has the answer. */
export function watchAnswers(onStatus: (status: number) => void): Fetch {
  return async (url, init) => {
    let response: Response;
    try {
      response = await fetch(url, init);
    } catch (error) {
      // A request that the page itself has given up says nothing of the gateway.
      if (!init.signal?.aborted) outage.value = "gateway";
      throw error;
    }
    const { status, headers } = response;
    const rate = rateLimitOf(headers);
    if (rate !== null) {
      rateLimit.value = rate;
      windowEndsAt = performance.now() + rate.resetSeconds * 1_000;
    }
    if (status >= 502 && status <= 504) outage.value = headers.has("Request-Id") ? "store" : "gateway";
    else if (outage.value !== null) {
      outage.value = null;
      recoveries.value++;
    }
    onStatus(status);
    return response;
  };
}

/** The most of the request rate that a page's refreshing uses, and the share that it leaves to others. */
const SHARE_OF_RATE = 0.1;
const SHARE_LEFT = 0.25;
const REFRESH_MS_MIN = 4_000;
const MINUTE_MS = 60_000;

/** The requests of one round, over all parts of the page that keep themselves up to date. */
let requestsOfRound = 0;

/** Adds so many requests to each round, until the returned function is called. */
export function joinRounds(requests: number): () => void {
  requestsOfRound += requests;
  return () => {
    requestsOfRound -= requests;
  };
}

/** How long each part of the page waits until it asks again. */
export function refreshMs(): number {
  const limit = rateLimit.value?.limit ?? MINUTE_MS / REFRESH_MS_MIN;
  return Math.max(REFRESH_MS_MIN, (requestsOfRound * MINUTE_MS) / (limit * SHARE_OF_RATE));
}

/** Whether a view may ask again now: the page is visible, the service is there, and enough requests are left. */
export function mayRefresh(): boolean {
  if (document.hidden || outage.value !== null) return false;
  const rate = rateLimit.value;
  return rate === null || performance.now() >= windowEndsAt || rate.remaining >= rate.limit * SHARE_LEFT;
}
