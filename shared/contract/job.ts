import { type Static, Type } from "@sinclair/typebox";
import type { RetryPolicy } from "../domain/backoff.ts";
import { ApiError, type EntryError } from "../domain/errors.ts";
import { type Flow, flowKeyFilterOf } from "../domain/flow-key.ts";
import { idsBetween, JOB_PREFIX, SCHEDULE_PREFIX } from "../domain/ids.ts";
import {
  BATCH_JOBS_MAX,
  decideNewJob,
  JOB_STATUSES,
  type JobContext,
  type JobStatus,
  type NewJob,
  PAYLOAD_BYTES_MAX,
  RETRY_POLICY_BOUNDS,
  RUN_AT_PAST_SECONDS_MAX,
  RUN_AT_YEARS_AHEAD_MAX,
} from "../domain/job.ts";
import { filterOf, idFilterOf, instantFilterOf, parseQuery, readPage } from "../domain/page.ts";
import { REGIONS, type Region } from "../domain/scope.ts";
import { TAG_CHARACTERS_MAX, TAG_PATTERN, TAGS_MAX, tagFilterOf } from "../domain/tags.ts";
import { TARGET_URL_CHARACTERS_MAX } from "../domain/target.ts";
import { FlowKeyParameter, FlowSchema } from "./flow.ts";
import { idOf } from "./id.ts";
import { type Body, checkPayloadSize } from "./json.ts";
import { listOf, pageParameters, separated } from "./list.ts";
import { Timestamp, timestampOf } from "./timestamp.ts";
import { namesOf, validatorOf, wordOf } from "./validator.ts";

const closed = { additionalProperties: false } as const;
const { maxAttempts, baseSeconds, capSeconds } = RETRY_POLICY_BOUNDS;

const retryPolicyFields = {
  max_attempts: Type.Integer({
    minimum: maxAttempts.min,
    maximum: maxAttempts.max,
    default: maxAttempts.default,
    description: "After this many failed attempts the job has failed.",
  }),
  base_seconds: Type.Integer({
    minimum: baseSeconds.min,
    maximum: baseSeconds.max,
    default: baseSeconds.default,
    description:
      "The wait before attempt n+1 is a random one of 0 to min(cap_seconds, base_seconds * 2^(n-1)) seconds. " +
      "May not exceed cap_seconds; left out, it is lowered to it.",
  }),
  cap_seconds: Type.Integer({
    minimum: capSeconds.min,
    maximum: capSeconds.max,
    default: capSeconds.default,
    description: "No wait is longer, whatever a target's Retry-After asks for.",
  }),
};
export const RetryPolicySchema = Type.Object(retryPolicyFields, {
  ...closed,
  title: "RetryPolicy",
  description: "Exponential backoff with full jitter.",
});
export const RetryPolicyRequest = Type.Partial(RetryPolicySchema, {
  ...closed,
  title: "RetryPolicyRequest",
  description: "What is left out has its default.",
});
export const RegionSchema = wordOf(REGIONS, "Where the job runs.", "Region");
const JobStatusSchema = wordOf(JOB_STATUSES, "Where the job is in its life.", "JobStatus");
export const Payload = Type.Object(
  {},
  {
    additionalProperties: true,
    title: "Payload",
    description:
      `Any JSON object, at most ${PAYLOAD_BYTES_MAX / 1_024} KB (${PAYLOAD_BYTES_MAX.toLocaleString("en")} bytes) after JSON encoding. ` +
      "The target receives it as it was written, " +
      "numbers beyond double precision included.",
  },
);
export const TargetUrl = Type.String({
  documented: { format: "uri", maxLength: TARGET_URL_CHARACTERS_MAX },
  description:
    "HTTPS URL with a public host and without credentials that receives the payload. Blanks, backslashes and port 0 are refused.",
  examples: ["https://example.com/hooks/invoices"],
});

const Tag = Type.String({
  documented: { pattern: TAG_PATTERN.source, minLength: 1, maxLength: TAG_CHARACTERS_MAX },
  examples: ["customer:4711"],
});
/** The tags of a request, `min` of them or more. */
export const tagsOf = (min: number, description: string) =>
  Type.Array(Tag, { minItems: min, maxItems: TAGS_MAX, documented: { uniqueItems: true }, description });
const Tags = tagsOf(1, "Words to find the job by. They never change. Absent from a job without any.");

export const JobId = idOf(JOB_PREFIX, "The id of a job.");

