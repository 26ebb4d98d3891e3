import { type Static, type TProperties, Type } from "@sinclair/typebox";
import { AHEAD_MAX, EXPLAINED_REASONS, type Waiting } from "../domain/explain.ts";
import { JOB_STATUSES, type JobStatus } from "../domain/job.ts";
import { RUN_STATUSES } from "../domain/run.ts";
import { TIMELINE_ENTRIES_MAX, type TimelineEntry } from "../domain/timeline.ts";
import { WAIT_REASONS, WAITED_FROM_MS } from "../domain/wait.ts";
import { DELIVERY_RETENTION_DAYS } from "../domain/webhook.ts";
import { EventId, EventTypeSchema } from "./event.ts";
import { JobId } from "./job.ts";
import { RunId } from "./run.ts";
import { Timestamp, timestampOf, timestampOrNull } from "./timestamp.ts";
import { wordOf } from "./validator.ts";
import { WebhookId } from "./webhook.ts";

/** The answer of GET /v2/jobs/{job_id}/explain: why a job waits, and what has happened to it. */

const closed = { additionalProperties: false } as const;
const orNull = <Schema extends Parameters<typeof Type.Union>[0][number]>(
  schema: Schema,
  description: string,
) => Type.Union([schema, Type.Null()], { description });
const Count = Type.Integer({ minimum: 0 });
const Attempt = Type.Integer({ minimum: 1, description: "The attempt's number, from 1." });
const ResponseStatus = orNull(Type.Integer(), "The HTTP status that came back; null if none did.");

export const WaitReasonSchema = wordOf(WAIT_REASONS, "What an attempt waited for.", "WaitReason");

const WaitingSchema = Type.Object(
  {
    for: wordOf(
      EXPLAINED_REASONS,
      "The first that applies: `hold`, an operator's; `quota`, the month's; `no_worker`, nobody of the service looks after the " +
        "job; `due_time` and `backoff`, it is not due yet; `host`, its host takes no more now, is down, or comes back; " +
        "`flow`, its flow key lets no more start now; `concurrency`, the project's limit; " +
        "`turn`, nothing is in its way.",
    ),
    since: Timestamp,
    until: orNull(Timestamp, "When that ends; null if nobody knows."),
    ahead: orNull(
      Type.Integer({ minimum: 0, maximum: AHEAD_MAX }),
      `How many due attempts go before it, in the order of their due times, then of their ids; null beyond ${AHEAD_MAX}, and where ` +
        "there is no such order.",
    ),
    limit: Type.Optional({ ...Count, description: "The limit that is reached." }),
    in_use: Type.Optional({ ...Count, description: "How much of the limit is in use." }),
    flow_key: Type.Optional(Type.String({ description: "The job's flow key." })),
    host: Type.Optional(Type.String({ description: "The target's host." })),
    message: Type.String({ description: "The same as a sentence." }),
  },
  {
    ...closed,
    title: "Waiting",
    description:
      "Why the attempt that is owed has not been sent. It could have run from `since` on, but for that.",
  },
);

const entry = <Name extends TimelineEntry["event"], Fields extends TProperties>(
  name: Name,
  title: string,
  fields: Fields,
) => Type.Object({ at: Timestamp, event: Type.Literal(name), ...fields }, { ...closed, title });
const told = { event_id: EventId, webhook_id: WebhookId, response_status: ResponseStatus };

