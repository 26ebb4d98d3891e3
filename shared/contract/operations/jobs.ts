import type { Static } from "@sinclair/typebox";
import { RUN_AT_IN_PAST } from "../../domain/job.ts";
import { type ErrorView, REQUEST_ID_EXAMPLE } from "../error.ts";
import { JobExplanation } from "../explanation.ts";
import {
  CanceledJob,
  Job,
  JobBatch,
  JobBatchRequest,
  JobId,
  JobList,
  JobListParameters,
  type ListedJob,
  NewJobRequest,
} from "../job.ts";
import { NEXT_CURSOR_EXAMPLE } from "../list.ts";
import { operation } from "./operation.ts";

const CREATED_AT = "2026-11-21T06:12:25.328Z";

const JOB_REQUEST_EXAMPLE: Static<typeof NewJobRequest> = {
  target_url: "https://example.com/hooks/invoices",
  payload: { invoice: 4711 },
};

const FULL_JOB_REQUEST_EXAMPLE: Static<typeof NewJobRequest> = {
  target_url: "https://example.com/hooks/reminders",
  payload: { invoice: 4711, reminder: 1 },
  run_at: "2030-12-24T18:00:00Z",
  region: "eu-central",
  retry_policy: { max_attempts: 10, base_seconds: 30, cap_seconds: 3_600 },
  tags: ["reminder", "customer:4711"],
};

const LISTED_JOB_EXAMPLE: Static<typeof ListedJob> = {
  id: "job_01m7ybr3kgsnpd4n830jn3f3ba",
  status: "queued",
  target_url: JOB_REQUEST_EXAMPLE.target_url,
  region: "us-east",
  attempts: 0,
  created_at: CREATED_AT,
};

export const JOB_EXAMPLE: Static<typeof Job> = {
  ...LISTED_JOB_EXAMPLE,
  payload: { invoice: 4711 },
  run_at: CREATED_AT,
  retry_policy: { max_attempts: 5, base_seconds: 10, cap_seconds: 3_600 },
};

const BATCH_EXAMPLE: Static<typeof JobBatch> = {
  data: [
    JOB_EXAMPLE,
    {
      ...JOB_EXAMPLE,
      id: "job_01m7ybr3kgsnpd4n830jn3f3bb",
      target_url: FULL_JOB_REQUEST_EXAMPLE.target_url,
      payload: { invoice: 4711, reminder: 1 },
      run_at: "2030-12-24T18:00:00.000Z",
      region: "eu-central",
      retry_policy: { max_attempts: 10, base_seconds: 30, cap_seconds: 3_600 },
      tags: ["reminder", "customer:4711"],
    },
  ],
};

const BAD_ENTRY_EXAMPLE: ErrorView = {
  error: {
    code: "invalid_request",
    message: "1 of 2 jobs cannot be created, so none was.",
    request_id: REQUEST_ID_EXAMPLE,
    details: [
      {
        index: 1,
        code: "run_at_in_past",
        message: RUN_AT_IN_PAST,
        param: "run_at",
      },
    ],
  },
};

const JOB_LIST_EXAMPLE: Static<typeof JobList> = {
  data: [{ ...LISTED_JOB_EXAMPLE, status: "succeeded", attempts: 1 }],
  next_cursor: NEXT_CURSOR_EXAMPLE,
};

const CANCELED_JOB_EXAMPLE: Static<typeof CanceledJob> = {
  ...LISTED_JOB_EXAMPLE,
  status: "canceled",
  run_at: CREATED_AT,
};

const WAITING_EXAMPLE: Static<typeof JobExplanation> = {
  job_id: LISTED_JOB_EXAMPLE.id,
  status: "queued",
  as_of: "2026-11-21T06:12:30.000Z",
  waiting: {
    for: "concurrency",
    since: CREATED_AT,
    until: null,
    ahead: 12,
    limit: 500,
    in_use: 500,
    message: "The project has 500 attempts in progress and may have 500; 12 attempts go before this one.",
  },
  timeline: [
    { at: CREATED_AT, event: "created" },
    { at: CREATED_AT, event: "due", attempt: 1 },
  ],
};

