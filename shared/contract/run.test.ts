import { expect, test } from "bun:test";
import { Value } from "@sinclair/typebox/value";
import { ApiError } from "../domain/errors.ts";
import { Run, type RunFacts, readRunListQuery, viewRun } from "./run.ts";

const jobId = "job_01arz3ndektsv4rrffq69g5fav";

test("a run object has exactly the documented fields, nulls included", () => {
  const running: RunFacts = {
    id: "run_01arz3ndektsv4rrffq69g5fav",
    jobId,
    attempt: 1,
    status: "running",
    responseStatus: null,
    error: null,
    startedAt: Date.parse("2026-11-21T10:00:00Z"),
    durationMs: null,
    nextRetryAt: null,
  };
  const view = viewRun(running);
  expect(Value.Check(Run, view)).toBe(true);
  expect(view).toEqual({
    id: running.id,
    job_id: jobId,
    attempt: 1,
    status: "running",
    response_status: null,
    error: null,
    started_at: "2026-11-21T10:00:00.000Z",
    duration_ms: null,
    next_retry_at: null,
  });
  const failed = viewRun({
    ...running,
    status: "failed",
    responseStatus: 503,
    error: "busy",
    durationMs: 12,
    nextRetryAt: running.startedAt + 1_500,
  });
  expect(Value.Check(Run, failed)).toBe(true);
  expect(failed.next_retry_at).toBe("2026-11-21T10:00:01.500Z");
});

test("the runs of a malformed job id are an empty list, not an error", () => {
  expect(readRunListQuery("").job).toEqual({ kind: "any" });
  expect(readRunListQuery(`job_id=${jobId}&status=timed_out`)).toEqual({
    pageSize: 50,
    cursor: null,
    status: "timed_out",
    job: { kind: "one", id: jobId },
    tag: null,
    schedule: { kind: "any" },
    startedAfter: null,
    startedBefore: null,
  });
  for (const text of ["", "x", jobId.toUpperCase(), "run_01arz3ndektsv4rrffq69g5fav"]) {
    expect(readRunListQuery(`job_id=${text}`).job).toEqual({ kind: "none" });
  }
  for (const query of [
    "status=queued",
    "region=us-east",
    "limit=201",
    "tag=",
    "created_after=2026-11-21T10:00:00Z",
  ]) {
    expect(() => readRunListQuery(query)).toThrow(ApiError);
  }
});

test("the runs list is filtered by tag, schedule and start", () => {
  const scheduleId = "sch_01arz3ndektsv4rrffq69g5fav";
  const started = "started_after=2026-11-21T10:00:00.0019Z&started_before=2026-11-21T12:00:00%2B01:00";
  expect(readRunListQuery(`tag=a&schedule_id=${scheduleId}&${started}`)).toMatchObject({
    tag: "a",
    schedule: { kind: "one", id: scheduleId },
    startedAfter: Date.parse("2026-11-21T10:00:00.001Z"),
    startedBefore: Date.parse("2026-11-21T11:00:00Z"),
  });
  expect(readRunListQuery("schedule_id=x").schedule).toEqual({ kind: "none" });
});
