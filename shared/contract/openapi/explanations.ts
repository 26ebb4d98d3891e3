import { BYTES_PER_SECOND_MIN, bodyTooSlow, RECEIVE_MS } from "../../domain/body.ts";
import { GAP_SECONDS_MIN, intervalTooShort, wrongFields } from "../../domain/cron/cron.ts";
import { type ErrorCode, resourceNotFound, unauthorized } from "../../domain/errors.ts";
import { KEY_CONFLICT, KEY_LIFE_HOURS } from "../../domain/idempotency.ts";
import { RUN_AT_IN_PAST, RUN_AT_PAST_SECONDS_MAX } from "../../domain/job.ts";
import { PLAN_TERMS } from "../../domain/plan.ts";
import { nameTaken, tooManyActive } from "../../domain/schedule.ts";

interface Explanation {
  /** When the service answers with the code: the rest of a sentence that begins with it. */
  when: string;
  /** The message of the example. */
  message: string;
  param?: string;
}

export const EXPLANATIONS: Readonly<Record<ErrorCode, Explanation>> = {
  invalid_request: {
    when: "a field, query parameter or header is wrong or unknown, or the resource's state does not allow the request",
    message: "runAt is not a known field. Did you mean run_at?",
    param: "runAt",
  },
  run_at_in_past: {
    when: `\`run_at\` is more than ${RUN_AT_PAST_SECONDS_MAX} seconds in the past`,
    message: RUN_AT_IN_PAST,
    param: "run_at",
  },
  invalid_cron_expression: {
    when: "a cron expression or a timezone is malformed or unknown",
    message: wrongFields().message,
    param: "cron",
  },
  interval_too_short: {
    when: `a cron expression fires more often than every ${GAP_SECONDS_MIN} seconds`,
    message: intervalTooShort(1).message,
    param: "cron",
  },
  unauthorized: {
    when: "the API key is missing, malformed, unknown, revoked or expired",
    message: unauthorized().message,
  },
  plan_limit_exceeded: {
    when: "the plan allows no more active schedules, or the environment no more webhook endpoints, keys, unfinished bulk operations or hosts parked by hand",
    message: tooManyActive(PLAN_TERMS.hobby.schedules).message,
  },
  insufficient_scope: {
    when: "the key's scope does not allow the request",
    message: "A key of scope read may not do this.",
  },
  resource_not_found: {
    when: "there is no such resource, or it belongs to another project or to the other environment",
    message: resourceNotFound().message,
  },
  method_not_allowed: {
    when: "the path does not take the request's method; `Allow` names those that it takes",
    message: "This path takes GET, HEAD, POST.",
  },
  request_timeout: {
    when:
      `the body was not complete in time: ${RECEIVE_MS / 1_000} seconds, and one more for each ${BYTES_PER_SECOND_MIN / 1_024} KiB of its \`Content-Length\`, or of what has ` +
      "come in chunks; nothing was done",
    message: bodyTooSlow(RECEIVE_MS).message,
  },
  idempotency_conflict: {
    when: `the Idempotency-Key was used within ${KEY_LIFE_HOURS} hours for a request with another body`,
    message: KEY_CONFLICT,
    param: "Idempotency-Key",
  },
  schedule_name_taken: {
    when: "the environment has a schedule of that name",
    message: nameTaken().message,
    param: "name",
  },
  payload_too_large: {
    when: "a payload is larger than 256 KB, or the whole body than 1 MiB (32 MiB for a batch)",
    message: "The body must have at most 1048576 bytes.",
  },
  unsupported_media_type: {
    when: "the body is not `application/json` in UTF-8, or has a Content-Encoding",
    message: "Content-Type must be application/json, in UTF-8.",
  },
  rate_limit_exceeded: {
    when: "the environment's requests of this minute are used up; nothing was done, so it is safe to try again",
    message:
      "The environment's requests of this minute are used up. Nothing was done, so it is safe to try again.",
  },
  quota_exceeded: {
    when: "a hobby project has used all runs of the month; it clears when the month ends or the plan is upgraded",
    message: "The project has used all runs that its plan includes this month.",
  },
  internal_error: {
    when: "the service has a bug; what was asked has happened entirely or not at all",
    message: "An internal error occurred.",
  },
  service_unavailable: {
    when:
      "the service cannot reach its database or is overloaded; what was asked has happened entirely or not at all, and a " +
      "retry with the same Idempotency-Key is safe",
    message: "The service cannot reach its database. What was asked has happened entirely or not at all.",
  },
};
