import { firstIdAt, idToUuid, JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { RunStatus } from "../../domain/run.ts";
import type { Scope } from "../../domain/scope.ts";
import { ALL_ENDED_RUN_STATUSES, environmentCode, runStatusCode, runStatusOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";

/** A run, ended or in progress. Instants are milliseconds since 1970. */
export interface RunRow {
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

/** A run whose id is older than `sinceAt` (milliseconds since 1970) is outside the project's retention and not found. */
export type RetainedScope = Scope & { sinceAt: number };
export const firstUuidAt = (at: number) => idToUuid(firstIdAt(RUN_PREFIX, at));

export const RUNNING = runStatusCode("running");
export const ENDED_COLUMNS = `id, job_id, attempt, status, response_status, error,
  (extract(epoch FROM started_at) * 1000)::float8 AS started_at, duration_ms,
  (extract(epoch FROM next_retry_at) * 1000)::float8 AS next_retry_at`;
export const RUNNING_COLUMNS = `run_id AS id, job_id, attempt, ${RUNNING}::smallint AS status, NULL::smallint AS response_status, NULL AS error,
  (extract(epoch FROM started_at) * 1000)::float8 AS started_at, NULL::int AS duration_ms, NULL::float8 AS next_retry_at`;
/** One run, or null if this environment has no run with this id, or no longer. A run in progress is always found. */
export async function findRun(db: Database, scope: RetainedScope, id: string): Promise<RunRow | null> {
  const [row] = await db.run<RunColumns>("find_run", FIND, [
    scope.projectNo,
    environmentCode(scope.environment),
    idToUuid(id),
    firstUuidAt(scope.sinceAt),
  ]);
  return row === undefined ? null : readRun(row);
}

const FIND = `
SELECT ${RUNNING_COLUMNS} FROM open_jobs WHERE project_no = $1 AND environment = $2 AND run_id = $3
UNION ALL
SELECT ${ENDED_COLUMNS} FROM runs
 WHERE project_no = $1 AND environment = $2 AND status = ANY (${ALL_ENDED_RUN_STATUSES}) AND id = $3 AND id >= $4`;

/** A run at its beginning. */
export function startedRun(run: Pick<RunRow, "id" | "jobId" | "attempt" | "startedAt">): RunRow {
  return {
    ...run,
    status: "running",
    responseStatus: null,
    error: null,
    durationMs: null,
    nextRetryAt: null,
  };
}

export interface RunColumns {
  id: string;
  job_id: string;
  attempt: number;
  status: number;
  response_status: number | null;
  error: string | null;
  started_at: number;
  duration_ms: number | null;
  next_retry_at: number | null;
}

export function readRun(row: RunColumns): RunRow {
  return {
    id: uuidToId(RUN_PREFIX, row.id),
    jobId: uuidToId(JOB_PREFIX, row.job_id),
    attempt: row.attempt,
    status: runStatusOf(row.status),
    responseStatus: row.response_status,
    error: row.error,
    startedAt: row.started_at,
    durationMs: row.duration_ms,
    nextRetryAt: row.next_retry_at,
  };
}
