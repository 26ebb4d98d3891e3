import { type TSchema, Type } from "@sinclair/typebox";
import { SCHEDULE_PREFIX } from "../../domain/ids.ts";
import { ENVIRONMENTS } from "../../domain/scope.ts";
import { idOf } from "../id.ts";
import { JobId, Payload } from "../job.ts";
import { RunId } from "../run.ts";
import { Timestamp } from "../timestamp.ts";
import { wordOf } from "../validator.ts";
import type { Json, Schemas } from "./schemas.ts";

const attemptNumber = Type.Integer({ minimum: 1 });
const hexOfBytes = (count: number) => `[0-9a-f]{${2 * count}}`;

/** The headers of an attempt. Optional are those that only some attempts have. */
const HEADERS: { name: string; description: string; schema: TSchema; optional?: true }[] = [
  { name: "User-Agent", description: "Tells the service apart.", schema: Type.String() },
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
  {
    name: "Service-Environment",
    description: "The environment of the job.",
    schema: wordOf(ENVIRONMENTS, "An environment of a project."),
  },
  {
    name: "Idempotency-Key",
    description: "The job's id, the same on every attempt: what was done under it need not be done again.",
    schema: JobId,
  },
  {
    name: "traceparent",
    description: "W3C Trace Context.",
    schema: Type.String({ pattern: `^00-${hexOfBytes(16)}-${hexOfBytes(8)}-${hexOfBytes(1)}$` }),
  },
  {
    name: "Service-Signature",
    description:
      "HMAC-SHA256 of the raw body in lower-case hexadecimal, keyed with the whole signing secret of the environment.",
    schema: Type.String({ pattern: `^${hexOfBytes(32)}$` }),
  },
  { name: "webhook-id", description: "Standard Webhooks: the run's id.", schema: RunId },
  {
    name: "webhook-timestamp",
    description: "Standard Webhooks: when it was sent, in seconds since 1970.",
    schema: Type.Integer({ minimum: 0 }),
  },
  {
    name: "webhook-signature",
    description: "Standard Webhooks: one signature for each secret in force, with blanks between.",
    schema: Type.String({ pattern: "^v1,[A-Za-z0-9+/]{43}=( v1,[A-Za-z0-9+/]{43}=)*$" }),
  },
];

export const TARGETS_TAG = { name: "Targets", description: "What the service sends to the URLs of jobs." };

/** What a target receives, and what its answers mean. */
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
      "attempt of a job is in progress, but a job can be attempted again although its target has done the work: targets " +
      "go by `Idempotency-Key`. The answer is awaited for 15 minutes. Redirects are never followed.",
    security: [],
    parameters: HEADERS.map(({ name, description, schema, optional }) => ({
      name,
      in: "header",
      required: optional !== true,
      description,
      schema: schemas.refer(schema),
    })),
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
      default: { description: "Failed, and retried while attempts are left.", headers },
    },
  };
}
