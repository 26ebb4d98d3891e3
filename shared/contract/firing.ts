import { type Static, Type } from "@sinclair/typebox";
import { minGapSeconds } from "../domain/cron/gap.ts";
import { localTimeOf, type Zone } from "../domain/cron/zone.ts";
import { invalidRequest } from "../domain/errors.ts";
import { parseInstant } from "../domain/job.ts";
import { parseQuery, readPage } from "../domain/page.ts";
import {
  acceptTimetable,
  checkSpread,
  FIRING_STATUSES,
  type FiringStatus,
  PREVIEW_FIRINGS_DEFAULT,
  PREVIEW_FIRINGS_MAX,
  REPLACED_JOBS_MAX,
  type Timetable,
} from "../domain/schedule.ts";
import { JobId } from "./job.ts";
import { listOf, pageParameters } from "./list.ts";
import { CronExpression, type OverlapFacts, overlapFields, Timezone, viewOverlap } from "./schedule.ts";
import { Timestamp, timestampOf } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

/** The instants of a timetable: those that will fire, and what became of the past ones. */

const closed = { additionalProperties: false } as const;

const LocalTime = Type.String({
  description: "The same instant on the wall clock of the time zone, with its offset.",
  examples: ["2026-03-29T03:30:00+02:00"],
});
const MovedDst = Type.Boolean({
  description:
    "Whether a clock change skipped the matching local time, so that it fires later by the length of the gap.",
});

export const SchedulePreviewRequest = Type.Object(
  {
    cron: CronExpression,
    timezone: Type.Optional(Timezone),
    from: Type.Optional(
      Type.String({
        documented: { format: "date-time" },
        description: "ISO 8601 with Z or an offset: firings after this instant. By default after now.",
      }),
    ),
    count: Type.Optional(
      Type.Integer({ minimum: 1, maximum: PREVIEW_FIRINGS_MAX, default: PREVIEW_FIRINGS_DEFAULT }),
    ),
    ...overlapFields,
  },
  { ...closed, title: "SchedulePreviewRequest" },
);
export const SchedulePreview = Type.Object(
  {
    cron: CronExpression,
    timezone: Timezone,
    firings: Type.Array(Type.Object({ at: Timestamp, local_time: LocalTime, moved_dst: MovedDst }, closed)),
    min_gap_seconds: Type.Integer({
      description: "The smallest gap between two firings of the timetable, clock changes not considered.",
    }),
    ...overlapFields,
    plan: Type.Object(
      {
        active_schedules: Type.Integer({ description: "Over both environments." }),
        limit: Type.Integer(),
        allowed: Type.Boolean({ description: "Whether one more active schedule would be accepted now." }),
      },
      closed,
    ),
  },
  { ...closed, title: "SchedulePreview" },
);

const FiringStatusSchema = wordOf(FIRING_STATUSES, "What became of the instant.", "FiringStatus");
export const Firing = Type.Object(
  {
    at: Timestamp,
    local_time: LocalTime,
    status: FiringStatusSchema,
    job_id: Type.Union([JobId, Type.Null()], {
      description: "The job that was created; null unless fired or backfilled.",
    }),
    moved_dst: MovedDst,
    due_at: Type.Optional(Timestamp),
    replaced: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: REPLACED_JOBS_MAX,
        description:
          "How many jobs were canceled for it, where the schedule had the overlap `replace` as it fired.",
      }),
    ),
  },
  {
    ...closed,
    title: "Firing",
    description: "One instant of a schedule's timetable, and what became of it.",
  },
);
export const FiringList = listOf(Firing, "FiringList");
export const FiringListParameters = Type.Object(pageParameters);

/** A preview as a client asks for it. Instants are milliseconds since 1970. */
export interface AcceptedPreview extends OverlapFacts {
  timetable: Timetable;
  from: number;
  count: number;
}

/** The body of POST /v2/schedules/preview. Throws ApiError. */
export function readSchedulePreview(value: unknown, now: number): AcceptedPreview {
  const request = validatePreview(value);
  const { cron, timezone = "UTC", from: text, count = PREVIEW_FIRINGS_DEFAULT } = request;
  const { overlap = null, spread_seconds: spreadSeconds = null } = request;
  const timetable = acceptTimetable(cron, timezone);
  const from = text === undefined ? now : parseInstant(text);
  if (from === null)
    throw invalidRequest("from must be an ISO 8601 date and time with Z or an offset.", "from");
  checkSpread(spreadSeconds, timetable);
  return { timetable, from, count, overlap, spreadSeconds };
}

/** The query string of GET /v2/schedules/{id}/firings. Throws ApiError. */
export function readFiringListQuery(query: string) {
  return readPage(parseQuery(query, namesOf(FiringListParameters)));
}

/** An instant of a timetable, and whether it fired. */
export interface FiringFacts {
  at: number;
  zone: Zone;
  status: FiringStatus;
  jobId: string | null;
  movedByClockChange: boolean;
  /** Null unless the schedule had a spread. */
  dueAt: number | null;
  /** Null unless the schedule replaced jobs. */
  replaced: number | null;
}

export function viewFiring({
  at,
  zone,
  status,
  jobId,
  movedByClockChange,
  dueAt,
  replaced,
}: FiringFacts): Static<typeof Firing> {
  return {
    at: timestampOf(at),
    local_time: localTimeOf(zone, at),
    status,
    job_id: jobId,
    moved_dst: movedByClockChange,
    ...(dueAt === null ? {} : { due_at: timestampOf(dueAt) }),
    ...(replaced === null ? {} : { replaced }),
  };
}

/** The next firings of a timetable, and whether a schedule that has it would be accepted now. */
export function viewPreview(
  { timetable: { expression, cron, zone }, ...given }: AcceptedPreview,
  firings: readonly { at: number; movedByClockChange: boolean }[],
  schedules: { active: number; limit: number },
): Static<typeof SchedulePreview> {
  return {
    cron: expression,
    timezone: zone.name,
    firings: firings.map(({ at, movedByClockChange }) => ({
      at: timestampOf(at),
      local_time: localTimeOf(zone, at),
      moved_dst: movedByClockChange,
    })),
    min_gap_seconds: minGapSeconds(cron),
    ...viewOverlap(given),
    plan: {
      active_schedules: schedules.active,
      limit: schedules.limit,
      allowed: schedules.active < schedules.limit,
    },
  };
}

const validatePreview = validatorOf(SchedulePreviewRequest);
