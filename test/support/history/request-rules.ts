import type { Facts, Found } from "./facts.ts";

/** Rules on the API's answers and on the bytes at targets. Simulations have no gateway and record neither. */

const MINUTE_MS = 60_000;

/** A request makes its jobs once or not at all, however often it is repeated, and every answer names the same jobs. */
export function* findRepeated({ history, jobs }: Facts): Found {
  const answers = new Map<string, string>();
  for (const event of history.events) {
    if (event.kind !== "key answered") continue;
    const before = answers.get(event.key) ?? event.made;
    answers.set(event.key, before);
    if (before !== event.made)
      yield { subject: event.made, text: `the key ${event.key} was answered with ${before} before` };
  }
  const asked = new Map<string, number>();
  for (const event of history.events)
    if (event.kind === "job asked" && event.request !== undefined)
      asked.set(event.request, (asked.get(event.request) ?? 0) + 1);
  const requested = [...jobs.values()].filter(({ request }) => request !== undefined);
  for (const [request = "", made] of Map.groupBy(requested, (job) => job.request))
    if (made.length !== asked.get(request))
      yield {
        subject: made[0]?.job ?? "",
        text: `the request ${request} for ${asked.get(request)} jobs has made ${made.length}`,
      };
}

/** Every request arrives with the bytes that were asked for, under a valid signature. */
export function* findWrongBytes({ arrivals }: Facts): Found {
  for (const { id, run, fault } of arrivals)
    if (fault !== undefined && fault !== null) yield { subject: id, text: `${run} arrived with ${fault}` };
}

/** No minute accepts more requests than the limit, whichever gateways they went to. */
export function* findOverRate(facts: Facts): Found {
  const { requestsPerMinute, countsLostAt = [], toleranceMs } = facts.history.terms;
  const accepted = facts.of("request accepted").sort((one, other) => one.askedAt - other.askedAt);
  for (const [project, requests] of Map.groupBy(accepted, (event) => event.project)) {
    const limit = requestsPerMinute?.get(project) ?? Number.POSITIVE_INFINITY;
    for (const [index, { askedAt: from }] of requests.entries()) {
      const until = from + MINUTE_MS - toleranceMs;
      if (countsLostAt.some((at) => at > from && at < until)) continue;
      // Only requests that were asked and answered within the minute count: they were accepted in it for certain.
      let count = 0;
      for (let place = index; place < requests.length; place++) {
        const request = requests[place];
        if (request === undefined || request.askedAt > until) break;
        if (request.at <= until) count++;
      }
      if (count > limit)
        yield {
          subject: `project ${project}`,
          text: `${count} requests were accepted in the minute from ${from}`,
        };
    }
  }
}
