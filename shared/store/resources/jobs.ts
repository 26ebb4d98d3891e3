import type { Flow } from "../../domain/flow-key.ts";
import { idToUuid, JOB_PREFIX, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import { type JobStatus, jobStatusOf } from "../../domain/job.ts";
import type { Region, Scope } from "../../domain/scope.ts";
import {
  ALL_ENDED_STATUSES,
  ALL_REGIONS,
  endedStatusOf,
  environmentCode,
  regionOf,
} from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";
import { ATTEMPTS } from "../queue/canceled-jobs.ts";

/** A job as it was asked for when it was created; this never changes. Instants are milliseconds since 1970. */
export interface AskedJob {
  id: string;
  region: Region;
  targetUrl: string;
  /** JSON text. */
  payload: string;
  runAt: number;
  maxAttempts: number;
  baseSeconds: number;
  capSeconds: number;
  /** Null for none. */
  tags: string[] | null;
  /** As it was given; null for none. */
  flow: Flow | null;
}

export interface JobSummary extends Pick<AskedJob, "id" | "region" | "targetUrl" | "runAt" | "tags"> {
  status: JobStatus;
  /** Runs recorded so far, one in progress included. */
  attempts: number;
}

/** The facts on which a change of the job is decided. */
export interface JobState extends JobSummary {
  maxAttempts: number;
  /** Whether its latest attempt is on the wire. */
  isSent: boolean;
}

export interface JobRow extends JobSummary, AskedJob {
  scheduleId: string | null;
}

/**
 * Joins a job (j) with its rows of open_jobs (o) and ended_jobs (e). A job canceled on the wire has both. OFFSET 0 has each job
 * looked up by its whole key. Without it the planner might read all rows of a project, in tables that have grown since ANALYZE.
 */
export const STATE_JOINS = `
  LEFT JOIN LATERAL (
    SELECT * FROM open_jobs
     WHERE project_no = j.project_no AND environment = j.environment AND region = j.region AND job_id = j.id OFFSET 0) o ON true
  LEFT JOIN LATERAL (
    SELECT status, attempts FROM ended_jobs
     WHERE project_no = j.project_no AND environment = j.environment AND status = ANY (${ALL_ENDED_STATUSES})
       AND region = j.region AND job_id = j.id OFFSET 0) e ON true`;
const STATE_COLUMNS = `
  e.status AS ended_status, o.run_id IS NOT NULL AS has_run, coalesce(e.attempts, ${ATTEMPTS}) AS attempts`;

/** One job with its payload, or null if this environment has no job with this id. */
export async function findJob(db: Database, scope: Scope, id: string): Promise<JobRow | null> {
  const [row] = await db.run<FullRow>("find_job", FIND, [
    scope.projectNo,
    environmentCode(scope.environment),
    idToUuid(id),
  ]);
  if (row === undefined) return null;
  return {
    ...readSummary(row),
    ...readAsked(row),
    scheduleId: row.schedule_id === null ? null : uuidToId(SCHEDULE_PREFIX, row.schedule_id),
  };
}

/** One job without its payload, or null if this environment has no job with this id. */
export async function findJobState(db: Database, scope: Scope, id: string): Promise<JobState | null> {
  const [row] = await db.run<SummaryRow & { max_attempts: number; is_sent: boolean }>(
    "find_job_state",
    FIND_STATE,
    [scope.projectNo, environmentCode(scope.environment), idToUuid(id)],
  );
  return row === undefined
    ? null
    : { ...readSummary(row), maxAttempts: row.max_attempts, isSent: row.is_sent };
}

/** The bytes of payloads in one statement, except the last payload: its rows are read in one turn of the event loop. */
const ASKED_BYTES_MAX = 524_288;

/** Jobs as they were asked for, in the order of the ids; all of them must be there. */
export async function findAskedJobs(db: Database, scope: Scope, ids: readonly string[]): Promise<AskedJob[]> {
  if (ids.length <= 1) return findAskedTogether(db, scope, ids);
  const sizes = await db.run<{ bytes: number }>("measure_asked_jobs", MEASURE_ASKED, [
    scope.projectNo,
    environmentCode(scope.environment),
    column(ids.map(idToUuid)),
  ]);
  const jobs: AskedJob[] = [];
  let [begin, bytes] = [0, 0];
  for (const [index, size] of sizes.entries()) {
    bytes += size.bytes;
    if (bytes < ASKED_BYTES_MAX && index < ids.length - 1) continue;
    jobs.push(...(await findAskedTogether(db, scope, ids.slice(begin, index + 1))));
    [begin, bytes] = [index + 1, 0];
  }
  if (jobs.length !== ids.length) throw new Error(`${ids.length - jobs.length} jobs are missing`);
  return jobs;
}

async function findAskedTogether(db: Database, scope: Scope, ids: readonly string[]): Promise<AskedJob[]> {
  const rows = await db.run<AskedRow>("find_asked_jobs", FIND_ASKED, [
    scope.projectNo,
    environmentCode(scope.environment),
    column(ids.map(idToUuid)),
  ]);
  if (rows.length !== ids.length) throw new Error(`${ids.length - rows.length} jobs are missing`);
  return rows.map(readAsked);
}

// Postgres knows the size of a payload without reading it.
const MEASURE_ASKED = `
SELECT octet_length(j.payload) AS bytes
  FROM unnest($3::uuid[]) WITH ORDINALITY AS i (id, n)
  JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = ANY (${ALL_REGIONS}) AND j.id = i.id
 ORDER BY i.n`;

const FIND_ASKED = `
SELECT j.id, j.region, j.target_url, j.payload, (extract(epoch FROM j.run_at) * 1000)::float8 AS run_at,
       j.max_attempts, j.base_seconds, j.cap_seconds, j.tags, j.flow
  FROM unnest($3::uuid[]) WITH ORDINALITY AS i (id, n)
  JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = ANY (${ALL_REGIONS}) AND j.id = i.id
 ORDER BY i.n`;

export const SUMMARY_COLUMNS = `j.id, j.region, j.target_url, j.tags,
  (extract(epoch FROM j.run_at) * 1000)::float8 AS run_at, ${STATE_COLUMNS}`;

const FIND_STATE = `
SELECT ${SUMMARY_COLUMNS}, j.max_attempts, o.node_id IS NOT NULL AS is_sent
  FROM jobs j ${STATE_JOINS}
 WHERE j.project_no = $1 AND j.environment = $2 AND j.region = ANY (${ALL_REGIONS}) AND j.id = $3`;

const FIND = `
SELECT ${SUMMARY_COLUMNS}, j.payload, j.max_attempts, j.base_seconds, j.cap_seconds, j.schedule_id, j.flow
  FROM jobs j ${STATE_JOINS}
 WHERE j.project_no = $1 AND j.environment = $2 AND j.region = ANY (${ALL_REGIONS}) AND j.id = $3`;

export interface SummaryRow {
  id: string;
  region: number;
  target_url: string;
  tags: string[] | null;
  run_at: number;
  ended_status: number | null;
  has_run: boolean;
  attempts: number;
}

interface AskedRow extends Pick<SummaryRow, "id" | "region" | "target_url" | "tags" | "run_at"> {
  payload: string;
  max_attempts: number;
  base_seconds: number;
  cap_seconds: number;
  flow: Flow | null;
}

interface FullRow extends SummaryRow, AskedRow {
  schedule_id: string | null;
}

export function readSummary(row: SummaryRow): JobSummary {
  return {
    id: uuidToId(JOB_PREFIX, row.id),
    status: jobStatusOf({
      endedAs: row.ended_status === null ? null : endedStatusOf(row.ended_status),
      hasRunInProgress: row.has_run,
    }),
    targetUrl: row.target_url,
    region: regionOf(row.region),
    attempts: row.attempts,
    runAt: row.run_at,
    tags: row.tags,
  };
}

function readAsked(row: AskedRow): AskedJob {
  return {
    id: uuidToId(JOB_PREFIX, row.id),
    region: regionOf(row.region),
    targetUrl: row.target_url,
    payload: row.payload,
    runAt: row.run_at,
    maxAttempts: row.max_attempts,
    baseSeconds: row.base_seconds,
    capSeconds: row.cap_seconds,
    tags: row.tags,
    flow: row.flow,
  };
}
