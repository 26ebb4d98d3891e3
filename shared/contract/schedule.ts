import { type Static, Type } from "@sinclair/typebox";
import { CRON_CHARACTERS_MAX, GAP_SECONDS_MIN } from "../domain/cron/cron.ts";
import { invalidRequest } from "../domain/errors.ts";
import { checkFlow } from "../domain/flow-key.ts";
import { SCHEDULE_PREFIX } from "../domain/ids.ts";
import { completeRetryPolicy } from "../domain/job.ts";
import { checkName } from "../domain/name.ts";
import { filterOf, parseQuery, readPage } from "../domain/page.ts";
import {
  acceptTimetable,
  type Changeable,
  checkSpread,
  OVERLAPS,
  type Overlap,
  REPLACED_JOBS_MAX,
  SCHEDULE_NAME_CHARACTERS_MAX,
  SPREAD_SECONDS_MAX,
  type Timetable,
} from "../domain/schedule.ts";
import { checkTags } from "../domain/tags.ts";
import { checkTarget, type TargetRules } from "../domain/target.ts";
import { FlowSchema } from "./flow.ts";
import { idOf } from "./id.ts";
import { Payload, RetryPolicyRequest, RetryPolicySchema, retryPolicyOf, TargetUrl, tagsOf } from "./job.ts";
import type { Body } from "./json.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOf, timestampOrNull } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;

export const ScheduleId = idOf(SCHEDULE_PREFIX, "The id of a schedule.");

const Name = Type.String({
  documented: { minLength: 1, maxLength: SCHEDULE_NAME_CHARACTERS_MAX },
  description: "Unique within the project and environment.",
  examples: ["nightly-invoices"],
});
export const CronExpression = Type.String({
  documented: { maxLength: CRON_CHARACTERS_MAX },
  description:
    "Five fields (minute, hour, day of month, month, day of week), or six with leading seconds, or a nickname such as " +
    `@daily. Never more often than every ${GAP_SECONDS_MIN} seconds. \`7/2\` in the day of week is \`SUN/2\`. The last firing is in the ` +
    "year 9999. It is shown as it was given, without the blanks around it.",
  examples: ["30 2 * * *"],
});
export const Timezone = Type.String({
  default: "UTC",
  description: "IANA time zone name in which the expression is read.",
  examples: ["Europe/Berlin"],
});

const TAGS = "Words to find the schedule's jobs by: each job has them as they were when it was created.";

export const overlapFields = {
  overlap: Type.Optional(
    wordOf(
      OVERLAPS,
      "What a firing does while jobs of this schedule, whoever made them, are queued or running. `allow`, which is the " +
        "default, makes its job all the same. `skip` makes none, and the firing is `skipped_overlap`. `replace` first cancels those " +
        `that have not started, the oldest first and at most ${REPLACED_JOBS_MAX}. A run by hand makes its job in any case. Shown ` +
        "only where it was given.",
      "Overlap",
    ),
  ),
  spread_seconds: Type.Optional(
    Type.Integer({
      minimum: 0,
      maximum: SPREAD_SECONDS_MAX,
      description:
        "The job of each firing is due up to this much later than its instant, always by the same time for the same schedule, " +
        "so that schedules of one instant do not start together. At most half of the smallest gap between two firings. Shown " +
        "only where it was given.",
    }),
  ),
};

const creationFields = {
  cron: CronExpression,
  target_url: TargetUrl,
  timezone: Type.Optional(Timezone),
  payload: Type.Optional({ ...Payload, default: {} }),
  retry_policy: Type.Optional(RetryPolicyRequest),
  ...overlapFields,
  tags: Type.Optional(tagsOf(1, TAGS)),
  flow: Type.Optional(FlowSchema),
};
const Paused = Type.Boolean({ description: "What was missed while paused is not replayed." });

export const NewScheduleRequest = Type.Object(
  { name: Name, ...creationFields },
  { ...closed, title: "NewScheduleRequest" },
);

