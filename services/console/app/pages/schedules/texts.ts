import { RawJson } from "../../../../../shared/client/payload.ts";
import type { NewSchedule, Schedule, ScheduleUpdate } from "../../../../../shared/client/schedules.ts";
import type { Overlap } from "../../../../../shared/domain/schedule.ts";
import { flowOf, type JobTexts, jobMembersOf, jobTextsOf, NEW_JOB, policyOf, tagsOf } from "../jobs/texts.ts";

/** A schedule as the texts of a form. */
export interface ScheduleTexts extends JobTexts {
  name: string;
  cron: string;
  timezone: string;
  overlap: string;
  spreadSeconds: string;
}

export const NEW_SCHEDULE: ScheduleTexts = {
  ...NEW_JOB,
  name: "",
  cron: "",
  timezone: "UTC",
  overlap: "",
  spreadSeconds: "",
};

/** `payload` is the text as it was written. */
export function textsOf(schedule: Schedule, payload: string): ScheduleTexts {
  return {
    ...jobTextsOf(schedule, payload),
    name: schedule.name,
    cron: schedule.cron,
    timezone: schedule.timezone,
    overlap: schedule.overlap ?? "",
    spreadSeconds: String(schedule.spread_seconds ?? ""),
  };
}

/** Throws SyntaxError unless the payload is a JSON object. */
export function creationOf(texts: ScheduleTexts): NewSchedule {
  return {
    ...jobMembersOf(texts),
    name: texts.name,
    cron: texts.cron,
    timezone: texts.timezone.trim() || "UTC",
    ...(texts.overlap && { overlap: texts.overlap as Overlap }),
    ...(texts.spreadSeconds && { spread_seconds: Number(texts.spreadSeconds) }),
  };
}

/** The changed members; the others keep their values, also those that another client has changed meanwhile. */
export function changesOf(before: ScheduleTexts, after: ScheduleTexts): ScheduleUpdate {
  const isChanged = (...names: (keyof ScheduleTexts)[]) => names.some((name) => before[name] !== after[name]);
  return {
    ...(isChanged("name") && { name: after.name }),
    ...(isChanged("cron") && { cron: after.cron }),
    ...(isChanged("timezone") && { timezone: after.timezone.trim() || "UTC" }),
    ...(isChanged("targetUrl") && { target_url: after.targetUrl }),
    ...(isChanged("payload") && { payload: new RawJson(after.payload) }),
    ...(isChanged("overlap") && { overlap: (after.overlap || "allow") as Overlap }),
    ...(isChanged("spreadSeconds") && { spread_seconds: Number(after.spreadSeconds) }),
    ...(isChanged("tags") && { tags: tagsOf(after) }),
    ...(isChanged("maxAttempts", "baseSeconds", "capSeconds") && { retry_policy: policyOf(after) }),
    // The flow is changed as a whole, and taken away with its key.
    ...(isChanged("flowKey", "flowConcurrency", "flowCount", "flowPerSeconds", "flowHold") && {
      flow: isChanged("flowKey") && after.flowKey.trim() === "" ? null : flowOf(after),
    }),
  };
}
