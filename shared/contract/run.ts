import { type Static, Type } from "@sinclair/typebox";
import { JOB_PREFIX, RUN_PREFIX, SCHEDULE_PREFIX } from "../domain/ids.ts";
import { filterOf, idFilterOf, instantFilterOf, parseQuery, readPage } from "../domain/page.ts";
import { ERROR_BYTES_MAX, RUN_STATUSES, type RunStatus } from "../domain/run.ts";
import { tagFilterOf } from "../domain/tags.ts";
import { idOf } from "./id.ts";
import { instantParameter, JobId, ScheduleIdParameter, TagParameter } from "./job.ts";
import { listOf, pageParameters } from "./list.ts";
import { Timestamp, timestampOf, timestampOrNull } from "./timestamp.ts";
import { namesOf, wordOf } from "./validator.ts";

const RunStatusSchema = wordOf(RUN_STATUSES, "What the attempt came to.", "RunStatus");

export const RunId = idOf(RUN_PREFIX, "The id of a run.");

export const Run = Type.Object(
  {
    id: RunId,
    job_id: JobId,
    attempt: Type.Integer({ minimum: 1, description: "The attempt's number, from 1." }),
    status: RunStatusSchema,
    response_status: Type.Union([Type.Integer(), Type.Null()], {
      description: "HTTP status returned by the target; null if no response was received.",
    }),
    error: Type.Union([Type.String(), Type.Null()], {
      description:
        `What went wrong, or the beginning of the target's answer, at most ${ERROR_BYTES_MAX.toLocaleString("en")} bytes. ` +
        "Null on success and while running.",
    }),
    started_at: Timestamp,
    duration_ms: Type.Union([Type.Integer({ minimum: 0 }), Type.Null()], {
      description: "Null while running.",
    }),
    next_retry_at: Type.Union([Timestamp, Type.Null()], {
      description: "When the attempt after this one was planned; null if none follows.",
    }),
  },
  { additionalProperties: false, title: "Run", description: "The record of one attempt." },
);
export const RunList = listOf(Run, "RunList");

export const RunListParameters = Type.Object({
  ...pageParameters,
  status: Type.Optional(RunStatusSchema),
  job_id: Type.Optional(
    Type.String({ description: "Only the runs of this job. For a job that is unknown the list is empty." }),
  ),
  tag: Type.Optional(TagParameter),
  schedule_id: Type.Optional(ScheduleIdParameter),
  started_after: Type.Optional(instantParameter("Only runs whose `started_at` is later than this.")),
  started_before: Type.Optional(instantParameter("Only runs whose `started_at` is earlier than this.")),
});

/** A run as the store knows it. Instants are milliseconds since 1970. */
export interface RunFacts {
  id: string;
  jobId: string;
  attempt: number;
  status: RunStatus;
  responseStatus: number | null;
  error: string | null;
  startedAt: number;
  durationMs: number | null;
  nextRetryAt: number | null;
}

export function viewRun(run: RunFacts): Static<typeof Run> {
  return {
    id: run.id,
    job_id: run.jobId,
    attempt: run.attempt,
    status: run.status,
    response_status: run.responseStatus,
    error: run.error,
    started_at: timestampOf(run.startedAt),
    duration_ms: run.durationMs,
    next_retry_at: timestampOrNull(run.nextRetryAt),
  };
}

/** The query string of GET /v2/runs. Throws ApiError. */
export function readRunListQuery(query: string) {
  const { status, job_id, tag, schedule_id, started_after, started_before, ...page } = parseQuery(
    query,
    namesOf(RunListParameters),
  );
  return {
    ...readPage(page),
    status: filterOf(status, "status", RUN_STATUSES),
    job: idFilterOf(job_id, JOB_PREFIX),
    tag: tagFilterOf(tag),
    schedule: idFilterOf(schedule_id, SCHEDULE_PREFIX),
    startedAfter: instantFilterOf(started_after, "started_after"),
    startedBefore: instantFilterOf(started_before, "started_before"),
  };
}
