import type { Static } from "@sinclair/typebox";
import { ATTEMPTS_MAX } from "../../domain/job.ts";
import { Run, RunId, RunList, RunListParameters } from "../run.ts";
import { operation } from "./operation.ts";

const RUN_EXAMPLE: Static<typeof Run> = {
  id: "run_01m7ybr3vq81qbcnqxb2xa9jzd",
  job_id: "job_01m7ybr3kgsnpd4n830jn3f3ba",
  attempt: 1,
  status: "failed",
  response_status: 503,
  error: "The target answered 503 with an empty body.",
  started_at: "2026-11-21T06:12:25.592Z",
  duration_ms: 26,
  next_retry_at: "2026-11-21T06:12:31.204Z",
};

const NEW_RUN_EXAMPLE: Static<typeof Run> = {
  ...RUN_EXAMPLE,
  id: "run_01m7ybr9c2w1k3v5t7s9q1n3m5",
  attempt: 2,
  status: "running",
  response_status: null,
  error: null,
  started_at: "2026-11-21T06:12:28.017Z",
  duration_ms: null,
  next_retry_at: null,
};

const RUN_LIST_EXAMPLE: Static<typeof RunList> = {
  data: [NEW_RUN_EXAMPLE, RUN_EXAMPLE],
  next_cursor: null,
};

export const RUN_OPERATIONS = {
  listRuns: operation({
    method: "GET",
    path: "/v2/runs",
    resource: "runs",
    summary: "List runs",
    description:
      "Newest first, of all jobs, within the plan's retention window. A run's age counts from when it was created, and a run in " +
      "progress is shown however old it is. Filters may be combined. Where runs are filtered by `tag`, `schedule_id` or when they " +
      "started, a page may hold fewer than `limit`, or none: `next_cursor` alone tells whether others follow. A run retried by hand " +
      "stands where it was asked for, and `started_at` tells when it was sent.",
    query: RunListParameters,
    response: { schema: RunList, examples: { firstPage: RUN_LIST_EXAMPLE } },
  }),
  getRun: operation({
    method: "GET",
    path: "/v2/runs/{run_id}",
    id: RunId,
    resource: "runs",
    summary: "Get a run",
    description:
      "A run older than the plan's retention window is not found. Its age counts from when it was created. The run of a retry by " +
      "hand is created when the retry is asked for: if it waits for longer than the window, it is not found once it has ended.",
    response: { schema: Run, examples: { failed: RUN_EXAMPLE } },
  }),
  retryRun: operation({
    method: "POST",
    path: "/v2/runs/{run_id}/retry",
    id: RunId,
    resource: "runs",
    summary: "Retry a run now",
    description:
      "Starts a new attempt of the run's job outside the automatic backoff. The run must be failed or timed_out, and its " +
      "job failed, or queued between attempts; anything else is refused with `invalid_request`. A job whose attempts are " +
      `exhausted is reopened for exactly one more, up to ${ATTEMPTS_MAX} attempts of a job. A body is ignored.`,
    status: 201,
    response: { schema: Run, examples: { running: NEW_RUN_EXAMPLE } },
    codes: ["quota_exceeded"],
    isTraced: true,
  }),
};
