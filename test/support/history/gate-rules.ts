import { PROBE_SECONDS } from "../../../shared/domain/host-state.ts";
import { UNSENT_RUN_ERROR } from "../../../shared/domain/run.ts";
import { type Arrival, type EventOf, type Facts, type Found, gateText } from "./facts.ts";
import type { DownTime, FinalJob, FinalRun } from "./history.ts";

/** Rules on gates: those of flow keys, and those of hosts that are down. */

const SECOND_MS = 1_000;
/** Instants are kept to the microsecond, and told as milliseconds. */
const MICROSECOND_MS = 0.001;
/** The second of a ramp in which its starts per second are doubled for the last time. */
const RAMP_SECONDS_MAX = 150;

/** The time during which a place of a flow key is taken, as targets see it. */
interface Stay {
  job: string;
  from: number;
  until: number;
  /** Whether the job may have had the place already before `from`. */
  mayBeKept: boolean;
}

/** A flow key has no more in flight than it has places: attempts, or jobs that keep their place until they are over. */
export function* findCrowded(facts: Facts): Found {
  const { attemptTimeoutMs } = facts.history.terms;
  const ofJob = Map.groupBy(facts.arrivals, ({ id }) => id);
  for (const [flow, jobs] of facts.jobsOfFlow) {
    const stays = jobs
      .flatMap((job) => staysOf(facts, job, ofJob.get(job.job) ?? []))
      .sort((one, other) => one.from - other.from);
    let ends: number[] = [];
    for (const { job, from, until, mayBeKept } of stays) {
      ends = ends.filter((end) => end > from);
      ends.push(until);
      if (mayBeKept) continue;
      // The newest attempt was claimed at most its timeout before it arrived, under a limit of that time.
      const places = placesBetween(facts.flowSets.get(flow) ?? [], from - attemptTimeoutMs, from);
      if (ends.length > places)
        yield { subject: job, text: `the flow key ${flow} has ${ends.length} of ${places} places in use` };
    }
  }
}

/**
 * A job that keeps its place stays from its first attempt to the last one that follows by itself. It may have had the place
 * already if the attempt before reached no target. A retry by hand may come while a retry is planned, which it replaces.
 * Then the job has kept its place, but its runs do not tell it.
 */
function staysOf(facts: Facts, { job, flow }: FinalJob, arrivals: readonly Arrival[]): Stay[] {
  const stays = arrivals.map((arrival): Stay => {
    return { job, from: arrival.at, until: facts.endOf(arrival), mayBeKept: false };
  });
  if (flow?.hold !== "job") return stays;
  const runs = facts.runs.get(job) ?? [];
  const kept: Stay[] = [];
  for (const [index, stay] of stays.entries()) {
    const [before, own] = [arrivals[index - 1]?.attempt ?? 0, arrivals[index]?.attempt ?? 0];
    const last = kept.at(-1);
    const isKept = runs.slice(before - 1, own - 1).every(({ nextRetryAt }) => nextRetryAt !== null);
    const isByHand = facts.runsByHand.has(runs[own - 1]?.run ?? "");
    const previous = runs[own - 2];
    const mayBeKept =
      previous !== undefined &&
      (previous.nextRetryAt !== null || (isByHand && previous.status !== "succeeded"));
    if (last !== undefined && isKept) last.until = Math.max(last.until, stay.until);
    else kept.push({ ...stay, mayBeKept });
  }
  return kept;
}

/** The most places that a key had at some moment in this time. Without any limits it has as many as are asked for. */
function placesBetween(sets: readonly EventOf<"flow set">[], from: number, until: number): number {
  const before = sets.findLast(({ at }) => at <= from);
  const within = sets.filter(({ at }) => at > from && at <= until);
  const held = before === undefined ? within : [before, ...within];
  const most = Math.max(...held.map(({ concurrency }) => concurrency ?? Number.POSITIVE_INFINITY));
  return held.length === 0 ? Number.POSITIVE_INFINITY : most;
}

/**
 * A flow key keeps its rate in every window, by the database's clock, and starts nothing while it is paused. Starts in a
 * time that came twice have no known order.
 */