const OVER_EXAMPLE: Static<typeof JobExplanation> = {
  job_id: LISTED_JOB_EXAMPLE.id,
  status: "succeeded",
  as_of: "2026-11-21T06:13:00.000Z",
  waiting: null,
  timeline: [
    { at: CREATED_AT, event: "created" },
    { at: CREATED_AT, event: "due", attempt: 1 },
    {
      at: "2026-11-21T06:12:25.331Z",
      event: "started",
      run_id: "run_01m7ybr3vq81qbcnqxb2xa9jzd",
      attempt: 1,
      late_ms: 3,
      held_for: null,
    },
    {
      at: "2026-11-21T06:12:25.357Z",
      event: "ended",
      run_id: "run_01m7ybr3vq81qbcnqxb2xa9jzd",
      attempt: 1,
      status: "succeeded",
      response_status: 200,
      duration_ms: 26,
    },
  ],
};

export const JOB_OPERATIONS = {
  createJob: operation({
    method: "POST",
    path: "/v2/jobs",
    resource: "jobs",
    summary: "Create a job",
    description:
      "Without `run_at` the job runs immediately, with it once at that time. The job's id has the letters and digits of the answer's " +
      "`Request-Id`, so after a 5xx a GET of the job with them tells whether it was created.",
    body: {
      schema: NewJobRequest,
      examples: { immediate: JOB_REQUEST_EXAMPLE, everyField: FULL_JOB_REQUEST_EXAMPLE },
    },
    status: 201,
    response: { schema: Job, examples: { queued: JOB_EXAMPLE } },
    codes: ["run_at_in_past", "quota_exceeded"],
    isTraced: true,
  }),
  createJobBatch: operation({
    method: "POST",
    path: "/v2/jobs/batch",
    resource: "jobs",
    summary: "Create up to 100 jobs",
    description:
      "All jobs are created or none. It counts as one request for the rate limit. Where entries are bad the answer is " +
      "`invalid_request`, and `details` names every one of them with its own code. The first job's id has the letters and digits " +
      "of the answer's `Request-Id`.",
    body: {
      schema: JobBatchRequest,
      examples: { twoJobs: { jobs: [JOB_REQUEST_EXAMPLE, FULL_JOB_REQUEST_EXAMPLE] } },
    },
    status: 201,
    response: { schema: JobBatch, examples: { queued: BATCH_EXAMPLE } },
    codes: ["quota_exceeded"],
    isTraced: true,
    invalidExample: BAD_ENTRY_EXAMPLE,
  }),
  listJobs: operation({
    method: "GET",
    path: "/v2/jobs",
    resource: "jobs",
    summary: "List jobs",
    description:
      "Newest first. List items leave out `payload`, `run_at` and `retry_policy`. Filters may be combined. With a `tag` and a " +
      "`status`, with three filters or more, and by the status `queued` or `running` while 2,500 jobs or more are running, a " +
      "page may hold fewer than `limit`, or none: `next_cursor` alone tells whether others follow.",
    query: JobListParameters,
    response: { schema: JobList, examples: { firstPage: JOB_LIST_EXAMPLE } },
  }),
  getJob: operation({
    method: "GET",
    path: "/v2/jobs/{job_id}",
    id: JobId,
    resource: "jobs",
    summary: "Get a job",
    description: "A job of another project or of the other environment is not found.",
    response: { schema: Job, examples: { queued: JOB_EXAMPLE } },
  }),
  explainJob: operation({
    method: "GET",
    path: "/v2/jobs/{job_id}/explain",
    id: JobId,
    resource: "jobs",
    summary: "Explain a job",
    description:
      "Why the job waits, and what has happened to it. Limits and what is in use of them are the project's, over both environments. " +
      "`ahead` counts the job's own region and environment; where more than 5,000 attempts are due at the same instant it may be " +
      "null.",
    response: { schema: JobExplanation, examples: { waiting: WAITING_EXAMPLE, over: OVER_EXAMPLE } },
  }),
  cancelJob: operation({
    method: "DELETE",
    path: "/v2/jobs/{job_id}",
    id: JobId,
    resource: "jobs",
    summary: "Cancel a job",
    description:
      "No further attempt follows. An attempt in progress runs to its end and its run keeps its true result. A job that " +
      "has ended is refused with `invalid_request`.",
    response: { schema: CanceledJob, examples: { canceled: CANCELED_JOB_EXAMPLE } },
  }),
};
