import type { Facts, Found } from "./facts.ts";
import type { History } from "./history.ts";

/** Schedules, and the shards whose owners fire them. */

/**
 * An instant of a schedule makes at most one job; in quiet times it makes one, or is skipped. As many of its jobs are
 * canceled as its firings say that they replaced, apart from those that clients cancel.
 */
export function* findWrongFirings({ history, jobs }: Facts): Found {
  const { schedules, firings } = history.final;
  const made = new Map<string, string>();
  const madeFor = new Map<string, number>();
  for (const { schedule, firedFor, job, isBackfilled = false } of firings) {
    if (job !== null && !isBackfilled) {
      const spreadMs = schedules.find(({ id }) => id === schedule)?.spreadMs ?? 0;
      madeFor.set(job, firedFor + spreadMs);
    } else if (job !== null) madeFor.set(job, firedFor);
    const key = `${schedule}/${firedFor}`;
    if (made.has(key)) yield { subject: schedule, text: `${firedFor} has two firings` };
    made.set(key, job ?? "");
    if (!schedules.find(({ id }) => id === schedule)?.instants.includes(firedFor))
      yield { subject: schedule, text: `${firedFor} is no instant of its timetable` };
    if (job !== null && jobs.get(job)?.schedule !== schedule)
      yield { subject: schedule, text: `the job ${job} of ${firedFor} does not exist` };
  }
  const canceled = new Map<string, number>();
  const asked = new Set(
    history.events.flatMap((event) => (event.kind === "job canceled" ? [event.job] : [])),
  );
  for (const { job, schedule, runAt, status } of jobs.values()) {
    if (schedule === null) continue;
    if (madeFor.get(job) !== runAt) yield { subject: schedule, text: `the job ${job} has no firing` };
    if (status === "canceled" && !asked.has(job)) canceled.set(schedule, (canceled.get(schedule) ?? 0) + 1);
  }
  for (const { id } of schedules) {
    const told = firings.reduce((sum, { schedule, replaced }) => sum + (schedule === id ? replaced : 0), 0);
    const count = canceled.get(id) ?? 0;
    if (told !== count)
      yield { subject: id, text: `its firings replaced ${told} jobs, and ${count} were canceled` };
  }
  yield* missedInQuietTimes(history, made);
}

/** A schedule does not fire after its pause was answered. */
export function* findFiredWhilePaused({ history }: Facts): Found {
  // A worker whose clock is ahead fires that much before the instant, and its job waits for it.
  const { toleranceMs } = history.terms;
  const changes = history.events.filter((event) => event.kind === "schedule set");
  for (const [index, { schedule, isActive, clock }] of changes.entries()) {
    if (isActive) continue;
    const next = changes.slice(index + 1).find((event) => event.schedule === schedule);
    const beginsAt = clock.latestAt + toleranceMs;
    const endsAt = next === undefined ? Number.POSITIVE_INFINITY : next.clock.nowAt - toleranceMs;
    const fired = history.final.firings.filter(
      (firing) => firing.schedule === schedule && !firing.isBackfilled,
    );
    for (const { firedFor } of fired)
      if (firedFor > beginsAt && firedFor < endsAt)
        yield { subject: schedule, text: `it fired for ${firedFor}, paused from ${beginsAt} to ${endsAt}` };
  }
}

/** After an epoch was granted no statement takes effect under an earlier one. Epochs grow. */
export function* findStaleEpochs({ history }: Facts): Found {
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
}

/** The instants between the beginning of quiet times and the first change after it that have no firing. */
function* missedInQuietTimes({ terms, events, final }: History, made: ReadonlyMap<string, string>): Found {
  const marks = events.filter((event) => event.kind === "request arrived" && event.at >= terms.quietFrom);
  const first = marks.find((event) => event.kind === "request arrived");
  if (first?.kind !== "request arrived") return;
  for (const { id, instants } of final.schedules) {
    const changes = events.filter((event) => event.kind === "schedule set" && event.schedule === id);
    const end = changes.find((event) => event.at >= terms.quietFrom);
    const last = changes.filter((event) => event.at < terms.quietFrom).at(-1);
    if (end?.kind !== "schedule set" || (last?.kind === "schedule set" && !last.isActive)) continue;
    const beginsAt = Math.max(first.clock.latestAt, last?.kind === "schedule set" ? last.clock.latestAt : 0);
    for (const at of instants)
      if (at > beginsAt && at < end.clock.nowAt - terms.startsWithinMs && !made.has(`${id}/${at}`))
        yield { subject: id, text: `its instant ${at} made no job in quiet times` };
  }
}
