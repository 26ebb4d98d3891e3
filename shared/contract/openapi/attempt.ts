import { Type } from "@sinclair/typebox";
import { SCHEDULE_PREFIX } from "../../domain/ids.ts";
import { idOf } from "../id.ts";
import { JobId, Payload } from "../job.ts";
import { RunId } from "../run.ts";
import { Timestamp } from "../timestamp.ts";
import type { Json, Schemas } from "./schemas.ts";
import {
  describeSentHeaders,
  SERVICE_ENVIRONMENT,
  type SentHeader,
  signatureHeaders,
  TRACEPARENT,
  USER_AGENT,
} from "./sent-headers.ts";

const attemptNumber = Type.Integer({ minimum: 1 });

const HEADERS: SentHeader[] = [
  USER_AGENT,
  { name: "Service-Job-Id", description: "The job.", schema: JobId },
  { name: "Service-Run-Id", description: "The run that records this attempt.", schema: RunId },
  { name: "Service-Attempt", description: "The attempt's number, from 1.", schema: attemptNumber },
  {
    name: "Service-Attempt-Fence",
    description: "A target that has seen a higher one for the job can refuse this attempt as late.",
    schema: attemptNumber,
  },
  {
    name: "Service-Scheduled-At",
    description: "When this attempt was due.",
    schema: Timestamp,
  },
  {
    name: "Service-Schedule-Id",
    description: "The schedule that made the job.",
    schema: idOf(SCHEDULE_PREFIX, "The id of a schedule."),
    optional: true,
  },
  SERVICE_ENVIRONMENT,
  {
    name: "Idempotency-Key",
    description:
      "The job's id, the same on every attempt: work that was done under it need not be done again.",
    schema: JobId,
  },
  TRACEPARENT,
  ...signatureHeaders("environment", { description: "Standard Webhooks: the run's id.", schema: RunId }),
];

export const TARGETS_TAG = { name: "Targets", description: "What the service sends to the URLs of jobs." };

/** The request that a target receives, and the meaning of its answers. */
export function describeAttempt(schemas: Schemas): Json {
  const noRetry = {
    description: "`true` fails the job at once, whatever attempts it has left.",
    schema: { type: "string", const: "true" },
  };
  const retryAfter = {
    description: "Seconds or a date: the next attempt waits at least that long, at most cap_seconds.",
    schema: { type: "string" },
  };
  const headers = { "Service-No-Retry": noRetry };
  return {
    operationId: "receiveAttempt",
    tags: [TARGETS_TAG.name],
    summary: "An attempt of a job",
    description:
      "The service sends the job's payload to its `target_url`. The same attempt is never sent twice and at most one " +
      "attempt of a job is in progress, but a job can be attempted again although its target has done the work: a target " +
      "recognizes that by `Idempotency-Key`. The answer is awaited for 15 minutes. Redirects are never followed. An answer whose body " +
      "stalls to the deadline is `timed_out`, and a 2xx whose body breaks off has failed. An attempt that was lost or broken " +
      "off by the service is followed by the next one at once, without backoff.",
    security: [],
    parameters: describeSentHeaders(HEADERS, schemas),
    requestBody: {
      description: "The payload alone, as it was written.",
      required: true,
      content: {
        "application/json": {
          schema: schemas.refer(Payload),
          examples: { invoice: { value: { invoice: 4711 } } },
        },
      },
    },
    responses: {
      "2XX": { description: "The run has succeeded, and so has the job." },
      "429": {
        description: "Failed, and retried later.",
        headers: { ...headers, "Retry-After": retryAfter },
      },
      "4XX": { description: "Failed, and retried while attempts are left.", headers },
      "503": {
        description: "Failed, and retried later.",
        headers: { ...headers, "Retry-After": retryAfter },
      },
      default: {
        description:
          "Failed, and retried while attempts are left; 600 to 999 are such statuses too. Interim answers, 101 included, are read " +
          "past. An answer may have 64 KiB of heads, interim ones included, and 1 MiB in all.",
        headers,
      },
    },
  };
}