export const NewJobRequest = Type.Object(
  {
    target_url: TargetUrl,
    payload: Type.Optional({ ...Payload, default: {} }),
    run_at: Type.Optional(
      Type.String({
        documented: { format: "date-time" },
        description:
          `ISO 8601 with Z or an offset, at most ${RUN_AT_YEARS_AHEAD_MAX} years ahead and at most ` +
          `${RUN_AT_PAST_SECONDS_MAX} seconds in the past. Digits below the millisecond are dropped; 24:00 and a second of 60 are ` +
          "refused. Omit it to run the job immediately.",
        examples: ["2030-12-24T18:00:00Z"],
      }),
    ),
    region: Type.Optional(
      wordOf(
        REGIONS,
        "Where the job runs: by default in the project's default_region. Hobby projects are limited to us-east.",
      ),
    ),
    retry_policy: Type.Optional(RetryPolicyRequest),
    tags: Type.Optional(Tags),
    flow: Type.Optional(FlowSchema),
  },
  { ...closed, title: "NewJobRequest" },
);

const batchSize = { minItems: 1, maxItems: BATCH_JOBS_MAX };
export const JobBatchRequest = Type.Object(
  { jobs: Type.Array(NewJobRequest, batchSize) },
  { ...closed, title: "JobBatchRequest" },
);
/** The schema leaves the entries unchecked: readNewJobBatch checks each, so that it can name every bad one. */
export const NewJobBatchRequest = Type.Object({ jobs: Type.Array(Type.Unknown(), batchSize) }, closed);

const listedFields = {
  id: JobId,
  status: JobStatusSchema,
  target_url: TargetUrl,
  region: RegionSchema,
  attempts: Type.Integer({ minimum: 0, description: "Runs recorded so far, one in progress included." }),
  created_at: Timestamp,
  tags: Type.Optional(Tags),
};

export const ListedJob = Type.Object(listedFields, {
  ...closed,
  title: "ListedJob",
  description: "A job as lists show it.",
});
export const JobList = listOf(ListedJob, "JobList");
export const CanceledJob = Type.Object(
  { ...listedFields, run_at: Timestamp },
  { ...closed, title: "CanceledJob", description: "A job as its cancellation shows it." },
);
export const Job = Type.Object(
  {
    ...listedFields,
    payload: Payload,
    run_at: Timestamp,
    retry_policy: RetryPolicySchema,
    flow: Type.Optional(FlowSchema),
  },
  { ...closed, title: "Job", description: "One unit of background work." },
);
export const JobBatch = Type.Object(
  { data: Type.Array(Job, { description: "The jobs in the order in which they were asked for." }) },
  { ...closed, title: "JobBatch" },
);

export const TagParameter = Type.String({
  documented: { pattern: TAG_PATTERN.source },
  description: "Only those of jobs that have exactly this tag. In a query string a `+` is written as `%2B`.",
  examples: ["customer:4711"],
});
export const ScheduleIdParameter = Type.String({
  description:
    "Only those of jobs that this schedule has made. For a schedule that is unknown the list is empty.",
});
export const instantParameter = (description: string) =>
  Type.String({
    documented: { format: "date-time" },
    description: `${description} ISO 8601 with Z or an offset; digits below the millisecond are dropped.`,
    examples: ["2026-11-01T09:30:00Z"],
  });

export const JobListParameters = Type.Object({
  ...pageParameters,
  status: Type.Optional(JobStatusSchema),
  region: Type.Optional(RegionSchema),
  tag: Type.Optional(TagParameter),
  flow_key: Type.Optional(FlowKeyParameter),
  schedule_id: Type.Optional(ScheduleIdParameter),
  created_after: Type.Optional(instantParameter("Only jobs whose `created_at` is later than this.")),
  created_before: Type.Optional(instantParameter("Only jobs whose `created_at` is earlier than this.")),
});

/** A job that may be created, with the JSON text that its target will receive. */
export interface AcceptedJob extends NewJob {
  payloadText: string;
}

/** The body of POST /v2/jobs, parsed with "member". Throws ApiError. */
export function readNewJob(body: Body, context: JobContext): AcceptedJob {
  return acceptJob(body.value, body.payloadTexts[0], context);
}

/**
 * The body of POST /v2/jobs/batch, parsed with "each job": every entry, or one ApiError whose details name every
 * bad one.
 */
export function readNewJobBatch(body: Body, context: JobContext): AcceptedJob[] {
  const { jobs } = validateBatch(body.value);
  const accepted: AcceptedJob[] = [];
  const details: EntryError[] = [];
  jobs.forEach((entry, index) => {
    try {
      checkPayloadSize(body, index);
      accepted.push(acceptJob(entry, body.payloadTexts[index], context));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      const { code, message, param } = error;
      details.push({ index, code, message, ...(param === undefined ? {} : { param }) });
    }
  });
  if (details.length === 0) return accepted;
  const message = `${details.length} of ${jobs.length} jobs cannot be created, so none was.`;
  throw new ApiError("invalid_request", message, undefined, details);
}