export const ScheduleUpdateRequest = Type.Object(
  {
    name: Type.Optional(Name),
    cron: Type.Optional(CronExpression),
    timezone: Type.Optional(Timezone),
    target_url: Type.Optional(TargetUrl),
    payload: Type.Optional(Payload),
    retry_policy: Type.Optional(RetryPolicyRequest),
    ...overlapFields,
    paused: Type.Optional(Paused),
    tags: Type.Optional(tagsOf(0, "They replace the tags for jobs to come. An empty list takes them away.")),
    flow: Type.Optional(
      Type.Union([FlowSchema, Type.Null()], {
        description: "It replaces the whole flow, for jobs to come. `null` takes it away.",
      }),
    ),
  },
  { ...closed, title: "ScheduleUpdateRequest", description: "What is left out keeps its value." },
);

export const ScheduleName = Type.String({
  documented: { minLength: 1, maxLength: SCHEDULE_NAME_CHARACTERS_MAX },
  description:
    "The name of a schedule, percent-encoded; `%2F` stands for a slash in it. The names `.` and `..` and names with a " +
    "backslash have no path.",
  examples: ["nightly-invoices"],
});

export const SchedulePutRequest = Type.Object(
  {
    name: Type.Optional({ ...Name, description: "May be left out. It is the name in the path." }),
    ...creationFields,
    paused: Type.Optional({
      ...Paused,
      description: "Left out, a new schedule is active and one that is there stays what it is.",
    }),
  },
  {
    ...closed,
    title: "SchedulePutRequest",
    description: "What is left out, except for `paused`, has the default of a creation.",
  },
);

export const Schedule = Type.Object(
  {
    id: ScheduleId,
    name: Name,
    cron: CronExpression,
    timezone: Timezone,
    target_url: TargetUrl,
    payload: Payload,
    retry_policy: RetryPolicySchema,
    ...overlapFields,
    paused: Type.Boolean({ description: "When true the schedule does not fire." }),
    next_run_at: Type.Union([Timestamp, Type.Null()], { description: "Next firing; null when paused." }),
    created_at: Timestamp,
    tags: Type.Optional(tagsOf(1, `${TAGS} Absent from a schedule without any.`)),
    flow: Type.Optional(FlowSchema),
  },
  { ...closed, title: "Schedule", description: "Creates a job at every instant of its timetable." },
);
export const ScheduleList = listOf(Schedule, "ScheduleList");
export const DeletedSchedule = Type.Object(
  { id: ScheduleId, deleted: Type.Literal(true) },
  { ...closed, title: "DeletedSchedule" },
);

const PausedParameter = wordOf(["true", "false"], "Only paused or only active schedules.");
export const ScheduleListParameters = Type.Object({
  ...pageParameters,
  paused: Type.Optional(PausedParameter),
});

/** A schedule as a client asks for it, judged; defaults filled in. */
export interface AcceptedSchedule extends Omit<Changeable, "paused"> {
  timetable: Timetable;
}

/** The body of POST /v2/schedules, parsed with "member". Throws ApiError. */
export function readNewSchedule(body: Body, targets: TargetRules): AcceptedSchedule {
  const request = validateNew(body.value);
  return acceptSchedule(request.name, request, body, targets);
}

/** The body of PUT /v2/schedules/by-name/{name}. `paused` is undefined where it is left out. Throws ApiError. */
export function readSchedulePut(
  name: string,
  body: Body,
  targets: TargetRules,
): { schedule: AcceptedSchedule; paused: boolean | undefined } {
  const request = validatePut(body.value);
  if (request.name !== undefined && request.name !== name) {
    throw invalidRequest("name must be left out, or be the name in the path.", "name");
  }
  return { schedule: acceptSchedule(name, request, body, targets), paused: request.paused };
}

function acceptSchedule(
  name: string,
  request: Omit<Static<typeof NewScheduleRequest>, "name">,
  body: Body,
  targets: TargetRules,
): AcceptedSchedule {
  checkName(name, "name", SCHEDULE_NAME_CHARACTERS_MAX);
  const timetable = acceptTimetable(request.cron, request.timezone ?? "UTC");
  checkTarget(request.target_url, "target_url", targets);
  if (request.tags !== undefined) checkTags(request.tags);
  const { overlap = null, spread_seconds: spreadSeconds = null, tags = null, flow = null } = request;
  if (flow !== null) checkFlow(flow);
  checkSpread(spreadSeconds, timetable);
  return {
    name,
    timetable,
    cron: timetable.expression,
    timezone: timetable.zone.name,
    targetUrl: request.target_url,
    payload: body.payloadTexts[0] ?? "{}",
    retryPolicy: completeRetryPolicy(retryPolicyOf(request.retry_policy ?? {})),
    overlap,
    spreadSeconds,
    tags,
    flow,
  };
}