const TimelineEntrySchema = Type.Union([
  entry("created", "Created", {}),
  entry("due", "Due", { attempt: Attempt }),
  entry("started", "Started", {
    run_id: RunId,
    attempt: Attempt,
    late_ms: orNull(
      Count,
      "From when it was due until the instant before its request was dialled, which is a little after the start; null if its due time is not known any more.",
    ),
    held_for: orNull(
      WaitReasonSchema,
      `Why it was refused a start before; null if it was not, started within ${WAITED_FROM_MS} ms, is in progress, or nobody remembers.`,
    ),
  }),
  entry("ended", "Ended", {
    run_id: RunId,
    attempt: Attempt,
    status: wordOf(RUN_STATUSES, "What the attempt came to.", "RunStatus"),
    response_status: ResponseStatus,
    duration_ms: Count,
  }),
  entry("retry_planned", "RetryPlanned", { attempt: Attempt, due_at: Timestamp }),
  entry("retry_requested", "RetryRequested", { run_id: RunId, attempt: Attempt }),
  entry("cancel_requested", "CancelRequested", {}),
  entry("event_created", "EventCreated", { event_id: EventId, type: EventTypeSchema }),
  entry("event_delivered", "EventDelivered", told),
  entry("event_failed", "EventFailed", told),
]);

export const JobExplanation = Type.Object(
  {
    job_id: JobId,
    status: wordOf(JOB_STATUSES, "Where the job is in its life.", "JobStatus"),
    as_of: Timestamp,
    waiting: orNull(WaitingSchema, "Null if the job is over, or its attempt is in progress."),
    timeline: Type.Array(TimelineEntrySchema, {
      description:
        `What has happened, oldest first, as far as it is known: runs within retention, deliveries of ${DELIVERY_RETENTION_DAYS} days, the latest ` +
        `${TIMELINE_ENTRIES_MAX} entries.`,
    }),
  },
  { ...closed, title: "JobExplanation", description: "Why a job waits, and what has happened to it." },
);

/** Instants are milliseconds since 1970. */
export function viewExplanation(explained: {
  jobId: string;
  status: JobStatus;
  asOf: number;
  waiting: Waiting | null;
  timeline: readonly TimelineEntry[];
}): Static<typeof JobExplanation> {
  return {
    job_id: explained.jobId,
    status: explained.status,
    as_of: timestampOf(explained.asOf),
    waiting: explained.waiting === null ? null : viewWaiting(explained.waiting),
    timeline: explained.timeline.map(viewEntry),
  };
}

function viewWaiting({ inUse, ...waiting }: Waiting): Static<typeof WaitingSchema> {
  return {
    for: waiting.for,
    since: timestampOf(waiting.since),
    until: timestampOrNull(waiting.until),
    ahead: waiting.ahead,
    ...(waiting.limit !== undefined && { limit: waiting.limit }),
    ...(inUse !== undefined && { in_use: inUse }),
    ...(waiting.flowKey !== undefined && { flow_key: waiting.flowKey }),
    ...(waiting.host !== undefined && { host: waiting.host }),
    message: waiting.message,
  };
}

function viewEntry(entry: TimelineEntry): Static<typeof TimelineEntrySchema> {
  const at = timestampOf(entry.at);
  switch (entry.event) {
    case "created":
    case "cancel_requested":
      return { at, event: entry.event };
    case "due":
      return { at, event: entry.event, attempt: entry.attempt };
    case "started": {
      const { event, runId, attempt, lateMs, heldFor } = entry;
      return { at, event, run_id: runId, attempt, late_ms: lateMs, held_for: heldFor };
    }
    case "ended": {
      const { event, runId, attempt, status, responseStatus, durationMs } = entry;
      return {
        at,
        event,
        run_id: runId,
        attempt,
        status,
        response_status: responseStatus,
        duration_ms: durationMs,
      };
    }
    case "retry_planned":
      return { at, event: entry.event, attempt: entry.attempt, due_at: timestampOf(entry.dueAt) };
    case "retry_requested":
      return { at, event: entry.event, run_id: entry.runId, attempt: entry.attempt };
    case "event_created":
      return { at, event: entry.event, event_id: entry.eventId, type: entry.type };
    case "event_delivered":
    case "event_failed": {
      const { event, eventId, webhookId, responseStatus } = entry;
      return { at, event, event_id: eventId, webhook_id: webhookId, response_status: responseStatus };
    }
  }
}
