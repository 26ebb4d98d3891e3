import { retryCeilingMs } from "../../shared/domain/backoff.ts";
import { haveSameBits } from "../../shared/domain/ids.ts";
import { INTERRUPTED_ERROR, LOST_ERROR, UNKNOWN_ERROR } from "../../shared/domain/run.ts";
import type { FinalJob, FinalRun, History, HistoryEvent } from "./history.ts";

/** A property that does not hold, and what shows it. `subject` is the id that it is about. */
export interface Violation {
  rule: Rule;
  subject: string;
  text: string;
}

type Check = (facts: Facts) => Iterable<Omit<Violation, "rule">>;

/** What always holds (design/architecture.md), as far as a history tells it. Pure: it looks at nothing but the history. */
export function checkHistory(history: History): Violation[] {
  const facts = new Facts(history);
  return RULES.flatMap((rule) => [...CHECKS[rule](facts)].map((found) => ({ rule, ...found })));
}

type EventOf<Kind extends HistoryEvent["kind"]> = Extract<HistoryEvent, { kind: Kind }>;
type Arrival = EventOf<"request arrived">;

/** The history by its subjects. */
class Facts {
  readonly arrivals: Arrival[];
  readonly leaves: ReadonlyMap<number, EventOf<"request left">>;
  readonly runs: ReadonlyMap<string, FinalRun[]>;
  readonly jobs: ReadonlyMap<string, FinalJob>;
  /** When each attempt of a job was due, as far as that is known, by the job's id and its number. */
  readonly dueAts = new Map<string, number>();

  constructor(readonly history: History) {
    this.arrivals = this.of("request arrived");
    this.leaves = new Map(this.of("request left").map((left) => [left.request, left]));
    const runs = history.final.runs.toSorted((one, other) => one.attempt - other.attempt);
    this.runs = Map.groupBy(runs, ({ job }) => job);
    this.jobs = new Map(history.final.jobs.map((job) => [job.job, job]));
    for (const { job, dueAt } of this.of("job accepted")) this.dueAts.set(`${job}/1`, dueAt);
    for (const { job, attempt, nextRetryAt } of runs)
      if (nextRetryAt !== null) this.dueAts.set(`${job}/${attempt + 1}`, nextRetryAt);
  }

  of<Kind extends HistoryEvent["kind"]>(kind: Kind): EventOf<Kind>[] {
    return this.history.events.filter((event): event is EventOf<Kind> => event.kind === kind);
  }

  /**
   * Until when a request counts as in flight: its end, or the instant at which its permit may be taken from it. Nobody can
   * know of a node that stands still whether its connection does.
   */
  endOf({ request, at, what }: Arrival): number {
    const { attemptTimeoutMs, webhookTimeoutMs, graceMs } = this.history.terms;
    const timeoutMs = what === "job" ? attemptTimeoutMs : webhookTimeoutMs;
    return Math.min(this.leaves.get(request)?.at ?? Number.POSITIVE_INFINITY, at + timeoutMs + graceMs);
  }
}

/** What a run says whose outcome nobody knows. */
const UNKNOWN_OUTCOMES = [LOST_ERROR, INTERRUPTED_ERROR, UNKNOWN_ERROR];

export const RULES = [
  "lost",
  "doubled",
  "overlapping",
  "early",
  "late",
  "permits",
  "cancel",
  "runs",
  "backoff",
  "events",
  "deliveries",
  "firings",
  "paused",
  "epochs",
  "usage",
] as const;
export type Rule = (typeof RULES)[number];

