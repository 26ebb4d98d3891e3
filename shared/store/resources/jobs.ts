import { idToUuid, JOB_PREFIX, retypeId, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import { isTerminal, type JobStatus, jobStatusOf } from "../../domain/job.ts";
import { type Environment, type ProjectNo, REGIONS, type Region } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import {
  ENDED_STATUSES,
  endedStatusCode,
  endedStatusOf,
  environmentCode,
  regionCode,
  regionOf,
} from "../database/codes.ts";
import { column, type Database, instant, StoreUnavailable, textColumn } from "../database/database.ts";
import { traceHex } from "../database/traces.ts";
import { HAS_QUOTA } from "../queue/month.ts";
import type { KeyCause } from "./audit.ts";
import { type KeyToTake, ON_CONFLICT_TAKE_KEY } from "./idempotency.ts";
import { unplanRetry } from "./runs.ts";

/** A job as it was asked for. Instants are milliseconds since 1970. */
export interface JobToCreate {
  id: string;
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  shard: number;
  targetUrl: string;
  /** JSON text. */
  payload: string;
  runAt: number;
  maxAttempts: number;
  baseSeconds: number;
  capSeconds: number;
  /** The same object for all jobs of one request: they are created together with it or not at all. */
  key?: KeyToTake;
  /** Null for a job that nobody asked for. */
  cause: KeyCause | null;
  /** Of a job that is made out of its schedule's turn. */
  scheduleId?: string;
  /** Where its attempts belong, if anybody has given them a place. */
  trace?: TraceContext | null;
}

export interface JobRow extends Omit<JobToCreate, "shard" | "key" | "cause" | "scheduleId" | "trace"> {
  scheduleId: string | null;
  status: JobStatus;
  /** Runs recorded so far, one in progress included. */
  attempts: number;
}

export type JobSummary = Pick<JobRow, "id" | "status" | "targetUrl" | "region" | "attempts" | "runAt">;

export type Created =
  /** It was committed and is owed from then on. */
  | { kind: "created"; dueAt: number }
  /** The project's month has no run left. */
  | { kind: "quota_exceeded" }
  /** Another request has had the Idempotency-Key; findFirstAnswer tells what it made. */
  | { kind: "key_taken" };

const LARGE_BYTES = 1_048_576;

/**
 * Creates many jobs in one statement: all that are accepted, or after an error none. A job whose id exists already is
 * left as it is and reported as created, so that an unknown outcome can simply be sent again; what is owed is inserted
 * only together with the job, or a job that has run and ended meanwhile would run once more.
 *
 * `knownLanes` is the caller's memory of lanes that have their row; new ones are added to it.
 */
export async function createJobs(
  db: Database,
  jobs: readonly JobToCreate[],
  knownLanes: Set<string>,
): Promise<Created[]> {
  const payloads = textColumn(jobs.map((job) => job.payload));
  // What took tens of milliseconds to encode takes as many to send, and requests have a turn in between.
  if (payloads.length > LARGE_BYTES) await new Promise(setImmediate);
  const lanes = jobs.map((job) => `${job.projectNo}/${job.region}/${job.environment}/${job.shard}`);
  const values = [
    column(jobs.map((job) => job.projectNo)),
    column(jobs.map((job) => environmentCode(job.environment))),
    column(jobs.map((job) => regionCode(job.region))),
    column(jobs.map((job, index) => (knownLanes.has(lanes[index] ?? "") ? null : job.shard))),
    column(jobs.map((job) => idToUuid(job.id))),
    textColumn(jobs.map((job) => job.targetUrl)),
    payloads,
    column(jobs.map((job) => instant(job.runAt))),
    column(jobs.map((job) => job.maxAttempts)),
    column(jobs.map((job) => job.baseSeconds)),
    column(jobs.map((job) => job.capSeconds)),
    column(jobs.map((job) => job.cause?.keyNo ?? null)),
    column(jobs.map((job) => requestUuidOf(job))),
    column(jobs.map((job) => (job.scheduleId === undefined ? null : idToUuid(job.scheduleId)))),
    column(jobs.map((job) => traceHex(job.trace ?? null))),
  ];
  const rows = jobs.some((job) => job.key !== undefined)
    ? await db.run<CreatedRow>("create_jobs_keyed", CREATE_KEYED, [
        ...values,
        jobs.map((job) => job.key?.digest ?? null),
        jobs.map((job) => job.key?.requestHash ?? null),
      ])
    : await db.run<CreatedRow>("create_jobs", CREATE, values);
  return rows.map((row, index) => {
    if (!row.created) return { kind: row.key_taken ? "key_taken" : "quota_exceeded" };
    knownLanes.add(lanes[index] ?? "");
    return { kind: "created", dueAt: row.due_at };
  });
}

/** Null where the job's own id says it. */
function requestUuidOf({ id, cause }: JobToCreate): string | null {
  return cause === null || retypeId(cause.requestId, JOB_PREFIX) === id ? null : idToUuid(cause.requestId);
}

interface CreatedRow {
  created: boolean;
  key_taken: boolean;
  due_at: number;
}

const asked = (keys: { parameters: string; columns: string }) => `
  SELECT i.*, ${HAS_QUOTA}
              -- Accepted before, although the quota has been used up since. A scalar, or it might be read as a whole.
              OR (SELECT true FROM jobs j WHERE j.project_no = i.project_no AND j.environment = i.environment
                                            AND j.region = i.region AND j.id = i.id) IS NOT NULL AS accepted
    FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::smallint[], $5::uuid[], $6::text[], $7::text[],
                $8::timestamptz[], $9::smallint[], $10::int[], $11::int[], $12::int[], $13::uuid[], $14::uuid[], $15::text[]${keys.parameters})
         WITH ORDINALITY AS i (project_no, environment, region, new_shard, id, target_url, payload,
                               run_at, max_attempts, base_seconds, cap_seconds, key_no, request_id, schedule_id, trace${keys.columns}, n)
    JOIN flows f USING (project_no)`;

// A run_at in the past is due from this statement on: due_at never lies behind the clock, which lets the sweep begin
// where it ended (sweep.ts).
const writeItems = `job AS (
  INSERT INTO jobs (id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds,
                    cap_seconds, key_no, request_id, schedule_id, trace)
  SELECT id, project_no, environment, region, target_url, payload, run_at, max_attempts, base_seconds, cap_seconds,
         key_no, request_id, schedule_id, decode(trace, 'hex')
    FROM item WHERE accepted
      ON CONFLICT (project_no, environment, region, id) DO NOTHING
  RETURNING project_no, environment, region, id, run_at, max_attempts
), owed AS (
  INSERT INTO open_jobs (project_no, environment, region, job_id, due_at, attempts_allowed)
  SELECT project_no, environment, region, id, greatest(run_at, now()), max_attempts FROM job
), lane AS (
  INSERT INTO lanes AS l (project_no, region, environment, shard)
  SELECT DISTINCT project_no, region, environment, new_shard
    FROM item WHERE accepted AND new_shard IS NOT NULL
   ORDER BY project_no, region, environment
      ON CONFLICT (project_no, region, environment) DO UPDATE SET shard = excluded.shard
   WHERE l.shard <> excluded.shard
)
SELECT accepted AS created, (extract(epoch FROM greatest(run_at, now())) * 1000)::float8 AS due_at`;

const CREATE = `
WITH item AS MATERIALIZED (${asked({ parameters: "", columns: "" })}
), ${writeItems}, false AS key_taken FROM item ORDER BY n`;

// Keys come first and in one order, so that two gateways whose requests have several keys in common wait for each other
// only one way round; everything else reads item, which waits for them.
const CREATE_KEYED = `
WITH asked AS MATERIALIZED (${asked({ parameters: ", $16::bytea[], $17::bytea[]", columns: ", digest, request_hash" })}
), key AS (
  INSERT INTO idempotency_keys AS k (created_at, project_no, environment, digest, request_hash, job_ids)
  SELECT now(), project_no, environment, digest, request_hash, array_agg(id ORDER BY n)
    FROM asked WHERE accepted AND digest IS NOT NULL
   GROUP BY project_no, environment, digest, request_hash
   ORDER BY project_no, environment, digest ${ON_CONFLICT_TAKE_KEY}
  RETURNING project_no, environment, digest
), item AS MATERIALIZED (
  SELECT project_no, environment, region, new_shard, id, target_url, payload, run_at, max_attempts, base_seconds,
         cap_seconds, key_no, request_id, schedule_id, trace, n, accepted AND has_key AS accepted, accepted AND NOT has_key AS key_taken
    FROM (SELECT *, digest IS NULL OR (project_no, environment, digest) IN (TABLE key) AS has_key FROM asked) judged
), ${writeItems}, key_taken FROM item ORDER BY n`;

const ENDED_CODES = `{${ENDED_STATUSES.map(endedStatusCode).join(",")}}`;
const ALL_REGION_CODES = `{${REGIONS.map(regionCode).join(",")}}`;

/** What stands in open_jobs (o) and ended_jobs (e) about a job (j). A job canceled on the wire stands in both. */
const STATE_JOINS = `
  LEFT JOIN open_jobs o ON o.project_no = j.project_no AND o.environment = j.environment
                       AND o.region = j.region AND o.job_id = j.id
  LEFT JOIN ended_jobs e ON e.project_no = j.project_no AND e.environment = j.environment
                        AND e.status = ANY ('${ENDED_CODES}') AND e.region = j.region AND e.job_id = j.id`;
const STATE_COLUMNS = `
  e.status AS ended_status, o.run_id IS NOT NULL AS has_run,
  coalesce(e.attempts, o.attempt - CASE WHEN o.run_id IS NULL THEN 1 ELSE 0 END) AS attempts`;

/** One job with its payload, or null if this environment has none of that id. */
export async function findJob(
  db: Database,
  scope: { projectNo: ProjectNo; environment: Environment },
  id: string,
): Promise<JobRow | null> {
  const [row] = await db.run<FullRow>("find_job", FIND, [
    scope.projectNo,
    environmentCode(scope.environment),
    idToUuid(id),
  ]);
  if (row === undefined) return null;
  return {
    ...readSummary(row),
    projectNo: scope.projectNo,
    environment: scope.environment,
    payload: row.payload,
    maxAttempts: row.max_attempts,
    baseSeconds: row.base_seconds,
    capSeconds: row.cap_seconds,
    scheduleId: row.schedule_id === null ? null : uuidToId(SCHEDULE_PREFIX, row.schedule_id),
  };
}

/** What was asked for when a job was created, and never changes. */
export type AskedJob = Pick<
  JobRow,
  "id" | "region" | "targetUrl" | "payload" | "runAt" | "maxAttempts" | "baseSeconds" | "capSeconds"
>;

/** Of one statement's payloads but for the last: what comes at once is dealt with at once. */
const ASKED_BYTES_MAX = 524_288;

/** Jobs as they were asked for, in the order of the ids; all of them must be there. */
export async function findAskedJobs(
  db: Database,
  scope: { projectNo: ProjectNo; environment: Environment },
  ids: readonly string[],
): Promise<AskedJob[]> {
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

async function findAskedTogether(
  db: Database,
  scope: { projectNo: ProjectNo; environment: Environment },
  ids: readonly string[],
): Promise<AskedJob[]> {
  const rows = await db.run<AskedRow>("find_asked_jobs", FIND_ASKED, [
    scope.projectNo,
    environmentCode(scope.environment),
    column(ids.map(idToUuid)),
  ]);
  if (rows.length !== ids.length) throw new Error(`${ids.length - rows.length} jobs are missing`);
  return rows.map((row) => ({
    id: uuidToId(JOB_PREFIX, row.id),
    region: regionOf(row.region),
    targetUrl: row.target_url,
    payload: row.payload,
    runAt: row.run_at,
    maxAttempts: row.max_attempts,
    baseSeconds: row.base_seconds,
    capSeconds: row.cap_seconds,
  }));
}

// The size of a payload is known without reading it.
const MEASURE_ASKED = `
SELECT octet_length(j.payload) AS bytes
  FROM unnest($3::uuid[]) WITH ORDINALITY AS i (id, n)
  JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = ANY ('${ALL_REGION_CODES}') AND j.id = i.id
 ORDER BY i.n`;

const FIND_ASKED = `
SELECT j.id, j.region, j.target_url, j.payload, (extract(epoch FROM j.run_at) * 1000)::float8 AS run_at,
       j.max_attempts, j.base_seconds, j.cap_seconds
  FROM unnest($3::uuid[]) WITH ORDINALITY AS i (id, n)
  JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = ANY ('${ALL_REGION_CODES}') AND j.id = i.id
 ORDER BY i.n`;

const SUMMARY_COLUMNS = `j.id, j.region, j.target_url, (extract(epoch FROM j.run_at) * 1000)::float8 AS run_at, ${STATE_COLUMNS}`;

const FIND = `
SELECT ${SUMMARY_COLUMNS}, j.payload, j.max_attempts, j.base_seconds, j.cap_seconds, j.schedule_id
  FROM jobs j ${STATE_JOINS}
 WHERE j.project_no = $1 AND j.environment = $2 AND j.region = ANY ('${ALL_REGION_CODES}') AND j.id = $3`;

export interface JobListQuery {
  projectNo: ProjectNo;
  environment: Environment;
  status: JobStatus | null;
  region: Region | null;
  /** Only jobs with a smaller id, that is older ones. */
  beforeId: string | null;
  limit: number;
}

const NEWEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/**
 * A page of a project's jobs, newest first. Each combination of filters walks an index that holds nothing else, region
 * by region, and merges; so a page costs the same however many jobs of other statuses there are.
 */
export async function listJobs(db: Database, query: JobListQuery): Promise<JobSummary[]> {
  const status = query.status;
  const source = status === null ? "any" : isTerminal(status) ? "ended" : status;
  const rows = await db.run<SummaryRow>(`list_jobs_${source}`, LIST[source], [
    query.projectNo,
    environmentCode(query.environment),
    query.region === null ? ALL_REGION_CODES : column([regionCode(query.region)]),
    query.beforeId === null ? NEWEST_UUID : idToUuid(query.beforeId),
    query.limit,
    ...(status !== null && isTerminal(status) ? [endedStatusCode(status)] : []),
  ]);
  return rows.map(readSummary);
}

const page = (from: string) => `
SELECT ${SUMMARY_COLUMNS}
  FROM (SELECT found.id, r.region
          FROM unnest($3::smallint[]) AS r (region)
         CROSS JOIN LATERAL (${from} LIMIT $5) AS found (id)
         ORDER BY found.id DESC LIMIT $5) p
  JOIN jobs j ON j.project_no = $1 AND j.environment = $2 AND j.region = p.region AND j.id = p.id ${STATE_JOINS}
 ORDER BY j.id DESC`;

const LIST = {
  any: page(
    `SELECT id FROM jobs WHERE project_no = $1 AND environment = $2 AND region = r.region AND id < $4 ORDER BY id DESC`,
  ),
  queued: page(`SELECT job_id FROM open_jobs
                 WHERE project_no = $1 AND environment = $2 AND region = r.region AND job_id < $4
                   AND run_id IS NULL AND NOT canceled
                 ORDER BY job_id DESC`),
  // OFFSET 0 keeps the planner to the small index of running jobs; by id it would walk all that is queued.
  running: page(`SELECT job_id
                   FROM (SELECT job_id, environment, region, canceled FROM open_jobs
                          WHERE project_no = $1 AND run_id IS NOT NULL OFFSET 0) running
                  WHERE environment = $2 AND region = r.region AND job_id < $4 AND NOT canceled
                  ORDER BY job_id DESC`),
  ended: page(`SELECT job_id FROM ended_jobs
                WHERE project_no = $1 AND environment = $2 AND region = r.region AND job_id < $4 AND status = $6
                ORDER BY job_id DESC`),
};

/** What a cancel found. `conflict` is a job that had already ended. */
export type Canceled = { kind: "canceled"; job: JobSummary } | { kind: "conflict" } | { kind: "not_found" };

/**
 * Cancels one job. Whoever locks the open row first wins: after a claim the attempt runs to its end and nothing
 * follows; after the cancel no claim finds anything owed.
 */
export async function cancelJob(
  db: Database,
  scope: { projectNo: ProjectNo; environment: Environment },
  id: string,
  cause: KeyCause | null = null,
): Promise<Canceled> {
  for (let look = 0; look < LOOKS_MAX; look++) {
    const [open] = await db.run<{ attempt: number; is_plan_unseen: boolean }>("cancel_job", CANCEL, [
      scope.projectNo,
      environmentCode(scope.environment),
      idToUuid(id),
      id,
      cause === null ? null : idToUuid(cause.requestId),
      cause?.keyNo ?? null,
    ]);
    if (open?.is_plan_unseen) await unplanRetry(db, scope, id, open.attempt);
    const job = await findJob(db, scope, id);
    if (job === null) return { kind: "not_found" };
    if (open !== undefined) return { kind: "canceled", job };
    if (isTerminal(job.status)) return { kind: "conflict" };
  }
  throw new StoreUnavailable(`job ${id} moved ${LOOKS_MAX} times while it was being canceled`);
}

/**
 * A statement that had to wait for a lock sees the locked row as it is now but other tables as they were when it began:
 * a job that changed tables meanwhile is in neither. Looking again settles it.
 */
const LOOKS_MAX = 5;

const CANCEL = `
WITH open AS MATERIALIZED (
  SELECT o.* FROM open_jobs o
   WHERE o.project_no = $1 AND o.environment = $2 AND o.region = ANY ('${ALL_REGION_CODES}') AND o.job_id = $3
     AND NOT o.canceled
     FOR NO KEY UPDATE
), on_the_wire AS (
  UPDATE open_jobs o SET canceled = true FROM open
   WHERE open.node_id IS NOT NULL AND o.project_no = open.project_no AND o.environment = open.environment
     AND o.region = open.region AND o.job_id = open.job_id
), waiting AS (
  DELETE FROM open_jobs o USING open
   WHERE open.node_id IS NULL AND o.project_no = open.project_no AND o.environment = open.environment
     AND o.region = open.region AND o.job_id = open.job_id
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at)
  SELECT project_no, environment, region, job_id, ${endedStatusCode("canceled")},
         attempt - CASE WHEN run_id IS NULL THEN 1 ELSE 0 END, now()
    FROM open
), never_sent AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
                    started_at, duration_ms, next_retry_at)
  SELECT run_id, job_id, project_no, environment, (SELECT retention_class FROM flows WHERE project_no = $1), attempt, 2,
         NULL, 'canceled before it was sent', started_at, 0, NULL
    FROM open WHERE run_id IS NOT NULL AND node_id IS NULL
), unplanned AS (
  UPDATE runs r SET next_retry_at = NULL FROM open
   WHERE open.run_id IS NULL AND r.job_id = open.job_id AND r.attempt = open.attempt - 1 AND r.id >= $3
  RETURNING r.attempt
), audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject)
  SELECT $5, $1, $2, $6, 'job.cancel', $4 FROM open WHERE $5::uuid IS NOT NULL
)
SELECT attempt, run_id IS NULL AND attempt > 1 AND NOT EXISTS (SELECT FROM unplanned) AS is_plan_unseen FROM open`;

interface SummaryRow {
  id: string;
  region: number;
  target_url: string;
  run_at: number;
  ended_status: number | null;
  has_run: boolean;
  attempts: number;
}

interface AskedRow {
  id: string;
  region: number;
  target_url: string;
  payload: string;
  run_at: number;
  max_attempts: number;
  base_seconds: number;
  cap_seconds: number;
}

interface FullRow extends SummaryRow, AskedRow {
  schedule_id: string | null;
}

function readSummary(row: SummaryRow): JobSummary {
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
  };
}
