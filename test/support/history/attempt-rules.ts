import type { Arrival, Facts, Found } from "./facts.ts";

/** Rules on attempts: when they are sent, how often, and how many at once. */

/** A job that was accepted exists, one that was refused does not, and every job ends. */
export function* findLost({ history, jobs }: Facts): Found {
  const { events, terms } = history;
  for (const event of events) {
    if (event.kind === "job accepted" && !jobs.has(event.job))
      yield { subject: event.job, text: "a job was accepted and does not exist" };
    if (event.kind === "job refused" && jobs.has(event.job))
      yield { subject: event.job, text: "a job was refused and exists" };
  }
  for (const { job, status } of jobs.values()) {
    if (terms.isDrained && (status === "queued" || status === "running"))
      yield { subject: job, text: `a job is still ${status} although everything had the time to end` };
  }
  if (!terms.isDrained)
    yield { subject: "the cell", text: "not everything ended in time after all had healed" };
}

/** Each attempt of a job is sent at most once, and has a run. */
export function* findDoubled({ arrivals, history, jobs }: Facts): Found {
  const seen = new Map<string, Arrival>();
  for (const arrival of arrivals) {
    if (arrival.what !== "job") continue;
    const key = `${arrival.id}/${arrival.attempt}`;
    const before = seen.get(key);
    if (before !== undefined)
      yield {
        subject: arrival.id,
        text: `attempt ${arrival.attempt} was sent at ${before.at} as ${before.run} and at ${arrival.at} as ${arrival.run}`,
      };
    seen.set(key, arrival);
    if (!jobs.has(arrival.id)) yield { subject: arrival.id, text: "a job was sent that does not exist" };
  }
  const recorded = new Set(history.final.runs.map(({ run }) => run));
  for (const { id, run } of seen.values())
    if (history.terms.isDrained && !recorded.has(run))
      yield { subject: id, text: `the attempt ${run} was sent and has no run` };
}

/** At most one attempt of a job is in progress. */
export function* findOverlapping(facts: Facts): Found {
  const ofJob = Map.groupBy(
    facts.arrivals.filter(({ what }) => what === "job"),
    ({ id }) => id,
  );
  for (const [subject, arrivals] of ofJob) {
    for (const [index, arrival] of arrivals.entries()) {
      const next = arrivals[index + 1];
      if (next !== undefined && next.at < facts.endOf(arrival))
        yield {
          subject,
          text: `attempt ${next.attempt} began while attempt ${arrival.attempt} was in flight`,
        };
    }
  }
}

/** No attempt starts before its time. */
export function* findEarly({ arrivals, dueAts, jobs }: Facts): Found {
  for (const { id, attempt, clock } of arrivals) {
    // A creation that was repeated, since its answer was lost, is answered with the time of its repetition.
    const dueAt = attempt === 1 ? jobs.get(id)?.runAt : dueAts.get(`${id}/${attempt}`);
    if (dueAt !== undefined && clock.latestAt < dueAt)
      yield {
        subject: id,
        text: `attempt ${attempt} was sent ${dueAt - clock.latestAt} ms before it was due`,
      };
  }
}

/**
 * Once everything works again, due attempts are sent soon, and those that come due in quiet times at once. An attempt
 * that waits for its flow key is late only from the moment at which the key could have let it start. Jobs whose host
 * was ever down are not judged.
 */
export function* findLate(facts: Facts): Found {
  const { arrivals, history, dueAts, jobs } = facts;
  const { quietFrom, startsWithinMs, healedAt, catchesUpWithinMs, withQuota } = history.terms;
  const waitsForHost = new Set(
    [...jobs.values()].flatMap((job) => (facts.hasDownHost(job) ? [job.job] : [])),
  );
  for (const arrival of arrivals) {
    const dueAt = dueAts.get(`${arrival.id}/${arrival.attempt}`);
    if (withQuota.has(arrival.project) || waitsForHost.has(arrival.id) || dueAt === undefined) continue;
    const ownMs = Math.min(arrival.clock.nowAt - dueAt, arrival.at - healedAt);
    const lateMs = ownMs > catchesUpWithinMs ? Math.min(ownMs, facts.idleMsOf(arrival) ?? ownMs) : ownMs;
    if (lateMs > catchesUpWithinMs)
      yield {
        subject: arrival.id,
        text: `attempt ${arrival.attempt} was sent ${lateMs} ms after all had healed`,
      };
  }
  const first = new Map<string, Arrival>();
  for (const arrival of arrivals) if (!first.has(arrival.id)) first.set(arrival.id, arrival);
  const asked = new Map<string, number>();
  for (const event of history.events) {
    if (event.kind === "job asked") asked.set(event.job, event.at);
    if (event.kind !== "job accepted" || (asked.get(event.job) ?? 0) < quietFrom) continue;
    const arrival = first.get(event.job);
    const lateMs = arrival === undefined ? 0 : arrival.clock.nowAt - event.dueAt;
    if (arrival === undefined) yield { subject: event.job, text: "a job was never sent in quiet times" };
    else if (waitsForHost.has(event.job)) continue;
    else if (lateMs > startsWithinMs && (facts.idleMsOf(arrival) ?? lateMs) > startsWithinMs)
      yield {
        subject: event.job,
        text: `a job was sent ${lateMs} ms late in quiet times`,
      };
  }
}

/** A project's requests in flight never exceed its limit, and its permits in use equal its attempts on the wire. */
export function* findExcess(facts: Facts): Found {
  const { limits } = facts.history.terms;
  for (const [project, arrivals] of Map.groupBy(facts.arrivals, (arrival) => arrival.project)) {
    const limit = limits.get(project) ?? 0;
    let ends: number[] = [];
    for (const arrival of arrivals) {
      ends = ends.filter((end) => end > arrival.at);
      const inFlight = ends.length + 1;
      if (inFlight > limit)
        yield {
          subject: arrival.id,
          text: `project ${project} has ${inFlight} of ${limit} requests in flight`,
        };
      ends.push(facts.endOf(arrival));
    }
  }
  for (const { project, inUse, onWire } of facts.history.final.permits)
    if (inUse !== onWire)
      yield {
        subject: `project ${project}`,
        text: `${inUse} permits are in use for ${onWire} attempts on the wire`,
      };
}

/** A cancel that won is followed by no further attempt. */
export function* findSentAfterCancel({ history, arrivals, jobs }: Facts): Found {
  const ofJob = Map.groupBy(arrivals, ({ id }) => id);
  for (const event of history.events) {
    if (event.kind !== "job canceled") continue;
    const status = jobs.get(event.job)?.status;
    if (status !== "canceled") yield { subject: event.job, text: `a canceled job is ${status}` };
    for (const { attempt, at } of ofJob.get(event.job) ?? [])
      if ((attempt ?? 0) > event.attempts)
        yield {
          subject: event.job,
          text: `attempt ${attempt} was sent at ${at} after a cancel at ${event.at} of ${event.attempts} attempts`,
        };
  }
}
