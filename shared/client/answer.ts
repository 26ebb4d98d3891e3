/** An answer of the API, without its parsed result. */
export interface Answer {
  status: number;
  /** The operators of the service find the request in their records by this id. */
  requestId: string | null;
  /** Null if the service knows no project, as with a wrong key. */
  rateLimit: RateLimit | null;
  /** True if this repeats the answer to an earlier request with the same idempotency key. */
  isReplayed: boolean;
  /** The JSON as it was received. Numbers beyond double precision are exact only here. */
  text: string;
}

/** The request rate of the environment after this request. */
export interface RateLimit {
  limit: number;
  remaining: number;
  resetSeconds: number;
}

export interface Answered<Result> {
  result: Result;
  answer: Answer;
}

/** A request that is under way. Awaiting it gives the result; `withAnswer` gives the rest of the answer, too. */
export interface Call<Result> extends Promise<Result> {
  withAnswer(): Promise<Answered<Result>>;
}

export function callOf<Result>(answered: Promise<Answered<Result>>): Call<Result> {
  const result = answered.then((both) => both.result);
  return Object.assign(result, {
    async withAnswer() {
      // The caller hears of a failure from this promise, so the promise of the result alone need not be awaited.
      result.catch(() => undefined);
      return answered;
    },
  });
}

/** Null unless all three headers are there. */
export function rateLimitOf(headers: Headers): RateLimit | null {
  const limit = countOf(headers, "RateLimit-Limit");
  const remaining = countOf(headers, "RateLimit-Remaining");
  const resetSeconds = countOf(headers, "RateLimit-Reset");
  if (limit === null || remaining === null || resetSeconds === null) return null;
  return { limit, remaining, resetSeconds };
}

/** The whole number in a header; null for anything else, such as the date in a proxy's Retry-After. */
export function countOf(headers: Headers, name: string): number | null {
  const text = headers.get(name);
  return text !== null && /^[0-9]{1,9}$/.test(text) ? Number(text) : null;
}
