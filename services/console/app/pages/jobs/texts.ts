import type { Job } from "../../../../../shared/client/jobs.ts";
import { RawJson } from "../../../../../shared/client/payload.ts";
import type { Schedule } from "../../../../../shared/client/schedules.ts";
import type { Flow, FlowHold } from "../../../../../shared/domain/flow-key.ts";
import { layOut } from "../../ui/json.tsx";
import { rateOf } from "../flows/rate.ts";

/** The members that jobs and schedules have in common, as the texts of a form. Empty texts are left out of requests. */
export interface JobTexts {
  targetUrl: string;
  payload: string;
  tags: string;
  maxAttempts: string;
  baseSeconds: string;
  capSeconds: string;
  /** Empty for no flow. */
  flowKey: string;
  flowConcurrency: string;
  flowCount: string;
  flowPerSeconds: string;
  flowHold: string;
}

export const NEW_JOB: JobTexts = {
  targetUrl: "",
  payload: "{}",
  tags: "",
  maxAttempts: "",
  baseSeconds: "",
  capSeconds: "",
  flowKey: "",
  flowConcurrency: "",
  flowCount: "",
  flowPerSeconds: "",
  flowHold: "",
};

/** `payload` is the text as it was written. */
export function jobTextsOf(given: Job | Schedule, payload: string): JobTexts {
  const { retry_policy: policy, flow } = given;
  return {
    targetUrl: given.target_url,
    payload: layOut(payload),
    tags: (given.tags ?? []).join(" "),
    maxAttempts: String(policy.max_attempts),
    baseSeconds: String(policy.base_seconds),
    capSeconds: String(policy.cap_seconds),
    flowKey: flow?.key ?? "",
    flowConcurrency: String(flow?.concurrency ?? ""),
    flowCount: String(flow?.rate?.count ?? ""),
    flowPerSeconds: String(flow?.rate?.per_seconds ?? ""),
    flowHold: flow?.hold ?? "",
  };
}

/** The members of a creation. Throws SyntaxError unless the payload is a JSON object. */
export function jobMembersOf(texts: JobTexts) {
  const tags = tagsOf(texts);
  const policy = policyOf(texts);
  const flow = flowOf(texts);
  return {
    target_url: texts.targetUrl,
    payload: new RawJson(texts.payload),
    ...(tags.length > 0 && { tags }),
    ...(Object.keys(policy).length > 0 && { retry_policy: policy }),
    ...(flow !== null && { flow }),
  };
}

export function tagsOf({ tags }: JobTexts): string[] {
  return tags.split(/\s+/).filter((tag) => tag !== "");
}

export function policyOf({ maxAttempts, baseSeconds, capSeconds }: JobTexts) {
  return {
    ...(maxAttempts && { max_attempts: Number(maxAttempts) }),
    ...(baseSeconds && { base_seconds: Number(baseSeconds) }),
    ...(capSeconds && { cap_seconds: Number(capSeconds) }),
  };
}

/** Null without a key and without limits. Limits without a key are sent, so that the API tells what is missing. */
export function flowOf(texts: JobTexts): Flow | null {
  const { flowConcurrency, flowCount, flowPerSeconds, flowHold } = texts;
  const key = texts.flowKey.trim();
  if (key === "" && !(flowConcurrency || flowCount || flowPerSeconds || flowHold)) return null;
  const rate = rateOf(texts.flowCount, texts.flowPerSeconds);
  return {
    key,
    ...(texts.flowConcurrency && { concurrency: Number(texts.flowConcurrency) }),
    ...(rate !== null && { rate }),
    ...(texts.flowHold && { hold: texts.flowHold as FlowHold }),
  };
}
