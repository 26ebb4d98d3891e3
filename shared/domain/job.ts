import type { RetryPolicy } from "./backoff.ts";
import { ApiError, invalidRequest } from "./errors.ts";
import { checkFlow, type Flow } from "./flow-key.ts";
import { effectiveDefaultRegion, isRegionAllowed, type Plan } from "./plan.ts";
import type { RunStatus } from "./run.ts";
import type { Region } from "./scope.ts";
import { checkTags } from "./tags.ts";
import { checkTarget, type TargetRules } from "./target.ts";

/** The rules of jobs: the values that a job may have, and the actions that each of its states allows. */

export const JOB_STATUSES = ["queued", "running", "succeeded", "failed", "canceled"] as const;
export type JobStatus = (typeof JOB_STATUSES)[number];
export type TerminalStatus = "succeeded" | "failed" | "canceled";

export const PAYLOAD_BYTES_MAX = 262_144;
export const BATCH_JOBS_MAX = 100;
export const RUN_AT_PAST_SECONDS_MAX = 60;
export const RUN_AT_IN_PAST = `run_at is more than ${RUN_AT_PAST_SECONDS_MAX} seconds in the past.`;
export const RUN_AT_YEARS_AHEAD_MAX = 10;
export const RETRY_POLICY_BOUNDS = {
  maxAttempts: { min: 1, default: 5, max: 25 },
  baseSeconds: { min: 1, default: 10, max: 86_400 },
  capSeconds: { min: 1, default: 3_600, max: 86_400 },
} as const;

/** The fields of a request for a job, their types already checked. */
export interface JobRequest {
  targetUrl: string;
  runAt?: string | undefined;
  region?: Region | undefined;
  retryPolicy?: Partial<RetryPolicy> | undefined;
  tags?: string[] | undefined;
  flow?: Flow | undefined;
}

export interface JobContext {
  plan: Plan;
  defaultRegion: Region;
  /** Milliseconds since 1970. */
  now: number;
  targets: TargetRules;
}

export interface NewJob {
  targetUrl: string;
  /** Null for an immediate job, whose run_at is its created_at. */
  runAt: number | null;
  region: Region;
  retryPolicy: RetryPolicy;
  /** Null for a job to which none were given. */
  tags: string[] | null;
  /** Null for a job to which none was given. */
  flow: Flow | null;
}

/** Decides whether a job may be created and what it is, defaults filled in. Throws ApiError. */
export function decideNewJob(request: JobRequest, { plan, defaultRegion, now, targets }: JobContext): NewJob {
  checkTarget(request.targetUrl, "target_url", targets);
  const runAt = request.runAt === undefined ? null : parseRunAt(request.runAt, now);
  const retryPolicy = completeRetryPolicy(request.retryPolicy ?? {});
  const tags = request.tags ?? null;
  if (tags !== null) checkTags(tags);
  const flow = request.flow ?? null;
  if (flow !== null) checkFlow(flow);
  if (request.region !== undefined && !isRegionAllowed(plan, request.region)) {
    throw invalidRequest(`The ${plan} plan is limited to the region us-east.`, "region");
  }
  const region = request.region ?? effectiveDefaultRegion(plan, defaultRegion);
  return { targetUrl: request.targetUrl, runAt, region, retryPolicy, tags, flow };
}

/** Fills in the defaults. The bounds of each number were checked with its type. */
export function completeRetryPolicy(partial: Partial<RetryPolicy>): RetryPolicy {
  const bounds = RETRY_POLICY_BOUNDS;
  const capSeconds = partial.capSeconds ?? bounds.capSeconds.default;
  // A request that lowers only the cap means all waits, so the default base follows it. A base that was given does not.
  const baseSeconds = partial.baseSeconds ?? Math.min(bounds.baseSeconds.default, capSeconds);
  if (baseSeconds > capSeconds) {
    throw invalidRequest(
      `retry_policy.base_seconds must not exceed cap_seconds, which is ${capSeconds}${partial.capSeconds === undefined ? " by default" : ""}.`,
      "retry_policy.base_seconds",
    );
  }
  return { maxAttempts: partial.maxAttempts ?? bounds.maxAttempts.default, baseSeconds, capSeconds };
}

/** Milliseconds since 1970. Throws run_at_in_past or invalid_request. Digits beyond the millisecond are dropped. */
export function parseRunAt(text: string, now: number): number {
  const at = parseInstant(text);
  if (at === null) {
    throw invalidRequest(
      "run_at must be an ISO 8601 date and time with Z or an offset, such as 2026-11-01T09:30:00Z or 2026-11-01T09:30:00+01:00.",
      "run_at",
    );
  }
  if (at < now - RUN_AT_PAST_SECONDS_MAX * 1_000) {
    throw new ApiError("run_at_in_past", RUN_AT_IN_PAST, "run_at");
  }
  const latest = new Date(now);
  latest.setUTCFullYear(latest.getUTCFullYear() + RUN_AT_YEARS_AHEAD_MAX);
  if (at > latest.getTime()) {
    throw invalidRequest(`run_at must be at most ${RUN_AT_YEARS_AHEAD_MAX} years ahead.`, "run_at");
  }
  return at;
}

