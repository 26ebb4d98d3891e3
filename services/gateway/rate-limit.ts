import { ApiError } from "../../shared/domain/errors.ts";
import { limitsOf } from "../../shared/domain/plan.ts";
import type { Database } from "../../shared/store/database.ts";
import type { Caller } from "../../shared/store/keys.ts";
import { type RateQuestion, takeRequests } from "../../shared/store/request-rate.ts";

/** Where one request leaves its environment's request rate; the headers tell it. */
export interface RateStanding {
  limit: number;
  remaining: number;
  resetMs: number;
  /** Null if the request is accepted. */
  retryAfterMs: number | null;
}

export interface RateLimiter {
  /**
   * Takes one request from the caller's rate, or finds that nothing is left. `crowd` is how many requests the gateway
   * has in progress, this one included.
   */
  take(caller: Caller, crowd: number): Promise<RateStanding>;
}

/** More than these only wait for their answer elsewhere. */
const REQUESTS_PER_STATEMENT_MAX = 1_000;

/**
 * A statement costs as much as a request, so it waits until this part of the crowd shares it: one part waits for it while
 * the others are served. Who comes alone waits for nobody.
 */
const CROWD_PARTS = 3;
/** The crowd may be slow to come: bodies that take long to arrive belong to it too. */
const PATIENCE_MS = 4;

export function createRateLimiter(db: Database): RateLimiter {
  let waiting: Waiting[] = [];
  let crowd = 1;
  let isAsking = false;
  let isStarting = false;
  let patience: ReturnType<typeof setTimeout> | undefined;

  function consider(): void {
    if (isAsking || isStarting || waiting.length === 0) return;
    if (waiting.length >= Math.min(crowd / CROWD_PARTS, REQUESTS_PER_STATEMENT_MAX)) {
      isStarting = true;
      // Not at once: all that this turn of the event loop reads from its sockets fits into the same statement.
      setImmediate(ask);
    } else {
      patience ??= setTimeout(ask, PATIENCE_MS);
    }
  }

  async function ask(): Promise<void> {
    clearTimeout(patience);
    patience = undefined;
    isStarting = false;
    if (isAsking) return;
    isAsking = true;
    const members = waiting.slice(0, REQUESTS_PER_STATEMENT_MAX);
    waiting = waiting.slice(members.length);
    await takeTogether(
      db,
      members.map(({ request }) => request),
    ).then(
      (standings) => {
        for (const [index, { resolve }] of members.entries()) resolve(standings[index] as RateStanding);
      },
      (error: unknown) => {
        for (const { reject } of members) reject(error);
      },
    );
    isAsking = false;
    consider();
  }

  return {
    take({ project, environment }, crowdNow) {
      const { promise, resolve, reject } = Promise.withResolvers<RateStanding>();
      const limit = limitsOf(project).requestsPerMinute;
      waiting.push({
        request: { projectNo: project.no, environment, requestCount: 1, limit },
        resolve,
        reject,
      });
      crowd = crowdNow;
      consider();
      return promise;
    },
  };
}

interface Waiting {
  request: RateQuestion;
  resolve(standing: RateStanding): void;
  reject(error: unknown): void;
}

/** Asks once for each environment; its requests are served in the order in which they came. */
async function takeTogether(db: Database, requests: readonly RateQuestion[]): Promise<RateStanding[]> {
  const questions = new Map<string, RateQuestion>();
  const places = requests.map((request) => {
    const name = `${request.projectNo}/${request.environment}`;
    const question = questions.get(name);
    if (question === undefined) {
      questions.set(name, { ...request });
      return { name, place: 0 };
    }
    // Callers of one environment can know different limits for the seconds that a change takes to spread.
    question.limit = Math.min(question.limit, request.limit);
    return { name, place: question.requestCount++ };
  });
  const answers = await takeRequests(db, [...questions.values()]);
  const byName = new Map(
    [...questions].map(([name, { limit }], index) => [name, { limit, answer: answers[index] }]),
  );
  return places.map(({ name, place }) => {
    const { limit, answer } = byName.get(name) ?? {};
    if (limit === undefined || answer === undefined) throw new Error("a question about a rate has no answer");
    const { acceptedCount, remaining, resetMs, retryAfterMs } = answer;
    if (place >= acceptedCount) return { limit, remaining, resetMs, retryAfterMs };
    return { limit, remaining: remaining + acceptedCount - 1 - place, resetMs, retryAfterMs: null };
  });
}

export function rateLimitExceeded(): ApiError {
  return new ApiError(
    "rate_limit_exceeded",
    "The environment's requests of this minute are used up. Nothing was done, so it is safe to try again.",
  );
}

/** `Retry-After` belongs to the refusal alone. Seconds are rounded up: whoever waits that long is not too early. */
export function rateHeaders(standing: RateStanding): Record<string, string> {
  const { limit, remaining, resetMs, retryAfterMs } = standing;
  return {
    "RateLimit-Limit": String(limit),
    "RateLimit-Remaining": String(remaining),
    "RateLimit-Reset": String(wholeSeconds(resetMs)),
    ...(retryAfterMs === null ? {} : { "Retry-After": String(Math.max(1, wholeSeconds(retryAfterMs))) }),
  };
}

function wholeSeconds(ms: number): number {
  return Math.ceil(ms / 1_000);
}
