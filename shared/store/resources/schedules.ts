import type { RetryPolicy } from "../../domain/backoff.ts";
import { idToUuid, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { Environment, ProjectNo } from "../../domain/scope.ts";
import { environmentCode, environmentOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import type { KeyCause } from "./audit.ts";
import { type KeyToTake, ON_CONFLICT_TAKE_KEY } from "./idempotency.ts";

/** A schedule. Instants are milliseconds since 1970. */
export interface ScheduleRow {
  id: string;
  projectNo: ProjectNo;
  environment: Environment;
  name: string;
  cron: string;
  timezone: string;
  targetUrl: string;
  /** JSON text. */
  payload: string;
  retryPolicy: RetryPolicy;
  paused: boolean;
  nextRunAt: number | null;
  /** Of how many changes by a client this is the outcome. */
  revision: number;
}

export interface ScheduleToCreate extends Omit<ScheduleRow, "paused" | "revision"> {
  shard: number;
  /** How many active schedules the project may have. */
  activeMax: number;
}

type Scope = { projectNo: ProjectNo; environment: Environment };

export type CreatedSchedule = "created" | "name_taken" | "limit_exceeded" | "key_taken";

/**
 * Creates an active schedule, with the audit entry and, where a key was given, what it answers. The project's row is
 * locked first, so that its creations see each other's names and count; the name's constraint has the last word, and
 * takes everything else of the statement back.
 */
export async function createSchedule(
  db: Database,
  schedule: ScheduleToCreate,
  cause: KeyCause,
  key: (KeyToTake & { answer: Buffer }) | null,
): Promise<CreatedSchedule> {
  try {
    const [row] = await db.run<{ outcome: CreatedSchedule }>("create_schedule", CREATE, [
      schedule.projectNo,
      environmentCode(schedule.environment),
      idToUuid(schedule.id),
      schedule.name,
      schedule.cron,
      schedule.timezone,
      schedule.targetUrl,
      schedule.payload,
      schedule.retryPolicy.maxAttempts,
      schedule.retryPolicy.baseSeconds,
      schedule.retryPolicy.capSeconds,
      nullableInstant(schedule.nextRunAt),
      schedule.shard,
      schedule.activeMax,
      idToUuid(cause.requestId),
      cause.keyNo,
      schedule.id,
      key?.digest ?? null,
      key?.requestHash ?? null,
      key?.answer ?? null,
    ]);
    if (row === undefined) throw new Error(`there is no project ${schedule.projectNo}`);
    return row.outcome;
  } catch (error) {
    if (isNameConflict(error)) return "name_taken";
    throw error;
  }
}

const CREATE = `
WITH project AS MATERIALIZED (
  SELECT no, active_schedules FROM projects WHERE no = $1 FOR NO KEY UPDATE
), judged AS MATERIALIZED (
  SELECT CASE WHEN EXISTS (SELECT FROM schedules WHERE project_no = $1 AND environment = $2 AND name = $4) THEN 'name_taken'
              WHEN active_schedules >= $14 THEN 'limit_exceeded'
              ELSE 'created' END AS outcome
    FROM project
), key AS (
  INSERT INTO idempotency_keys AS k (created_at, project_no, environment, digest, request_hash, job_ids, answer)
  SELECT now(), $1, $2, $18, $19, '{}', $20
    FROM judged WHERE outcome = 'created' AND $18::bytea IS NOT NULL ${ON_CONFLICT_TAKE_KEY}
  RETURNING 1
), decided AS MATERIALIZED (
  SELECT CASE WHEN outcome = 'created' AND $18 IS NOT NULL AND NOT EXISTS (SELECT FROM key) THEN 'key_taken'
              ELSE outcome END AS outcome
    FROM judged
), made AS (
  INSERT INTO schedules (project_no, environment, id, name, cron, timezone, target_url, payload, max_attempts,
                         base_seconds, cap_seconds, next_run_at, shard)
  SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::timestamptz, $13 FROM decided WHERE outcome = 'created'
), counted AS (
  UPDATE projects SET active_schedules = active_schedules + 1
   WHERE no = $1 AND EXISTS (SELECT FROM decided WHERE outcome = 'created')
), timetable AS (
  -- From before its first firing on, which may have come while the statement waited for its turn.
  INSERT INTO timetables (since, schedule_id, paused, cron, timezone)
  SELECT least(now(), $12::timestamptz - interval '1 ms'), $3, false, $5, $6 FROM decided WHERE outcome = 'created'
), audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject)
  SELECT $15, $1, $2, $16, 'schedule.create', $17 FROM decided WHERE outcome = 'created'
)
SELECT outcome FROM decided`;

/** One schedule, or null if this environment has none of that id. */
export async function findSchedule(db: Database, scope: Scope, id: string): Promise<ScheduleRow | null> {
  const [row] = await db.run<Row>("find_schedule", FIND, [
    scope.projectNo,
    environmentCode(scope.environment),
    idToUuid(id),
  ]);
  return row === undefined ? null : readSchedule(row);
}

const COLUMNS = `id, project_no, environment, name, cron, timezone, target_url, payload, max_attempts, base_seconds, cap_seconds,
       paused, (extract(epoch FROM next_run_at) * 1000)::float8 AS next_run_at, revision`;
const FIND = `SELECT ${COLUMNS} FROM schedules WHERE project_no = $1 AND environment = $2 AND id = $3`;

/** Of a page's payloads together; only the last of them may go beyond it. */
export const PAGE_BYTES_MAX = 4_194_304;
/** Of one statement's: what comes at once is dealt with at once, and nobody else has a turn meanwhile. */
const STATEMENT_BYTES_MAX = 262_144;

/**
 * A page of an environment's schedules, newest first. It is cut where its payloads become too many bytes for one answer:
 * then others follow although there are fewer than `limit`. Large payloads come in several statements, so that a page may
 * miss what was deleted, and hold what was changed, while it was read.
 */
export async function listSchedules(
  db: Database,
  query: Scope & { paused: boolean | null; beforeId: string | null; limit: number },
): Promise<{ rows: ScheduleRow[]; isCut: boolean }> {
  const rows: ScheduleRow[] = [];
  let bytesLeft = PAGE_BYTES_MAX;
  for (;;) {
    const beforeId = rows.at(-1)?.id ?? query.beforeId;
    const found = await db.run<ListedRow>("list_schedules", LIST, [
      query.projectNo,
      environmentCode(query.environment),
      query.paused === null ? "{false,true}" : `{${query.paused}}`,
      beforeId === null ? NEWEST_UUID : idToUuid(beforeId),
      query.limit - rows.length,
      Math.min(STATEMENT_BYTES_MAX, bytesLeft),
    ]);
    for (const row of found) {
      rows.push(readSchedule(row));
      bytesLeft -= row.bytes;
    }
    const isCut = found.length < (found[0]?.found ?? 0);
    if (!isCut || bytesLeft <= 0) return { rows, isCut };
  }
}

interface ListedRow extends Row {
  /** Of its payload. */
  bytes: number;
  /** How many there are up to the limit. */
  found: number;
}

const NEWEST_UUID = "ffffffff-ffff-ffff-ffff-ffffffffffff";

// The size of a payload is known without reading it.
const LIST = `
SELECT page.found, page.bytes, one.*
  FROM (
   SELECT found.id, bytes, sum(bytes) OVER (ORDER BY found.id DESC) - bytes AS bytes_before, count(*) OVER ()::int AS found
     FROM unnest($3::boolean[]) AS p (paused)
    CROSS JOIN LATERAL (
      SELECT id, octet_length(payload) AS bytes FROM schedules
       WHERE project_no = $1 AND environment = $2 AND paused = p.paused AND id < $4
       ORDER BY id DESC LIMIT $5) found
    ORDER BY found.id DESC LIMIT $5) page
 CROSS JOIN LATERAL (
   SELECT ${COLUMNS} FROM schedules WHERE project_no = $1 AND environment = $2 AND id = page.id) one
 WHERE page.bytes_before < $6
 ORDER BY one.id DESC`;

/** What a client changes of a schedule; all of it together, as decided on the row of that revision. */
export interface ScheduleChange {
  revision: number;
  cron: string;
  timezone: string;
  payload: string;
  paused: boolean;
  /** Undefined leaves the next firing as it is, whatever has fired meanwhile. */
  nextRunAt: number | null | undefined;
  activeMax: number;
}

export type ChangedSchedule =
  | { kind: "changed"; schedule: ScheduleRow }
  /** It has another revision by now, or is gone, or what was to be its next firing has passed: look again. */
  | { kind: "moved" }
  | { kind: "limit_exceeded" };

/**
 * Changes one schedule. Whoever locks its row first wins: after a firing the job exists, and after a pause no firing
 * finds the instant that it was going to fire.
 */
export async function changeSchedule(
  db: Database,
  scope: Scope,
  id: string,
  change: ScheduleChange,
  cause: KeyCause,
): Promise<ChangedSchedule> {
  const [row] = await db.run<Row & { outcome: ChangedSchedule["kind"] }>("change_schedule", CHANGE, [
    scope.projectNo,
    environmentCode(scope.environment),
    idToUuid(id),
    change.revision,
    change.cron,
    change.timezone,
    change.payload,
    change.paused,
    change.nextRunAt !== undefined,
    nullableInstant(change.nextRunAt ?? null),
    change.activeMax,
    idToUuid(cause.requestId),
    cause.keyNo,
    id,
  ]);
  if (row === undefined) return { kind: "moved" };
  return row.outcome === "changed" ? { kind: "changed", schedule: readSchedule(row) } : { kind: row.outcome };
}

const CHANGE = `
WITH project AS MATERIALIZED (
  SELECT no, active_schedules FROM projects WHERE no = $1 FOR NO KEY UPDATE
), old AS MATERIALIZED (
  SELECT s.paused, s.cron, s.timezone, s.next_run_at, p.active_schedules
    FROM project p JOIN schedules s ON s.project_no = $1 AND s.environment = $2 AND s.id = $3
   WHERE s.revision = $4
     FOR NO KEY UPDATE OF s
), decided AS MATERIALIZED (
  -- The row is locked by now: nothing fires between this instant and the change.
  SELECT *, CASE WHEN paused AND NOT $8::boolean AND active_schedules >= $11 THEN 'limit_exceeded'
                 WHEN $9::boolean AND $10::timestamptz <= at THEN 'moved'
                 ELSE 'changed' END AS outcome
    FROM (SELECT *, clock_timestamp() AS at FROM old) o
), changed AS (
  UPDATE schedules s
     SET cron = $5, timezone = $6, payload = $7, paused = $8, revision = s.revision + 1,
         next_run_at = CASE WHEN $9::boolean THEN $10::timestamptz ELSE s.next_run_at END
   WHERE s.project_no = $1 AND s.environment = $2 AND s.id = $3 AND EXISTS (SELECT FROM decided WHERE outcome = 'changed')
  RETURNING ${COLUMNS}
), counted AS (
  UPDATE projects p SET active_schedules = p.active_schedules + CASE WHEN $8 THEN -1 ELSE 1 END
    FROM decided d WHERE p.no = $1 AND d.outcome = 'changed' AND d.paused <> $8
), timetable AS (
  INSERT INTO timetables (since, schedule_id, superseded_at, paused, cron, timezone)
  SELECT at, $3, next_run_at, $8, $5, $6
    FROM decided WHERE outcome = 'changed' AND (paused <> $8 OR cron <> $5 OR timezone <> $6)
), replaced AS (
  UPDATE timetables t SET replaced_at = d.at
    FROM decided d
   WHERE d.outcome = 'changed' AND (d.paused <> $8 OR d.cron <> $5 OR d.timezone <> $6) AND t.schedule_id = $3
     AND t.no = (SELECT no FROM timetables WHERE schedule_id = $3 ORDER BY no DESC LIMIT 1)
), audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject, detail)
  SELECT $12, $1, $2, $13, 'schedule.update', $14, json_build_object('cron', $5::text, 'timezone', $6::text, 'paused', $8::boolean)
    FROM decided WHERE outcome = 'changed'
)
SELECT d.outcome, c.* FROM decided d LEFT JOIN changed c ON true`;

/**
 * Deletes one schedule; its jobs stay. False if this environment has none of that id. Of its timetables there may be
 * millions: they are left to the purge.
 */
export async function deleteSchedule(
  db: Database,
  scope: Scope,
  id: string,
  cause: KeyCause,
): Promise<boolean> {
  const rows = await db.run("delete_schedule", DELETE, [
    scope.projectNo,
    environmentCode(scope.environment),
    idToUuid(id),
    idToUuid(cause.requestId),
    cause.keyNo,
    id,
  ]);
  return rows.length === 1;
}

const DELETE = `
WITH project AS MATERIALIZED (
  SELECT no FROM projects WHERE no = $1 FOR NO KEY UPDATE
), deleted AS (
  DELETE FROM schedules s USING project
   WHERE s.project_no = project.no AND s.environment = $2 AND s.id = $3
  RETURNING s.id, s.paused
), counted AS (
  UPDATE projects p SET active_schedules = p.active_schedules - 1
    FROM deleted d WHERE p.no = $1 AND NOT d.paused
), past AS (
  INSERT INTO deleted_schedules (schedule_id) SELECT id FROM deleted
), audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject)
  SELECT $4, $1, $2, $5, 'schedule.delete', $6 FROM deleted
)
SELECT id FROM deleted`;

/** Over both environments. */
export async function countActiveSchedules(db: Database, projectNo: ProjectNo): Promise<number> {
  const text = "SELECT active_schedules AS count FROM projects WHERE no = $1";
  const [row] = await db.run<{ count: number }>("count_active_schedules", text, [projectNo]);
  return row?.count ?? 0;
}

interface Row {
  id: string;
  project_no: number;
  environment: number;
  name: string;
  cron: string;
  timezone: string;
  target_url: string;
  payload: string;
  max_attempts: number;
  base_seconds: number;
  cap_seconds: number;
  paused: boolean;
  next_run_at: number | null;
  revision: number;
}

function readSchedule(row: Row): ScheduleRow {
  return {
    id: uuidToId(SCHEDULE_PREFIX, row.id),
    projectNo: row.project_no,
    environment: environmentOf(row.environment),
    name: row.name,
    cron: row.cron,
    timezone: row.timezone,
    targetUrl: row.target_url,
    payload: row.payload,
    retryPolicy: {
      maxAttempts: row.max_attempts,
      baseSeconds: row.base_seconds,
      capSeconds: row.cap_seconds,
    },
    paused: row.paused,
    nextRunAt: row.next_run_at,
    revision: row.revision,
  };
}

const nullableInstant = (ms: number | null) => (ms === null ? null : new Date(ms).toISOString());

/** SQLSTATE 23505 of the names' own constraint. */
function isNameConflict(error: unknown): boolean {
  const { code, constraint } = error as { code?: unknown; constraint?: unknown };
  return code === "23505" && constraint === "schedules_name";
}