const INSTANT_PATTERN =
  /^([0-9]{4})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])[Tt]([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9])(?:[.,]([0-9]{1,18}))?)?(?:[Zz]|([+-])([01][0-9]|2[0-3])(?::?([0-5][0-9]))?)$/;

/** ISO 8601: extended format, a real calendar date, an offset (with or without a colon) or Z; null for anything else. */
export function parseInstant(text: string): number | null {
  const parts = INSTANT_PATTERN.exec(text);
  if (parts === null) return null;
  const [, year, month, day, hour, minute, second = "0", fraction = ""] = parts;
  const [sign, offsetHour = "0", offsetMinute = "0"] = parts.slice(8);
  const date = new Date(0);
  date.setUTCFullYear(Number(year), Number(month) - 1, Number(day));
  // February 30 becomes March 2: only a date that keeps its day is on the calendar.
  if (date.getUTCDate() !== Number(day)) return null;
  const offset = Number(offsetHour) * 60 + Number(offsetMinute);
  const minutes = Number(hour) * 60 + Number(minute) + (sign === "-" ? offset : -offset);
  const milliseconds = Number(fraction.slice(0, 3).padEnd(3, "0"));
  return date.getTime() + (minutes * 60 + Number(second)) * 1_000 + milliseconds;
}

export function isTerminal(status: JobStatus): status is TerminalStatus {
  switch (status) {
    case "succeeded":
    case "failed":
    case "canceled":
      return true;
    case "queued":
    case "running":
      return false;
  }
}

/** A job's status is not stored: it follows from how it ended, and whether an attempt is recorded and not settled. */
export function jobStatusOf(job: { endedAs: TerminalStatus | null; hasRunInProgress: boolean }): JobStatus {
  // A job canceled while it ran is canceled at once, although its attempt goes on.
  return job.endedAs ?? (job.hasRunInProgress ? "running" : "queued");
}

/** The effect of a cancel on the attempt that comes next or is in progress. */
export type CanceledAttempt =
  /** No attempt is in progress, and none follows. */
  | "waiting"
  /** The attempt in progress ends by itself, and its run keeps its true result. */
  | "sent"
  /** A manual retry waits for its permit. It is never sent, and its run ends failed with UNSENT_RUN_ERROR. */
  | "unsent";

/**
 * `isSent` is false while the attempt of a running job, a manual retry, waits for its permit. Throws invalid_request. The
 * cancels of a bulk operation decide the same in SQL (cancelMembers, store/queue/bulk/cancel.ts). The test that compares the
 * two is services/worker/bulk/same-as-single.test.ts.
 */
export function decideCancel(job: { status: JobStatus; isSent: boolean }): CanceledAttempt {
  switch (job.status) {
    case "queued":
      return "waiting";
    case "running":
      return job.isSent ? "sent" : "unsent";
    case "succeeded":
    case "failed":
    case "canceled":
      throw invalidRequest(`The job is already ${job.status} and cannot be canceled.`);
  }
}

/** The attempts of a job, retries by hand included. All columns that count them have 16 bits. */
export const ATTEMPTS_MAX = 32_767;

export interface ManualRetry {
  /** The number of the new attempt. */
  attempt: number;
  /** An exhausted job gets exactly one attempt more; otherwise the new one counts toward max_attempts. */
  attemptsAllowed: number;
  /** True if an automatic retry was pending: its run's next_retry_at becomes null. */
  replacesPending: boolean;
}

/**
 * The attempt that a manual retry of one of the job's runs makes. Throws invalid_request. The retries of a bulk operation decide
 * the same in SQL for jobs that have failed (retryMembers, store/queue/bulk/retry.ts). The test that compares the two is
 * services/worker/bulk/same-as-single.test.ts.
 */
export function decideManualRetry(
  job: { status: JobStatus; attempts: number; maxAttempts: number },
  run: { status: RunStatus },
): ManualRetry {
  switch (run.status) {
    case "running":
    case "succeeded":
      throw invalidRequest(`Only a failed or timed_out run can be retried; this one is ${run.status}.`);
    case "failed":
    case "timed_out":
      break;
  }
  switch (job.status) {
    case "running":
    case "succeeded":
    case "canceled":
      throw invalidRequest(`The job is ${job.status}, so none of its runs can be retried.`);
    case "failed":
    case "queued":
      if (job.attempts >= ATTEMPTS_MAX) throw invalidRequest(`A job has at most ${ATTEMPTS_MAX} attempts.`);
      return {
        attempt: job.attempts + 1,
        attemptsAllowed: Math.max(job.maxAttempts, job.attempts + 1),
        replacesPending: job.status === "queued",
      };
  }
}
