import type { JobStatus } from "./job.ts";
import type { RunStatus } from "./run.ts";
import type { WaitReason } from "./wait.ts";
import type { EventType } from "./webhook.ts";

/** The history of a job: the rule of `timeline` in GET /v2/jobs/{id}/explain. */

/** The known facts of one run of the job. Null stands for a fact that is not known or did not happen. */
export interface RunFacts {
  id: string;
  attempt: number;
  /** The time of the run's id: when the request for a retry by hand was accepted; the claim makes the ids of all others. */
  madeAt: number;
  /** Null for a run that was asked for by hand and has not been sent. */
  startedAt: number | null;
  /** Null while it is in progress. */
  endedAt: number | null;
  status: RunStatus;
  responseStatus: number | null;
  /** 0 while it is in progress. */
  durationMs: number;
  nextRetryAt: number | null;
  lateMs: number | null;
  heldFor: WaitReason | null;
}

export interface EventFacts {
  id: string;
  type: EventType;
  createdAt: number;
}

/** A delivery of an event that has ended. */
export interface EndedDeliveryFacts {
  eventId: string;
  webhookId: string;
  isDelivered: boolean;
  responseStatus: number | null;
  endedAt: number;
}

/** All known facts of a job's history. */
export interface JobHistory {
  status: JobStatus;
  createdAt: number;
  runAt: number;
  maxAttempts: number;
  /** In the order of attempts, without gaps. The first runs may have left retention. */
  runs: readonly RunFacts[];
  /** When the attempt that is owed and has no run yet is due; null if none is owed. */
  nextDueAt: number | null;
  canceledAt: number | null;
  events: readonly EventFacts[];
  deliveries: readonly EndedDeliveryFacts[];
}

/** The kinds of entries of a timeline, in the order in which entries of one instant are told. */
const TIMELINE_EVENTS = [
  "created",
  "due",
  "started",
  "ended",
  "retry_planned",
  "retry_requested",
  "cancel_requested",
  "event_created",
  "event_delivered",
  "event_failed",
] as const;

export type TimelineEntry = { at: number } & (
  | { event: "created" | "cancel_requested" }
  | { event: "due"; attempt: number }
  | { event: "started"; runId: string; attempt: number; lateMs: number | null; heldFor: WaitReason | null }
  | {
      event: "ended";
      runId: string;
      attempt: number;
      status: RunFacts["status"];
      responseStatus: number | null;
      durationMs: number;
    }
  | { event: "retry_planned"; attempt: number; dueAt: number }
  | { event: "retry_requested"; runId: string; attempt: number }
  | { event: "event_created"; eventId: string; type: EventType }
  | {
      event: "event_delivered" | "event_failed";
      eventId: string;
      webhookId: string;
      responseStatus: number | null;
    }
);

/** A longer timeline is cut to its latest entries. */
export const TIMELINE_ENTRIES_MAX = 1_000;

/** The entries of a job's timeline until `now`, oldest first. */
export function timelineOf(job: JobHistory, now: number): TimelineEntry[] {
  const entries: TimelineEntry[] = [{ at: job.createdAt, event: "created" }];
  const firstDueAt = Math.max(job.runAt, job.createdAt);
  for (const [index, run] of job.runs.entries()) {
    entries.push(...entriesOf(run, dueOf(run, job.runs[index - 1], job.maxAttempts, firstDueAt)));
  }
  const last = job.runs.at(-1);
  const nextAttempt = (last?.attempt ?? 0) + 1;
  const nextDueAt = job.nextDueAt ?? (job.canceledAt !== null && last === undefined ? firstDueAt : null);
  if (nextDueAt !== null && nextDueAt <= Math.min(now, job.canceledAt ?? now)) {
    entries.push({ at: nextDueAt, event: "due", attempt: nextAttempt });
  }
  if (job.canceledAt !== null) entries.push({ at: job.canceledAt, event: "cancel_requested" });
  for (const { id, type, createdAt } of job.events) {
    entries.push({ at: createdAt, event: "event_created", eventId: id, type });
  }
  for (const { eventId, webhookId, isDelivered, responseStatus, endedAt } of job.deliveries) {
    const event = isDelivered ? "event_delivered" : "event_failed";
    entries.push({ at: endedAt, event, eventId, webhookId, responseStatus });
  }
  return entries.sort(byTime).slice(-TIMELINE_ENTRIES_MAX);
}

type Due = { kind: "by_hand" } | { kind: "planned"; at: number | null };

/**
 * When a run was due. If the run before it has no planned retry, the run was asked for by hand: a retry by hand takes the
 * place of a planned one.
 */
function dueOf(run: RunFacts, before: RunFacts | undefined, maxAttempts: number, firstDueAt: number): Due {
  if (run.attempt === 1) return { kind: "planned", at: firstDueAt };
  if (before === undefined)
    return run.attempt > maxAttempts ? { kind: "by_hand" } : { kind: "planned", at: null };
  return before.nextRetryAt === null ? { kind: "by_hand" } : { kind: "planned", at: before.nextRetryAt };
}

function entriesOf(run: RunFacts, due: Due): TimelineEntry[] {
  const { id: runId, attempt, startedAt, endedAt } = run;
  const entries: TimelineEntry[] = [];
  if (due.kind === "by_hand") entries.push({ at: run.madeAt, event: "retry_requested", runId, attempt });
  const dueAt = due.kind === "by_hand" ? run.madeAt : due.at;
  if (dueAt !== null) entries.push({ at: dueAt, event: "due", attempt });
  if (startedAt !== null) {
    const lateMs = run.lateMs ?? (dueAt === null ? null : Math.max(0, Math.round(startedAt - dueAt)));
    entries.push({ at: startedAt, event: "started", runId, attempt, lateMs, heldFor: run.heldFor });
  }
  if (endedAt !== null) {
    const { status, responseStatus, durationMs } = run;
    entries.push({ at: endedAt, event: "ended", runId, attempt, status, responseStatus, durationMs });
    if (run.nextRetryAt !== null) {
      entries.push({ at: endedAt, event: "retry_planned", attempt: attempt + 1, dueAt: run.nextRetryAt });
    }
  }
  return entries;
}

function byTime(one: TimelineEntry, other: TimelineEntry): number {
  return one.at - other.at || TIMELINE_EVENTS.indexOf(one.event) - TIMELINE_EVENTS.indexOf(other.event);
}
