import type { HostStanding, HostState } from "../domain/host-state.ts";
import type { QuotaPercent } from "../domain/plan.ts";
import type { MissedFirings, SkippedStatus } from "../domain/schedule.ts";
import type { Environment, Region } from "../domain/scope.ts";
import type { DisabledReason, EventType, JOB_END_TYPES } from "../domain/webhook.ts";
import type { EventView } from "./event.ts";
import { type RunFacts, viewRun } from "./run.ts";
import { timestampOf } from "./timestamp.ts";

/** The text of an event, made from the facts that the store knows. */

/** An event as the store knows it. Instants are milliseconds since 1970. */
export type EventFacts = EventHead & Happening;

export interface EventHead {
  id: string;
  occurredAt: number;
  apiVersion: string;
  projectId: string;
  environment: Environment;
}

/** The facts of what happened, by the type of the event. */
export type Happening =
  | { type: (typeof JOB_END_TYPES)[number]; job: EventJobFacts; run: EventRunFacts }
  /** `run` is the last one; null if none has started. */
  | { type: "job.canceled"; job: EventJobFacts; run: EventRunFacts | null }
  | { type: "schedule.firing_missed"; schedule: EventScheduleFacts; missed: MissedFirings }
  | { type: "schedule.firing_skipped"; schedule: EventScheduleFacts; at: number; status: SkippedStatus }
  | { type: "webhook.disabled"; webhook: { id: string; url: string; reason: DisabledReason } }
  | { type: "quota.reached"; quota: QuotaFacts }
  /** The host as it was then. */
  | { type: "host.down" | "host.up"; host: EventHostFacts };

export type EventHostFacts = Pick<HostStanding, "host" | "since" | "parked">;

export interface QuotaFacts {
  /** YYYY-MM */
  period: string;
  percent: QuotaPercent;
  runs: number;
  runsIncluded: number;
}

export interface EventScheduleFacts {
  id: string;
  name: string;
}

export interface EventJobFacts {
  id: string;
  targetUrl: string;
  region: Region;
  attempts: number;
  scheduleId: string | null;
  createdAt: number;
  tags: string[] | null;
}

export type EventRunFacts = Omit<RunFacts, "jobId" | "nextRetryAt">;

/** The id whose bits name the trace of an event that joins none: its job's id, or its own if it is about no job. */
export function traceSubject(facts: EventFacts): string {
  return "job" in facts ? facts.job.id : facts.id;
}

/** The JSON text that webhook endpoints receive. The same facts give the same bytes, on every retry and to every endpoint. */
export function eventText(facts: EventFacts): string {
  return JSON.stringify(viewEvent(facts));
}

function viewEvent(facts: EventFacts): EventView {
  const head = <Word extends EventType>(type: Word) => ({
    id: facts.id,
    type,
    created_at: timestampOf(facts.occurredAt),
    api_version: facts.apiVersion,
    project_id: facts.projectId,
    environment: facts.environment,
  });
  switch (facts.type) {
    case "job.succeeded":
    case "job.failed": {
      const { type, job, run } = facts;
      const status = type === "job.succeeded" ? "succeeded" : "failed";
      return { ...head(type), data: { job: viewJob(job, status), run: viewEventRun(job, run) } };
    }
    case "job.canceled": {
      const { type, job, run } = facts;
      const lastRun = run && viewEventRun(job, run);
      return { ...head(type), data: { job: viewJob(job, "canceled"), run: lastRun } };
    }
    case "schedule.firing_missed": {
      const { type, schedule, missed } = facts;
      return { ...head(type), data: { schedule: viewSchedule(schedule), firing: viewMissed(missed) } };
    }
    case "schedule.firing_skipped": {
      const { type, schedule, at, status } = facts;
      const firing = { at: timestampOf(at), status, job_id: null };
      return { ...head(type), data: { schedule: viewSchedule(schedule), firing } };
    }
    case "quota.reached": {
      const { period, percent, runs, runsIncluded: runs_included } = facts.quota;
      return { ...head(facts.type), data: { quota: { period, percent, runs, runs_included } } };
    }
    case "webhook.disabled": {
      const { id, url, reason } = facts.webhook;
      return { ...head(facts.type), data: { webhook: { id, url, reason } } };
    }
    case "host.down": {
      const { type, host } = facts;
      return { ...head(type), data: { host: viewHost(host, "down") } };
    }
    case "host.up": {
      const { type, host } = facts;
      return { ...head(type), data: { host: viewHost(host, "opening") } };
    }
  }
}

const viewHost = <State extends HostState>({ host, since, parked }: EventHostFacts, state: State) => ({
  host,
  state,
  since: timestampOf(since),
  parked,
});

const viewSchedule = ({ id, name }: EventScheduleFacts) => ({ id, name });

function viewMissed({ fromAt, toAt, count }: MissedFirings) {
  const status = "missed_outage" as const;
  if (count === 1) return { at: timestampOf(fromAt), status, job_id: null };
  return { from: timestampOf(fromAt), to: timestampOf(toAt), count, status };
}

const viewJob = <Status extends string>(job: EventJobFacts, status: Status) => ({
  id: job.id,
  status,
  target_url: job.targetUrl,
  region: job.region,
  attempts: job.attempts,
  schedule_id: job.scheduleId,
  created_at: timestampOf(job.createdAt),
  ...(job.tags !== null && { tags: job.tags }),
});

const viewEventRun = ({ id: jobId }: EventJobFacts, run: EventRunFacts) =>
  viewRun({ ...run, jobId, nextRetryAt: null });