/**
 * The body of PATCH /v2/schedules/{id}, parsed with "member": the fields that it has. Its cron, timezone, spread, tags and flow
 * are judged later, with the schedule. Throws ApiError.
 */
export function readScheduleUpdate(body: Body, targets: TargetRules): Partial<Changeable> {
  const request = validateUpdate(body.value);
  const { name, target_url: targetUrl, retry_policy: policy, spread_seconds: spreadSeconds } = request;
  const { cron, timezone, overlap, paused, tags, flow } = request;
  const payload = body.payloadTexts[0];
  if (name !== undefined) checkName(name, "name", SCHEDULE_NAME_CHARACTERS_MAX);
  if (targetUrl !== undefined) checkTarget(targetUrl, "target_url", targets);
  return {
    ...(name === undefined ? {} : { name }),
    ...(cron === undefined ? {} : { cron }),
    ...(timezone === undefined ? {} : { timezone }),
    ...(targetUrl === undefined ? {} : { targetUrl }),
    ...(payload === undefined ? {} : { payload }),
    ...(policy === undefined ? {} : { retryPolicy: completeRetryPolicy(retryPolicyOf(policy)) }),
    ...(overlap === undefined ? {} : { overlap }),
    ...(spreadSeconds === undefined ? {} : { spreadSeconds }),
    ...(paused === undefined ? {} : { paused }),
    ...(tags === undefined ? {} : { tags }),
    ...(flow === undefined ? {} : { flow }),
  };
}

/** The query string of GET /v2/schedules. Throws ApiError. */
export function readScheduleListQuery(query: string) {
  const { paused, ...page } = parseQuery(query, namesOf(ScheduleListParameters));
  const word = filterOf(paused, "paused", ["true", "false"] as const);
  return {
    ...readPage(page),
    paused: word === null ? null : word === "true",
  };
}

/** A schedule as the store knows it. Instants are milliseconds since 1970. */
export interface ScheduleFacts extends Changeable {
  id: string;
  nextRunAt: number | null;
  createdAt: number;
}

/** The fields of a schedule that are shown only if a client has given them; null where none has. */
export interface OverlapFacts {
  overlap: Overlap | null;
  spreadSeconds: number | null;
}

export const viewOverlap = ({ overlap, spreadSeconds }: OverlapFacts) => ({
  ...(overlap === null ? {} : { overlap }),
  ...(spreadSeconds === null ? {} : { spread_seconds: spreadSeconds }),
});

/**
 * The JSON text of a schedule object in three parts: all before its payload, the payload, and the end. It is text because
 * the payload is shown as it was written.
 */
export function scheduleParts(schedule: ScheduleFacts): string[] {
  const { maxAttempts, baseSeconds, capSeconds } = schedule.retryPolicy;
  const { payload: _, ...view }: Static<typeof Schedule> = {
    id: schedule.id,
    name: schedule.name,
    cron: schedule.cron,
    timezone: schedule.timezone,
    target_url: schedule.targetUrl,
    payload: {},
    retry_policy: { max_attempts: maxAttempts, base_seconds: baseSeconds, cap_seconds: capSeconds },
    ...viewOverlap(schedule),
    paused: schedule.paused,
    next_run_at: timestampOrNull(schedule.nextRunAt),
    created_at: timestampOf(schedule.createdAt),
    ...(schedule.tags === null ? {} : { tags: schedule.tags }),
    ...(schedule.flow === null ? {} : { flow: schedule.flow }),
  };
  return [`${JSON.stringify(view).slice(0, -1)},"payload":`, schedule.payload, "}"];
}

const validateNew = validatorOf(NewScheduleRequest);
const validatePut = validatorOf(SchedulePutRequest);
const validateUpdate = validatorOf(ScheduleUpdateRequest);
