import { type Static, type TSchema, Type } from "@sinclair/typebox";
import { DELIVERY_WINDOW_HOURS } from "../domain/delivery.ts";
import type { HostState } from "../domain/host-state.ts";
import { EVENT_PREFIX, PROJECT_PREFIX, SCHEDULE_PREFIX, WEBHOOK_PREFIX } from "../domain/ids.ts";
import { QUOTA_PERCENTS, type QuotaPercent } from "../domain/plan.ts";
import { SKIPPED_STATUSES } from "../domain/schedule.ts";
import { ENVIRONMENTS } from "../domain/scope.ts";
import { DISABLED_REASONS, EVENT_TYPES, type EventType, JOB_END_TYPES } from "../domain/webhook.ts";
import { hostFields, Parked } from "./host.ts";
import { idOf } from "./id.ts";
import { JobId, RegionSchema, TargetUrl, tagsOf } from "./job.ts";
import { MONTH_PATTERN } from "./project.ts";
import { Run } from "./run.ts";
import { Timestamp } from "./timestamp.ts";
import { wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

export const EventId = idOf(EVENT_PREFIX, "The id of an event.");
export const EventTypeSchema = wordOf(
  EVENT_TYPES,
  "What happened. `job.succeeded` and `job.failed`: a job has come to its end; one that is retried by hand has a second. " +
    "`job.canceled`: a job was canceled, whoever did it. `schedule.firing_missed`: an outage of the service cost a schedule " +
    "firings; what was not to fire while it was paused is not told. `schedule.firing_skipped`: an instant came and made no job, for " +
    "want of quota, or since others of the schedule were not over (`overlap`). `webhook.disabled`: another endpoint of the environment was disabled. " +
    "`quota.reached`: 80 % or 100 % of the runs that the plan includes in a month are used; each is told once a month, on every plan. " +
    "`host.down`: attempts at a target host are parked. `host.up`: they start again, slowly at first.",
  "EventType",
);

/** The schema of a job in events about jobs of these statuses. */
function eventJobOf<Status extends string>(statuses: readonly Status[], attemptsMin: number, title: string) {
  return Type.Object(
    {
      id: JobId,
      status: wordOf(statuses, "What became of the job."),
      target_url: TargetUrl,
      region: RegionSchema,
      attempts: Type.Integer({ minimum: attemptsMin, description: "Runs recorded so far." }),
      schedule_id: Type.Union([idOf(SCHEDULE_PREFIX, "The id of a schedule."), Type.Null()], {
        description: "The schedule that made the job; null for any other job.",
      }),
      created_at: Timestamp,
      tags: Type.Optional(tagsOf(1, "The job's tags. Absent from a job without any.")),
    },
    { ...closed, title, description: "A job as events tell of it: without its payload." },
  );
}

/** The schema of events of these types. All events have the same envelope. */
function eventOf<Word extends EventType, Data extends TSchema>(
  types: readonly Word[],
  data: Data,
  { title, description }: { title: string; description: string },
) {
  return Type.Object(
    {
      id: EventId,
      type: wordOf(types, "What happened."),
      created_at: Timestamp,
      api_version: Type.String({ description: "What the project was pinned to.", examples: ["2026-11-01"] }),
      project_id: idOf(PROJECT_PREFIX, "The id of a project."),
      environment: wordOf(ENVIRONMENTS, "The environment in which it happened."),
      data,
    },
    { ...closed, title, description },
  );
}

const JobEndEvent = eventOf(
  JOB_END_TYPES,
  Type.Object(
    { job: eventJobOf(["succeeded", "failed"], 1, "EventJob"), run: Run },
    { ...closed, description: "The job, and its last run." },
  ),
  { title: "JobEndEvent", description: "A job has come to its end." },
);
const JobCanceledEvent = eventOf(
  ["job.canceled"],
  Type.Object(
    {
      job: eventJobOf(["canceled"], 0, "CanceledEventJob"),
      run: Type.Union([Run, Type.Null()], {
        description: "Its last run, which may be in progress; null if none has started.",
      }),
    },
    { ...closed, description: "The job, and its last run." },
  ),
  { title: "JobCanceledEvent", description: "A job was canceled." },
);

const EventSchedule = Type.Object(
  { id: idOf(SCHEDULE_PREFIX, "The id of a schedule."), name: Type.String() },
  { ...closed, title: "EventSchedule", description: "A schedule as events tell of it." },
);
const FiringMissedEvent = eventOf(
  ["schedule.firing_missed"],
  Type.Object(
    {
      schedule: EventSchedule,
      firing: Type.Union([
        Type.Object(
          { at: Timestamp, status: Type.Literal("missed_outage"), job_id: Type.Null() },
          {
            ...closed,
            title: "MissedFiring",
            description: "One instant, as the ledger of firings shows it.",
          },
        ),
        Type.Object(
          {
            from: Timestamp,
            to: Timestamp,
            count: Type.Integer({ minimum: 2 }),
            status: Type.Literal("missed_outage"),
          },
          {
            ...closed,
            title: "MissedFirings",
            description: "Several instants in a row: the first, the last, and how many.",
          },
        ),
      ]),
    },
    closed,
  ),
  {
    title: "FiringMissedEvent",
    description: "An outage of the service cost a schedule firings. It is told once for all of them.",
  },
);

const FiringSkippedEvent = eventOf(
  ["schedule.firing_skipped"],
  Type.Object(
    {
      schedule: EventSchedule,
      firing: Type.Object(
        { at: Timestamp, status: wordOf(SKIPPED_STATUSES, "Why it made no job."), job_id: Type.Null() },
        { ...closed, title: "SkippedFiring", description: "The instant, as the ledger of firings shows it." },
      ),
    },
    closed,
  ),
  { title: "FiringSkippedEvent", description: "An instant of a schedule came and made no job." },
);

const WebhookDisabledEvent = eventOf(
  ["webhook.disabled"],
  Type.Object(
    {
      webhook: Type.Object(
        {
          id: idOf(WEBHOOK_PREFIX, "The id of a webhook endpoint."),
          url: Type.String({ documented: { format: "uri" } }),
          reason: wordOf(
            DISABLED_REASONS,
            `\`failing\`: everything sent to it has failed for ${DELIVERY_WINDOW_HOURS} hours. \`patched\`: a request has disabled it.`,
          ),
        },
        { ...closed, title: "EventWebhook", description: "A webhook endpoint as events tell of it." },
      ),
    },
    closed,
  ),
  { title: "WebhookDisabledEvent", description: "Another endpoint of the environment was disabled." },
);

const QuotaReachedEvent = eventOf(
  ["quota.reached"],
  Type.Object(
    {
      quota: Type.Object(
        {
          period: Type.String({ pattern: MONTH_PATTERN, description: "The UTC month, YYYY-MM." }),
          percent: Type.Unsafe<QuotaPercent>(
            Type.Integer({
              enum: [...QUOTA_PERCENTS],
              description: "The part of the runs included that is used.",
            }),
          ),
          runs: Type.Integer({
            minimum: 0,
            description: "Runs started this month by then, over both environments.",
          }),
          runs_included: Type.Integer({ minimum: 0, description: "Runs a month that the plan includes." }),
        },
        { ...closed, title: "EventQuota", description: "What the project has used of its month's runs." },
      ),
    },
    closed,
  ),
  {
    title: "QuotaReachedEvent",
    description:
      "The project has used this part of the runs that its plan includes. Both environments are told.",
  },
);

const hostEventOf = <Name extends "host.down" | "host.up", State extends HostState>(
  type: Name,
  state: State,
  title: string,
  description: string,
) =>
  eventOf(
    [type],
    Type.Object(
      {
        host: Type.Object(
          { ...hostFields, state: Type.Literal(state), since: Timestamp, parked: Parked },
          { ...closed, title: `${title}Host`, description: "A target host as events tell of it." },
        ),
      },
      closed,
    ),
    { title, description },
  );
const HostDownEvent = hostEventOf(
  "host.down",
  "down",
  "HostDownEvent",
  "A target host is down: the attempts at it are parked.",
);
const HostUpEvent = hostEventOf(
  "host.up",
  "opening",
  "HostUpEvent",
  "A target host is up again: what was parked starts, at a rate that doubles.",
);

export const Event = Type.Union(
  [
    JobEndEvent,
    JobCanceledEvent,
    FiringMissedEvent,
    FiringSkippedEvent,
    WebhookDisabledEvent,
    QuotaReachedEvent,
    HostDownEvent,
    HostUpEvent,
  ],
  {
    title: "Event",
    description: "What an endpoint hears of. Its `type` tells what `data` holds.",
  },
);

export type EventView = Static<typeof Event>;
