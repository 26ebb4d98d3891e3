import { retryCeilingMs } from "../../../shared/domain/backoff.ts";
import { haveSameBits } from "../../../shared/domain/ids.ts";
import { INTERRUPTED_ERROR, LOST_ERROR, UNKNOWN_ERROR } from "../../../shared/domain/run.ts";
import type { Arrival, Facts, Found } from "./facts.ts";
import type { History } from "./history.ts";

/** Rules on records: runs, the waits after them, events, deliveries, usage, insights. */

/** The errors of runs whose outcome is unknown. */
const UNKNOWN_OUTCOMES = [LOST_ERROR, INTERRUPTED_ERROR, UNKNOWN_ERROR];

/** Every attempt has one run, with its outcome; a job has no more runs than allowed. */
export function* findWrongRuns(facts: Facts): Found {
  const { history, runs, jobs, arrivals, leaves, runsByHand } = facts;
  const sent = new Map(arrivals.map((arrival) => [arrival.run, arrival]));
  for (const job of jobs.values()) {
    const ended = runs.get(job.job) ?? [];
    if (ended.some(({ attempt }, index) => attempt !== index + 1))
      yield { subject: job.job, text: `the runs are ${ended.map(({ attempt }) => attempt).join(", ")}` };
    if (job.status !== "running" && ended.length !== job.attempts)
      yield { subject: job.job, text: `${ended.length} runs stand for ${job.attempts} attempts` };
    const extraCount = ended.filter(({ run }) => runsByHand.has(run)).length;
    if (ended.length > job.maxAttempts + extraCount)
      yield {
        subject: job.job,
        text: `${ended.length} runs, of ${job.maxAttempts} and ${extraCount} by hand`,
      };
    const last = ended.at(-1);
    const endedAs = last?.status === "succeeded" ? "succeeded" : "failed";
    if ((job.status === "succeeded" || job.status === "failed") && job.status !== endedAs)
      yield { subject: job.job, text: `a ${job.status} job has a last run that is ${last?.status}` };
    if (ended.slice(0, -1).some(({ status }) => status === "succeeded"))
      yield { subject: job.job, text: "an attempt followed one that succeeded" };
  }
  for (const { run, job, status, responseStatus, error } of history.final.runs) {
    const arrival = sent.get(run);
    const seen = arrival === undefined ? null : (leaves.get(arrival.request)?.status ?? null);
    const isGood = seen !== null && seen >= 200 && seen <= 299;
    if (status === "succeeded" && !isGood)
      yield { subject: job, text: `${run} succeeded, and its target answered ${seen}` };
    if (status === "failed" && isGood && !UNKNOWN_OUTCOMES.includes(error ?? ""))
      yield { subject: job, text: `${run} failed (${error}), and its target answered ${seen}` };
    if (responseStatus !== null && responseStatus !== seen)
      yield {
        subject: job,
        text: `${run} has the status ${responseStatus}, and its target answered ${seen}`,
      };
  }
}

/** The wait before the next attempt is within the bounds of the policy, lateness apart. */
export function* findWrongWaits({ history, jobs }: Facts): Found {
  const { toleranceMs, attemptTimeoutMs, graceMs } = history.terms;
  for (const { job, run, attempt, startedAt, durationMs, nextRetryAt } of history.final.runs) {
    const asked = jobs.get(job);
    if (nextRetryAt === null || asked === undefined) continue;
    const policy = { ...asked, baseSeconds: asked.baseSeconds, capSeconds: asked.capSeconds };
    const waitMs = nextRetryAt - startedAt - durationMs;
    // A target may ask for a longer wait, up to the cap. The duration leaves out the time before the request.
    const mostMs = Math.max(retryCeilingMs(policy, attempt), asked.capSeconds * 1_000);
    const lateMs = toleranceMs + attemptTimeoutMs + graceMs;
    if (waitMs < -toleranceMs - 1 || waitMs > mostMs + lateMs)
      yield { subject: job, text: `${run} is followed after ${waitMs} ms` };
  }
}