export function* findTooManyStarts(facts: Facts): Found {
  for (const [flow, sets] of facts.flowSets) {
    const starts = startsOf(facts, facts.jobsOfFlow.get(flow) ?? []);
    for (const [index, { clock, rate, paused }] of sets.entries()) {
      const untilAt = sets[index + 1]?.clock.nowAt ?? Number.POSITIVE_INFINITY;
      const own = starts.filter(({ startedAt }) => startedAt > clock.latestAt && startedAt < untilAt);
      const first = own.find(({ startedAt }) => !facts.cameTwice(startedAt, startedAt));
      if (paused && first !== undefined)
        yield { subject: first.job, text: `${first.run} started while the flow key ${flow} was paused` };
      if (rate === null) continue;
      const windowMs = rate.perSeconds * SECOND_MS;
      for (const [place, { startedAt, job }] of own.entries()) {
        const oldest = own[place - rate.count];
        if (oldest === undefined || startedAt - oldest.startedAt >= windowMs - MICROSECOND_MS) continue;
        if (facts.cameTwice(oldest.startedAt, startedAt)) continue;
        yield {
          subject: job,
          text: `the flow key ${flow} has ${rate.count + 1} starts from ${oldest.startedAt} to ${startedAt}, of ${rate.count} in ${windowMs} ms`,
        };
      }
    }
  }
}

/** The runs of these jobs whose attempts were claimed, in the order of their starts. */
const startsOf = ({ runs }: Facts, jobs: readonly FinalJob[]): FinalRun[] =>
  jobs
    .flatMap(({ job }) => runs.get(job) ?? [])
    .filter(({ error }) => error !== UNSENT_RUN_ERROR)
    .sort((one, other) => one.startedAt - other.startedAt);

/**
 * If a key has one place and all its jobs keep it until they are over, jobs start in the order of their due times. A
 * job that was known and due when another one started must have started first if it was due earlier. A job whose host
 * is down or full is passed over. Starts in a time that came twice, since the clock was set back, have no known order.
 */
export function* findDisorder(facts: Facts): Found {
  const { toleranceMs } = facts.history.terms;
  const knownAts = new Map<string, number>();
  for (const { job, clock } of facts.of("job accepted"))
    if (clock !== undefined) knownAts.set(job, clock.latestAt);
  const parked = parkedAtFullHosts(facts);
  for (const [flow, jobs] of facts.jobsOfFlow) {
    if (!isStrict(facts, flow, jobs)) continue;
    const started = jobs.flatMap((job) => {
      const [first] = facts.runs.get(job.job) ?? [];
      // A new job that names a time gone by is due at once.
      const queuedAt = Math.max(job.runAt, knownAts.get(job.job) ?? Number.POSITIVE_INFINITY);
      return first === undefined ? [] : [{ ...job, queuedAt, startedAt: first.startedAt }];
    });
    for (const earlier of started)
      for (const later of started)
        if (
          earlier.queuedAt < later.runAt &&
          earlier.queuedAt + toleranceMs < later.startedAt &&
          earlier.startedAt > later.startedAt &&
          !facts.cameTwice(later.startedAt, earlier.startedAt) &&
          !facts.hasDownHost(earlier) &&
          !parked.has(earlier.job)
        )
          yield {
            subject: earlier.job,
            text: `it was due at ${earlier.queuedAt} and started at ${earlier.startedAt}, after ${later.job} of the flow key ${flow}, due at ${later.runAt} and started at ${later.startedAt}`,
          };
  }
}

/** Jobs that were set aside while their host took no more requests. They wait outside of other jobs' queues. */
const parkedAtFullHosts = (facts: Facts): Set<string> =>
  new Set(facts.of("attempt parked at full host").map(({ job }) => job));

/** Whether a key's jobs start in strict order. */
function isStrict({ flowSets }: Facts, flow: string, jobs: readonly FinalJob[]): boolean {
  const sets = flowSets.get(flow) ?? [];
  return (
    sets.length > 0 &&
    sets.every(({ concurrency }) => concurrency === 1) &&
    jobs.every((job) => job.flow?.hold === "job")
  );
}