const CHECKS: Record<Rule, Check> = {
  /** A job id that was answered ends; what was refused, or never answered, is all or nothing. */
  *lost({ history, jobs }) {
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
  },

  /** One attempt of a job is sent once, and is recorded before. */
  *doubled({ arrivals, history, jobs }) {
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
  },

  /** At most one attempt of a job is in progress. */
  *overlapping(facts) {
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
  },

  /** Nothing starts before its time. */
  *early({ arrivals, dueAts, jobs }) {
    for (const { id, attempt, clock } of arrivals) {
      // A creation that was repeated, since its answer was lost, is answered with the time of its repetition.
      const dueAt = attempt === 1 ? jobs.get(id)?.runAt : dueAts.get(`${id}/${attempt}`);
      if (dueAt !== undefined && clock.latestAt < dueAt)
        yield {
          subject: id,
          text: `attempt ${attempt} was sent ${dueAt - clock.latestAt} ms before it was due`,
        };
    }
  },

  /** Once everything works again, what is due is sent soon, and what comes due in quiet times at once. */
  *late({ arrivals, history, dueAts }) {
    const { quietFrom, startsWithinMs, healedAt, catchesUpWithinMs } = history.terms;
    for (const arrival of arrivals) {
      const dueAt = dueAts.get(`${arrival.id}/${arrival.attempt}`);
      const lateMs = dueAt === undefined ? 0 : Math.min(arrival.clock.nowAt - dueAt, arrival.at - healedAt);
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
      if (arrival === undefined) yield { subject: event.job, text: "a job was never sent in quiet times" };
      else if (arrival.clock.nowAt > event.dueAt + startsWithinMs)
        yield {
          subject: event.job,
          text: `a job was sent ${arrival.clock.nowAt - event.dueAt} ms late in quiet times`,
        };
    }
  },

  /** A project's requests in flight never exceed its limit; what is in use is what is on the wire. */
  *permits(facts) {
    const { limits } = facts.history.terms;
    for (const [project, arrivals] of Map.groupBy(facts.arrivals, (arrival) => arrival.project)) {
      const limit = limits.get(project) ?? 0;
      const ends: number[] = [];
      for (const arrival of arrivals) {
        const inFlight = ends.filter((end) => end > arrival.at).length + 1;
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
  },

  /** A cancel that won is followed by no further attempt. */
  *cancel({ history, arrivals, jobs }) {
    for (const event of history.events) {
      if (event.kind !== "job canceled") continue;
      const status = jobs.get(event.job)?.status;
      if (status !== "canceled") yield { subject: event.job, text: `a canceled job is ${status}` };
      for (const { id, attempt, at } of arrivals)
        if (id === event.job && (attempt ?? 0) > event.attempts)
          yield {
            subject: event.job,
            text: `attempt ${attempt} was sent at ${at} after a cancel at ${event.at} of ${event.attempts} attempts`,
          };
    }
  },

  /** Every attempt has one run, with what became of it; there are no more than allowed. */
  *runs(facts) {
    const { history, runs, jobs, arrivals, leaves } = facts;
    const byHand = new Set<string>();
    for (const event of history.events) if (event.kind === "retry asked") byHand.add(event.run);
    const sent = new Map(arrivals.map((arrival) => [arrival.run, arrival]));
    for (const job of jobs.values()) {
      const ended = runs.get(job.job) ?? [];
      if (ended.some(({ attempt }, index) => attempt !== index + 1))
        yield { subject: job.job, text: `the runs are ${ended.map(({ attempt }) => attempt).join(", ")}` };
      if (job.status !== "running" && ended.length !== job.attempts)
        yield { subject: job.job, text: `${ended.length} runs stand for ${job.attempts} attempts` };
      const extraCount = ended.filter(({ run }) => byHand.has(run)).length;
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
  },

  /** The wait before the next attempt is within the bounds of the policy, lateness apart. */
  *backoff({ history, jobs }) {
    const { toleranceMs, attemptTimeoutMs, graceMs } = history.terms;
    for (const { job, run, attempt, startedAt, durationMs, nextRetryAt } of history.final.runs) {
      const asked = jobs.get(job);
      if (nextRetryAt === null || asked === undefined) continue;
      const policy = { ...asked, baseSeconds: asked.baseSeconds, capSeconds: asked.capSeconds };
      const waitMs = nextRetryAt - startedAt - durationMs;
      // A target may ask to wait for longer, up to the cap. The duration leaves out what came before the request.
      const mostMs = Math.max(retryCeilingMs(policy, attempt), asked.capSeconds * 1_000);
      const lateMs = toleranceMs + attemptTimeoutMs + graceMs;
      if (waitMs < -toleranceMs - 1 || waitMs > mostMs + lateMs)
        yield { subject: job, text: `${run} is followed after ${waitMs} ms` };
    }
  },

  /** Every end of a job has its event, and no event lacks one. */
  *events({ history, runs, jobs }) {
    const { endpoints, events } = history.final;
    const ofJob = Map.groupBy(events, ({ job }) => job);
    const byHand = new Set<string>();
    for (const event of history.events) if (event.kind === "retry asked") byHand.add(event.run);
    for (const job of jobs.values()) {
      const heard = ofJob.get(job.job) ?? [];
      const ended = runs.get(job.job) ?? [];
      for (const { id, type } of heard) {
        const at = ended.findIndex(({ run }) => haveSameBits(run, id));
        const [run, next] = [ended[at], ended[at + 1]];
        const isEnd = next === undefined || byHand.has(next.run);
        if (run === undefined || !isEnd || (type === "job.succeeded") !== (run.status === "succeeded"))
          yield { subject: job.job, text: `the event ${id} (${type}) is of no end of its job` };
      }
      const hearing = endpoints.some(
        ({ project, environment, wasAlwaysEnabled }) =>
          project === job.project && environment === job.environment && wasAlwaysEnabled,
      );
      const last = ended.at(-1);
      const isOver = job.status === "succeeded" || job.status === "failed";
      if (hearing && isOver && last !== undefined && !heard.some(({ id }) => haveSameBits(id, last.run)))
        yield { subject: job.job, text: `a job ended as ${job.status} without an event` };
      if (
        job.status === "canceled" &&
        last !== undefined &&
        heard.some(({ id }) => haveSameBits(id, last.run))
      )
        yield { subject: job.job, text: "a canceled job has an event" };
    }
  },

  /** Each event is delivered to each endpoint once, in the same bytes however often it is sent, and to none that was told off. */
  *deliveries({ history, arrivals }) {
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
    const bodies = new Map<string, string>();
    for (const { what, id, body } of arrivals) {
      if (what !== "delivery") continue;
      const before = bodies.get(id);
      if (before !== undefined && before !== body)
        yield { subject: id, text: "an event was sent in other bytes" };
      bodies.set(id, body);
    }
  },

  /** An instant of a schedule makes at most one job; in quiet times it makes one. */
  *firings({ history, jobs }) {
    const { schedules, firings } = history.final;
    const made = new Map<string, string>();
    for (const { schedule, firedFor, job } of firings) {
      const key = `${schedule}/${firedFor}`;
      if (made.has(key)) yield { subject: schedule, text: `${firedFor} has two firings` };
      made.set(key, job ?? "");
      if (!schedules.find(({ id }) => id === schedule)?.instants.includes(firedFor))
        yield { subject: schedule, text: `${firedFor} is no instant of its timetable` };
      if (job !== null && jobs.get(job)?.schedule !== schedule)
        yield { subject: schedule, text: `the job ${job} of ${firedFor} does not exist` };
    }
    for (const { job, schedule, runAt } of jobs.values())
      if (schedule !== null && made.get(`${schedule}/${runAt}`) !== job)
        yield { subject: schedule, text: `the job ${job} has no firing` };
    yield* missedInQuietTimes(history, made);
  },

  /** A schedule does not fire after its pause was answered. */
  *paused({ history }) {
    // A worker whose clock is ahead fires that much before the instant, and its job waits for it.
    const { toleranceMs } = history.terms;
    const changes = history.events.filter((event) => event.kind === "schedule set");
    for (const [index, { schedule, isActive, clock }] of changes.entries()) {
      if (isActive) continue;
      const next = changes.slice(index + 1).find((event) => event.schedule === schedule);
      const beginsAt = clock.latestAt + toleranceMs;
      const endsAt = next === undefined ? Number.POSITIVE_INFINITY : next.clock.nowAt - toleranceMs;
      for (const { firedFor } of history.final.firings.filter((firing) => firing.schedule === schedule))
        if (firedFor > beginsAt && firedFor < endsAt)
          yield { subject: schedule, text: `it fired for ${firedFor}, paused from ${beginsAt} to ${endsAt}` };
    }
  },

  /** After an epoch was granted nothing takes effect under an earlier one. Epochs grow. */
  *epochs({ history }) {
    const granted = new Map<string, number>();
    for (const event of history.events) {
      if (event.kind === "epoch granted") {
        if (event.epoch <= (granted.get(event.shard) ?? 0))
          yield {
            subject: event.shard,
            text: `epoch ${event.epoch} was granted after ${granted.get(event.shard)}`,
          };
        granted.set(event.shard, event.epoch);
      }
      if (event.kind === "epoch used" && event.epoch !== granted.get(event.shard))
        yield {
          subject: event.shard,
          text: `a statement took effect under epoch ${event.epoch} during ${granted.get(event.shard)}`,
        };
    }
  },

  /** Usage is the number of runs that were started. */
  *usage({ history }) {
    for (const { project, counted, runs } of history.final.usage)
      if (counted !== runs)
        yield { subject: `project ${project}`, text: `${counted} runs are counted, and there are ${runs}` };
  },
};

/** The instants between the beginning of quiet times and the first change after it that have no firing. */
function* missedInQuietTimes({ terms, events, final }: History, made: ReadonlyMap<string, string>) {
  const marks = events.filter((event) => event.kind === "request arrived" && event.at >= terms.quietFrom);
  const first = marks.find((event) => event.kind === "request arrived");
  if (first?.kind !== "request arrived") return;
  for (const { id, instants } of final.schedules) {
    const changes = events.filter((event) => event.kind === "schedule set" && event.schedule === id);
    const end = changes.find((event) => event.at >= terms.quietFrom);
    const last = changes.filter((event) => event.at < terms.quietFrom).at(-1);
    if (end?.kind !== "schedule set" || (last?.kind === "schedule set" && !last.isActive)) continue;
    for (const at of instants)
      if (
        at > first.clock.latestAt &&
        at < end.clock.nowAt - terms.startsWithinMs &&
        !made.has(`${id}/${at}`)
      )
        yield { subject: id, text: `its instant ${at} made no job in quiet times` };
  }
}
