import type { Static } from "@sinclair/typebox";
import { KEY_LIFE_HOURS } from "../../domain/idempotency.ts";
import {
  type Firing,
  FiringList,
  FiringListParameters,
  SchedulePreview,
  SchedulePreviewRequest,
} from "../firing.ts";
import { Job } from "../job.ts";
import { NEXT_CURSOR_EXAMPLE } from "../list.ts";
import {
  DeletedSchedule,
  NewScheduleRequest,
  Schedule,
  ScheduleId,
  ScheduleList,
  ScheduleListParameters,
  ScheduleName,
  SchedulePutRequest,
  ScheduleUpdateRequest,
} from "../schedule.ts";
import { JOB_EXAMPLE } from "./jobs.ts";
import { operation } from "./operation.ts";

const SCHEDULE_ID = "sch_01m7ybr3kgsnpd4n830jn3f3ba";

const SCHEDULE_REQUEST_EXAMPLE: Static<typeof NewScheduleRequest> = {
  name: "nightly-invoices",
  cron: "30 2 * * *",
  timezone: "Europe/Berlin",
  target_url: "https://example.com/hooks/invoices",
  payload: { kind: "nightly" },
  tags: ["invoices"],
};

const { name: _, ...SCHEDULE_PUT_EXAMPLE } = SCHEDULE_REQUEST_EXAMPLE;

const SCHEDULE_EXAMPLE: Static<typeof Schedule> = {
  id: SCHEDULE_ID,
  name: SCHEDULE_REQUEST_EXAMPLE.name,
  cron: "30 2 * * *",
  timezone: "Europe/Berlin",
  target_url: SCHEDULE_REQUEST_EXAMPLE.target_url,
  payload: { kind: "nightly" },
  retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3_600 },
  paused: false,
  next_run_at: "2027-03-28T01:30:00.000Z",
  created_at: "2026-11-21T06:12:25.328Z",
  tags: ["invoices"],
};

const FIRING_EXAMPLE: Static<typeof Firing> = {
  at: "2027-03-28T01:30:00.000Z",
  local_time: "2027-03-28T03:30:00+02:00",
  status: "fired",
  job_id: "job_01m7ybr3kgsnpd4n830jn3f3ba",
  moved_dst: true,
};

const PREVIEW_EXAMPLE: Static<typeof SchedulePreview> = {
  cron: "30 2 * * *",
  timezone: "Europe/Berlin",
  firings: [{ at: FIRING_EXAMPLE.at, local_time: FIRING_EXAMPLE.local_time, moved_dst: true }],
  min_gap_seconds: 86_400,
  plan: { active_schedules: 3, limit: 1_000, allowed: true },
};