/** A gate's counts are those of the jobs there, and no job stands there once everything due had the time to end. */
export function* findLeftAtGates({ history }: Facts): Found {
  for (const { inUse, places, waiting, parked, ...name } of history.final.gates ?? []) {
    const subject = `gate ${gateText(name)}`;
    if (inUse !== places) yield { subject, text: `${inUse} places are in use, and ${places} jobs have one` };
    if (waiting !== parked) yield { subject, text: `${waiting} wait by its count, and ${parked} are parked` };
    if (history.terms.isDrained && places + parked > 0)
      yield { subject, text: `${places} jobs have a place and ${parked} are parked, and nothing is owed` };
  }
}

/**
 * At a host that is down only probes start, one after the other, none before its time. Once the host is up, attempts
 * that were parked there start at a rate that doubles each 10 s.
 */
export function* findSpentAtHosts(facts: Facts): Found {
  const { statementWaitsMs = 0 } = facts.history.terms;
  const passedBy = parkedAtFullHosts(facts);
  // An attempt that has passed its host and waits for its flow key may start when the key lets it, outside of the
  // ramp's rate.
  const standsElsewhere = (job: string) => passedBy.has(job) || facts.jobs.get(job)?.flow !== undefined;
  for (const [gate, times] of Map.groupBy(facts.history.final.downTimes ?? [], gateText)) {
    const jobs = [...facts.jobs.values()].filter(
      ({ project, environment, host }) =>
        host !== undefined && gateText({ project, environment, gate: host }) === gate,
    );
    const starts = startsOf(facts, jobs);
    for (const [index, time] of times.entries()) {
      const { downAt, upAt } = time;
      // Attempts just after `downAt` are left out: the statement that found the host down may have waited for their
      // claim.
      const probes = starts.filter(
        ({ startedAt }) =>
          startedAt > downAt + statementWaitsMs && startedAt < (upAt ?? Number.POSITIVE_INFINITY),
      );
      yield* tooSoon(gate, time, probes);
      if (upAt !== null) {
        const nextDownAt = times[index + 1]?.downAt ?? Number.POSITIVE_INFINITY;
        yield* tooSteep(
          gate,
          upAt,
          starts.filter(({ startedAt, job }) => startedAt < nextDownAt && !standsElsewhere(job)),
        );
      }
    }
  }
}

/** The first probe waits for 5 s. After a probe that found nobody, the next one waits twice as long, up to a limit. */
function* tooSoon(gate: string, { downAt }: DownTime, probes: readonly FinalRun[]): Found {
  let waitsMs: number = PROBE_SECONDS.first * SECOND_MS;
  let from = downAt;
  for (const { job, run, startedAt, durationMs, responseStatus } of probes) {
    if (startedAt < from + waitsMs)
      yield {
        subject: job,
        text: `${run} started at ${startedAt} at ${gate}, which has no probe from ${from} on for ${waitsMs} ms`,
      };
    // The duration leaves out the time before the request. The outcome of an attempt without an answer may be unknown,
    // which does not double the wait.
    from = startedAt + durationMs;
    if (responseStatus !== null) waitsMs = Math.min(2 * waitsMs, PROBE_SECONDS.max * SECOND_MS);
  }
}

/** Attempts that were parked at a host start within the ramp's rate once the host is up. */
function* tooSteep(gate: string, upAt: number, starts: readonly FinalRun[]): Found {
  const released = starts.filter(({ startedAt, heldFor }) => startedAt >= upAt && heldFor === "host");
  for (const [second, within] of Map.groupBy(released, ({ startedAt }) =>
    Math.floor((startedAt - upAt) / SECOND_MS),
  )) {
    const most = 2 ** Math.floor(Math.min(second, RAMP_SECONDS_MAX) / 10);
    if (within.length > most)
      yield {
        subject: within.at(-1)?.job ?? gate,
        text: `${within.length} attempts that were parked at ${gate} started in second ${second} after ${upAt}, of ${most}`,
      };
  }
}