/** The query string of GET /v2/jobs. Throws ApiError. */
export function readJobListQuery(query: string) {
  const { status, region, tag, flow_key, schedule_id, created_after, created_before, ...page } = parseQuery(
    query,
    namesOf(JobListParameters),
  );
  const created = {
    after: instantFilterOf(created_after, "created_after"),
    before: instantFilterOf(created_before, "created_before"),
  };
  return {
    ...readPage(page),
    status: filterOf(status, "status", JOB_STATUSES),
    region: filterOf(region, "region", REGIONS),
    tag: tagFilterOf(tag),
    flowKey: flowKeyFilterOf(flow_key),
    schedule: idFilterOf(schedule_id, SCHEDULE_PREFIX),
    created,
    // The time of an id is its job's created_at.
    ids: idsBetween(JOB_PREFIX, created),
  };
}

/** A job as a list shows it. Instants are milliseconds since 1970. */
export interface ListedJobFacts {
  id: string;
  status: JobStatus;
  targetUrl: string;
  region: Region;
  attempts: number;
  createdAt: number;
  tags: string[] | null;
}

export interface JobFacts extends ListedJobFacts {
  payloadText: string;
  runAt: number;
  retryPolicy: RetryPolicy;
  flow: Flow | null;
}

export function viewListedJob(job: ListedJobFacts): Static<typeof ListedJob> {
  return {
    id: job.id,
    status: job.status,
    target_url: job.targetUrl,
    region: job.region,
    attempts: job.attempts,
    created_at: timestampOf(job.createdAt),
    ...(job.tags === null ? {} : { tags: job.tags }),
  };
}

export function viewCanceledJob(job: ListedJobFacts & { runAt: number }): Static<typeof CanceledJob> {
  return { ...viewListedJob(job), run_at: timestampOf(job.runAt) };
}

/** The JSON text of a job object. It is text because the payload is shown as it was written. */
export function jobText(job: JobFacts): string {
  return textBeforePayload(job) + job.payloadText + textBehindPayload(job);
}

function textBeforePayload({ id, status, targetUrl }: JobFacts): string {
  return `{"id":"${id}","status":"${status}","target_url":${JSON.stringify(targetUrl)},"payload":`;
}

function textBehindPayload(job: JobFacts): string {
  const { runAt, region, retryPolicy, attempts, createdAt, tags, flow } = job;
  const created = timestampOf(createdAt);
  const run = runAt === createdAt ? created : timestampOf(runAt);
  return (
    `,"run_at":"${run}","region":"${region}",` +
    `"retry_policy":{"max_attempts":${retryPolicy.maxAttempts},"base_seconds":${retryPolicy.baseSeconds},` +
    `"cap_seconds":${retryPolicy.capSeconds}},"attempts":${attempts},"created_at":"${created}"` +
    (tags === null ? "" : `,"tags":${JSON.stringify(tags)}`) +
    (flow === null ? "}" : `,"flow":${JSON.stringify(flow)}}`)
  );
}

/** The JSON text of the answer to a batch, in input order and in parts. */
export function jobBatchParts(jobs: readonly JobFacts[]): string[] {
  const parts = jobs.map((job) => [textBeforePayload(job), job.payloadText, textBehindPayload(job)]);
  return ['{"data":[', ...separated(parts), "]}"];
}

const validateJob = validatorOf(NewJobRequest);
const validateBatch = validatorOf(NewJobBatchRequest);

/** The given fields of a retry policy. Schedules take the same field with the same rules. */
export function retryPolicyOf(request: Static<typeof RetryPolicyRequest>): Partial<RetryPolicy> {
  const policy: Partial<RetryPolicy> = {};
  if (request.max_attempts !== undefined) policy.maxAttempts = request.max_attempts;
  if (request.base_seconds !== undefined) policy.baseSeconds = request.base_seconds;
  if (request.cap_seconds !== undefined) policy.capSeconds = request.cap_seconds;
  return policy;
}

function acceptJob(value: unknown, payloadText: string | undefined, context: JobContext): AcceptedJob {
  const request = validateJob(value);
  const job = decideNewJob(
    {
      targetUrl: request.target_url,
      runAt: request.run_at,
      region: request.region,
      retryPolicy: retryPolicyOf(request.retry_policy ?? {}),
      tags: request.tags,
      flow: request.flow,
    },
    context,
  );
  return { ...job, payloadText: payloadText ?? "{}" };
}