export const SCHEDULE_OPERATIONS = {
  createSchedule: operation({
    method: "POST",
    path: "/v2/schedules",
    resource: "schedules",
    summary: "Create a schedule",
    description:
      "Its jobs run in the project's default_region of the moment of each firing. With fixed hours every matching local " +
      "time fires exactly once: one that a clock change skips fires later by the length of the gap, and a repeated one " +
      "fires the first time only. With `*` anywhere in the hour field (`*/2`, `1,*/6`) it fires at every real instant whose local " +
      "time matches. A schedule may be created while the month's quota is spent.",
    body: { schema: NewScheduleRequest, examples: { nightly: SCHEDULE_REQUEST_EXAMPLE } },
    status: 201,
    response: { schema: Schedule, examples: { active: SCHEDULE_EXAMPLE } },
    codes: ["invalid_cron_expression", "interval_too_short", "plan_limit_exceeded", "schedule_name_taken"],
  }),
  previewSchedule: operation({
    method: "POST",
    path: "/v2/schedules/preview",
    resource: "schedules",
    access: "read",
    summary: "Preview a timetable",
    description:
      "Tells when a schedule would fire, from the very code that fires schedules. Nothing is created. `overlap` and " +
      "`spread_seconds` are judged as those of a schedule, and `firings` are without the spread. Under an Idempotency-Key " +
      `it is answered for ${KEY_LIFE_HOURS} hours as it was the first time.`,
    body: {
      schema: SchedulePreviewRequest,
      examples: { nextFive: { cron: "30 2 * * *", timezone: "Europe/Berlin" } },
    },
    response: { schema: SchedulePreview, examples: { acrossAClockChange: PREVIEW_EXAMPLE } },
    codes: ["invalid_cron_expression", "interval_too_short"],
  }),
  listSchedules: operation({
    method: "GET",
    path: "/v2/schedules",
    resource: "schedules",
    summary: "List schedules",
    description:
      "Newest first. A page of large payloads holds fewer than `limit`: `next_cursor` alone tells whether others follow.",
    query: ScheduleListParameters,
    response: {
      schema: ScheduleList,
      examples: { firstPage: { data: [SCHEDULE_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  getSchedule: operation({
    method: "GET",
    path: "/v2/schedules/{schedule_id}",
    id: ScheduleId,
    resource: "schedules",
    summary: "Get a schedule",
    description: "A schedule of another project or of the other environment is not found.",
    response: { schema: Schedule, examples: { active: SCHEDULE_EXAMPLE } },
  }),
  getScheduleByName: operation({
    method: "GET",
    path: "/v2/schedules/by-name/{name}",
    id: ScheduleName,
    resource: "schedules",
    summary: "Get a schedule by its name",
    description: "The schedule that has this name now. A schedule of the other environment is not found.",
    response: { schema: Schedule, examples: { active: SCHEDULE_EXAMPLE } },
  }),
  putSchedule: operation({
    method: "PUT",
    path: "/v2/schedules/by-name/{name}",
    id: ScheduleName,
    resource: "schedules",
    summary: "Make a schedule be so",
    description:
      "Creates the schedule of this name (201), or changes the one that has it to what the body says (200). What is so already " +
      "stays: the same PUT again changes nothing, not even `next_run_at`. So it is safe to send again, and an Idempotency-Key is " +
      "ignored. A schedule that is there keeps its id, and with it the time by which its spread delays its jobs.",
    body: { schema: SchedulePutRequest, examples: { nightly: SCHEDULE_PUT_EXAMPLE } },
    response: { schema: Schedule, examples: { active: SCHEDULE_EXAMPLE } },
    mayCreate: true,
    codes: ["invalid_cron_expression", "interval_too_short", "plan_limit_exceeded"],
  }),
  updateSchedule: operation({
    method: "PATCH",
    path: "/v2/schedules/{schedule_id}",
    id: ScheduleId,
    resource: "schedules",
    summary: "Change, pause or resume a schedule",
    description:
      "`payload` and `retry_policy` replace the whole object, and `tags` all tags. It is for firings to come: jobs that exist stay " +
      "as they are. After a pause was answered nothing fires; what was missed while paused is not replayed.",
    body: { schema: ScheduleUpdateRequest, examples: { pause: { paused: true } } },
    response: {
      schema: Schedule,
      examples: { paused: { ...SCHEDULE_EXAMPLE, paused: true, next_run_at: null } },
    },
    codes: ["invalid_cron_expression", "interval_too_short", "plan_limit_exceeded", "schedule_name_taken"],
  }),
  deleteSchedule: operation({
    method: "DELETE",
    path: "/v2/schedules/{schedule_id}",
    id: ScheduleId,
    resource: "schedules",
    summary: "Delete a schedule",
    description:
      "It never fires again, and its name is free at once. Jobs that it has created are unaffected.",
    response: { schema: DeletedSchedule, examples: { deleted: { id: SCHEDULE_ID, deleted: true } } },
  }),
  listFirings: operation({
    method: "GET",
    path: "/v2/schedules/{schedule_id}/firings",
    id: ScheduleId,
    resource: "schedules",
    summary: "List what became of a schedule's instants",
    description:
      "Every instant that the schedule's timetables had within the plan's retention window, newest first, and what " +
      "became of it. An instant that was due when a pause was answered is `skipped_paused`; one that a later timetable has " +
      "overtaken is not listed. `due_at` stands where the schedule had `spread_seconds` as it fired: then the job is due. A page " +
      "may hold fewer than `limit`, or none: `next_cursor` alone tells whether others follow.",
    query: FiringListParameters,
    response: {
      schema: FiringList,
      examples: { firstPage: { data: [FIRING_EXAMPLE], next_cursor: NEXT_CURSOR_EXAMPLE } },
    },
  }),
  runSchedule: operation({
    method: "POST",
    path: "/v2/schedules/{schedule_id}/run",
    id: ScheduleId,
    resource: "schedules",
    summary: "Run a schedule now",
    description:
      "Creates one job of the schedule at once, outside its timetable, even while it is paused. Its next firing stays " +
      "what it is, and its firings do not tell of it. A body is ignored.",
    status: 201,
    response: { schema: Job, examples: { queued: { ...JOB_EXAMPLE, tags: ["invoices"] } } },
    codes: ["quota_exceeded"],
    isTraced: true,
  }),
};
