import { RawJson } from "../../../../../shared/client/payload.ts";
import type { NewSchedule, Schedule, ScheduleUpdate } from "../../../../../shared/client/schedules.ts";
import type { Overlap } from "../../../../../shared/domain/schedule.ts";
import { layOut } from "../../ui/json.tsx";
import { type FlowTexts, flowOf, flowTextsOf } from "../flows/fields.tsx";

/** A schedule as the texts of a form. */
export interface ScheduleTexts extends FlowTexts {
  name: string;
  cron: string;
  timezone: string;
  targetUrl: string;
  payload: string;
  /** Empty for none given. */
  overlap: string;
  spreadSeconds: string;
  tags: string;
  maxAttempts: string;
  baseSeconds: string;
  capSeconds: string;
}

export const NEW_SCHEDULE: ScheduleTexts = {
  name: "",
  cron: "",
  timezone: "UTC",
  targetUrl: "",
  payload: "{}",
  overlap: "",
  spreadSeconds: "",
  tags: "",
  maxAttempts: "",
  baseSeconds: "",
  capSeconds: "",
  ...flowTextsOf(undefined),
};

/** `payload` is the text as it was written. */
export function textsOf(schedule: Schedule, payload: string): ScheduleTexts {
  const { retry_policy: policy } = schedule;
  return {
    name: schedule.name,
    cron: schedule.cron,
    timezone: schedule.timezone,
    targetUrl: schedule.target_url,
    payload: layOut(payload),
    overlap: schedule.overlap ?? "",
    spreadSeconds: schedule.spread_seconds === undefined ? "" : String(schedule.spread_seconds),
    tags: (schedule.tags ?? []).join(" "),
    maxAttempts: String(policy.max_attempts),
    baseSeconds: String(policy.base_seconds),
    capSeconds: String(policy.cap_seconds),
    ...flowTextsOf(schedule.flow),
  };
}

/** Throws SyntaxError unless the payload is a JSON object. */
export function creationOf(texts: ScheduleTexts): NewSchedule {
  const tags = tagsOf(texts);
  const flow = flowOf(texts);
  return {
    name: texts.name,
    cron: texts.cron,
    target_url: texts.targetUrl,
    timezone: texts.timezone.trim() || "UTC",
    payload: new RawJson(texts.payload),
    ...(Object.keys(policyOf(texts)).length === 0 ? {} : { retry_policy: policyOf(texts) }),
    ...(texts.overlap && { overlap: texts.overlap as Overlap }),
    ...(texts.spreadSeconds && { spread_seconds: Number(texts.spreadSeconds) }),
    ...(tags.length === 0 ? {} : { tags }),
    ...(flow !== null && { flow }),
  };
}

/** What was changed; the rest keeps its value, whoever has changed it meanwhile. */
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
    // It is changed as a whole.
    ...(isChanged("flowKey", "flowConcurrency", "flowCount", "flowPerSeconds", "flowHold") && {
      flow: flowOf(after),
    }),
  };
}

function tagsOf({ tags }: ScheduleTexts): string[] {
  return tags.split(/\s+/).filter((tag) => tag !== "");
}

function policyOf({ maxAttempts, baseSeconds, capSeconds }: ScheduleTexts) {
  return {
    ...(maxAttempts && { max_attempts: Number(maxAttempts) }),
    ...(baseSeconds && { base_seconds: Number(baseSeconds) }),
    ...(capSeconds && { cap_seconds: Number(capSeconds) }),
  };
}
