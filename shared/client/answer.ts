/** What an answer of the API tells beside its result. */
export interface Answer {
  status: number;
  /** What the operators of the service ask for when something is unclear. */
  requestId: string | null;
  /** Null where no project is known, as with a wrong key. */
  rateLimit: RateLimit | null;
  /** True if an earlier request with the same idempotency key was carried out, and this is its answer. */
  isReplayed: boolean;
  /** The JSON as it came. Numbers beyond double precision are exact only here. */
  text: string;
}

/** Where a request leaves the environment's requests of this minute. */
export interface RateLimit {
  limit: number;
  remaining: number;
  resetSeconds: number;
}

export interface Answered<Result> {
  result: Result;
  answer: Answer;
}

/** A request that is under way. Awaited it gives the result; `withAnswer` gives what came with it, too. */
export interface Call<Result> extends Promise<Result> {
  withAnswer(): Promise<Answered<Result>>;
}

export function callOf<Result>(answered: Promise<Answered<Result>>): Call<Result> {
  const result = answered.then((both) => both.result);
  return Object.assign(result, {
    async withAnswer() {
      // Who asks this way hears of a failure here; the promise of the result alone has nobody to tell.
      result.catch(() => undefined);
      return answered;
    },
  });
}

/** Null unless all of it is told. */
export function rateLimitOf(headers: Headers): RateLimit | null {
  const limit = countOf(headers, "RateLimit-Limit");
  const remaining = countOf(headers, "RateLimit-Remaining");
  const resetSeconds = countOf(headers, "RateLimit-Reset");
  if (limit === null || remaining === null || resetSeconds === null) return null;
  return { limit, remaining, resetSeconds };
}

/** The whole number in a header. A Retry-After that is a date, as proxies may send, is none. */
export function countOf(headers: Headers, name: string): number | null {
  const text = headers.get(name);
  return text !== null && /^[0-9]{1,9}$/.test(text) ? Number(text) : null;
}