/** Every end of a job that an endpoint hears of has its event, and every event has its end. */
export function* findWrongEvents({ history, runs, jobs, runsByHand }: Facts): Found {
  const { endpoints, events } = history.final;
  const ofJob = Map.groupBy(events, ({ job }) => job);
  for (const job of jobs.values()) {
    const heard = ofJob.get(job.job) ?? [];
    const ended = runs.get(job.job) ?? [];
    for (const { id, type } of heard) {
      const at = ended.findIndex(({ run }) => haveSameBits(run, id));
      const [run, next] = [ended[at], ended[at + 1]];
      const isEnd = next === undefined || runsByHand.has(next.run);
      if (run === undefined || !isEnd || (type === "job.succeeded") !== (run.status === "succeeded"))
        yield { subject: job.job, text: `the event ${id} (${type}) is of no end of its job` };
    }
    const hearing = endpoints.some(
      ({ project, environment, types, wasAlwaysEnabled }) =>
        project === job.project &&
        environment === job.environment &&
        types.some((type) => type === `job.${job.status}`) &&
        wasAlwaysEnabled,
    );
    const last = ended.at(-1);
    const isOver = job.status === "succeeded" || job.status === "failed";
    if (hearing && isOver && last !== undefined && !heard.some(({ id }) => haveSameBits(id, last.run)))
      yield { subject: job.job, text: `a job ended as ${job.status} without an event` };
    if (job.status === "canceled" && last !== undefined && heard.some(({ id }) => haveSameBits(id, last.run)))
      yield { subject: job.job, text: "a canceled job has an event" };
  }
}

/** An event is owed to an endpoint once, has the same bytes each time, and is not sent to a disabled endpoint. */
export function* findWrongDeliveries({ history, arrivals }: Facts): Found {
  const { deliveries, events } = history.final;
  const known = new Set(events.map(({ id }) => id));
  const pairs = new Set<string>();
  for (const { id, event, endpoint, status } of deliveries) {
    const pair = `${event} ${endpoint}`;
    if (pairs.has(pair)) yield { subject: id, text: `${endpoint} is owed ${event} twice` };
    pairs.add(pair);
    if (!known.has(event)) yield { subject: id, text: `${event} is owed and does not exist` };
    if (history.terms.isDrained && status === "pending")
      yield { subject: id, text: "a delivery is still pending although everything had the time to end" };
  }
  yield* findSentToDisabled(history, arrivals);
  const bodies = new Map<string, string>();
  for (const { what, id, body } of arrivals) {
    if (what !== "delivery") continue;
    const before = bodies.get(id);
    if (before !== undefined && before !== body)
      yield { subject: id, text: "an event was sent in other bytes" };
    bodies.set(id, body);
  }
}

/** Usage is the number of runs that were started. */
export function* findMiscounted({ history }: Facts): Found {
  for (const { project, counted, runs } of history.final.usage)
    if (counted !== runs)
      yield { subject: `project ${project}`, text: `${counted} runs are counted, and there are ${runs}` };
}

/** Insights have counted each ended run once. */
export function* findMistold({ history }: Facts): Found {
  for (const { project, counted, runs } of history.final.insights ?? [])
    if (counted !== runs)
      yield { subject: `project ${project}`, text: `insights tell ${counted} runs, and ${runs} have ended` };
}

/** Once a disabling is answered, only deliveries claimed before it may be sent, and only before their deadlines. */
function* findSentToDisabled({ events, final, terms }: History, arrivals: readonly Arrival[]): Found {
  const changes = events.filter((event) => event.kind === "endpoint set");
  for (const [index, { endpoint, isEnabled, at }] of changes.entries()) {
    if (isEnabled) continue;
    const url = final.endpoints.find(({ id }) => id === endpoint)?.url ?? "";
    const next = changes.slice(index + 1).find((event) => event.endpoint === endpoint);
    const beginsAt = at + terms.webhookTimeoutMs + terms.toleranceMs;
    const endsAt = next?.at ?? Number.POSITIVE_INFINITY;
    for (const arrival of arrivals)
      if (arrival.id.endsWith(` ${url}`) && arrival.at > beginsAt && arrival.at < endsAt)
        yield { subject: endpoint, text: `it heard of an event at ${arrival.at}, and was disabled at ${at}` };
  }
}
