import { type Static, Type } from "@sinclair/typebox";
import {
  EVENT_PREFIX,
  JOB_PREFIX,
  PROJECT_PREFIX,
  RUN_PREFIX,
  retypeId,
  SCHEDULE_PREFIX,
} from "../domain/ids.ts";
import type { RunStatus } from "../domain/run.ts";
import { ENVIRONMENTS, type Environment, type Region } from "../domain/scope.ts";
import { EVENT_TYPES, type EventType } from "../domain/webhook.ts";
import { idOf } from "./id.ts";
import { JobId, RegionSchema, TargetUrl } from "./job.ts";
import { Run, viewRun } from "./run.ts";
import { Timestamp, timestampOf } from "./timestamp.ts";
import { wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

export const EventId = idOf(EVENT_PREFIX, "The id of an event.");
export const EventTypeSchema = wordOf(EVENT_TYPES, "What happened.", "EventType");

const EventJob = Type.Object(
  {
    id: JobId,
    status: wordOf(["succeeded", "failed"], "What became of the job."),
    target_url: TargetUrl,
    region: RegionSchema,
    attempts: Type.Integer({ minimum: 1, description: "Runs recorded so far." }),
    schedule_id: Type.Union([idOf(SCHEDULE_PREFIX, "The id of a schedule."), Type.Null()], {
      description: "The schedule that made the job; null for any other job.",
    }),
    created_at: Timestamp,
  },
  { ...closed, title: "EventJob", description: "A job as events tell of it: without its payload." },
);

export const Event = Type.Object(
  {
    id: EventId,
    type: EventTypeSchema,
    created_at: Timestamp,
    api_version: Type.String({ description: "What the project was pinned to.", examples: ["2026-11-01"] }),
    project_id: idOf(PROJECT_PREFIX, "The id of a project."),
    environment: wordOf(ENVIRONMENTS, "The environment of the job."),
    data: Type.Object({ job: EventJob, run: Run }, { ...closed, description: "The job, and its last run." }),
  },
  { ...closed, title: "Event", description: "A job has come to its end." },
);

export type EventView = Static<typeof Event>;

/** An event as the store knows it. Instants are milliseconds since 1970. */
export interface EventFacts {
  id: string;
  type: EventType;
  occurredAt: number;
  apiVersion: string;
  projectId: string;
  environment: Environment;
  job: {
    id: string;
    targetUrl: string;
    region: Region;
    attempts: number;
    scheduleId: string | null;
    createdAt: number;
  };
  /** The job's last run. */
  run: {
    id: string;
    attempt: number;
    status: RunStatus;
    responseStatus: number | null;
    error: string | null;
    startedAt: number;
    durationMs: number;
  };
}

/** The JSON text that webhook endpoints receive. The same facts give the same bytes, on every retry and to every endpoint. */
export function eventText(facts: EventFacts): string {
  return JSON.stringify(viewEvent(facts));
}

function viewEvent({ job, run, ...event }: EventFacts): EventView {
  return {
    id: event.id,
    type: event.type,
    created_at: timestampOf(event.occurredAt),
    api_version: event.apiVersion,
    project_id: event.projectId,
    environment: event.environment,
    data: {
      job: {
        id: job.id,
        status: event.type === "job.succeeded" ? "succeeded" : "failed",
        target_url: job.targetUrl,
        region: job.region,
        attempts: job.attempts,
        schedule_id: job.scheduleId,
        created_at: timestampOf(job.createdAt),
      },
      run: viewRun({ ...run, jobId: job.id, nextRetryAt: null }),
    },
  };
}

/** The part of an event that is recorded with it; the job is read when it is sent. */
export type RecordedEvent = Omit<EventFacts, "job" | "run"> & {
  region: Region;
  run: Omit<EventFacts["run"], "id">;
};

export type SampleRun = Omit<RecordedEvent["run"], "startedAt">;

/** The made-up run that a sample event shows. */
export function sampleRun(type: EventType): SampleRun {
  const common = { attempt: 1, durationMs: 120 };
  switch (type) {
    case "job.succeeded":
      return { ...common, status: "succeeded", responseStatus: 200, error: null };
    case "job.failed":
      return {
        ...common,
        status: "failed",
        responseStatus: 500,
        error: "The target answered 500 with an empty body.",
      };
  }
}

const SAMPLE_TARGET_URL = "https://example.com/hooks/sample";

/** The facts of a sample event. Its job and run do not exist; their ids have the bits of the event's id. */
export function sampleFacts({ region, run, ...event }: RecordedEvent): EventFacts {
  return {
    ...event,
    job: {
      id: retypeId(event.id, JOB_PREFIX),
      targetUrl: SAMPLE_TARGET_URL,
      region,
      attempts: run.attempt,
      scheduleId: null,
      createdAt: run.startedAt,
    },
    run: { id: retypeId(event.id, RUN_PREFIX), ...run },
  };
}
