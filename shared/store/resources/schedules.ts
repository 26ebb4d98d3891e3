import type { RetryPolicy } from "../../domain/backoff.ts";
import { idToUuid, NEWEST_UUID, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { DecidedChange } from "../../domain/schedule.ts";
import type { Environment, ProjectNo, Scope } from "../../domain/scope.ts";
import { environmentCode, environmentOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { lookAgain } from "../database/look-again.ts";
import { auditFrom, changeOf, type KeyCause } from "./audit.ts";
import { type KeyToTake, keyOf, takeKeyFrom } from "./idempotency.ts";

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
  /** Null for none. */
  tags: string[] | null;
  /** How many changes clients have made. */
  revision: number;
}

export interface ScheduleToCreate extends Omit<ScheduleRow, "paused" | "revision" | "tags"> {
  tags?: string[] | null;
  shard: number;
  /** How many active schedules the project may have. */
  activeMax: number;
}

export type CreatedSchedule = "created" | "name_taken" | "limit_exceeded" | "key_taken";

/**
 * Creates an active schedule. The statement locks the project's row first, so that creations of one project see each other's
 * names and count. The constraint of the name has the last word: if it fails, the whole statement is taken back.
 */
export async function createSchedule(
  db: Database,
  schedule: ScheduleToCreate,
  cause: KeyCause,
  key: (KeyToTake & { answer: Buffer }) | null,
): Promise<CreatedSchedule> {
  try {
    const { name, cron, timezone, targetUrl, payload, retryPolicy, nextRunAt, shard, activeMax } = schedule;
    const { maxAttempts, baseSeconds, capSeconds } = retryPolicy;
    const [row] = await db.run<{ outcome: CreatedSchedule }>("create_schedule", CREATE, [
      ...changeOf(schedule, schedule.id, cause),
      ...keyOf(key, key?.answer),
      ...[name, cron, timezone, targetUrl, payload, maxAttempts, baseSeconds, capSeconds],
      ...[nullableInstant(nextRunAt), shard, activeMax, schedule.tags ?? null],
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
  SELECT active_schedules FROM projects WHERE no = $1 FOR NO KEY UPDATE
), judged AS MATERIALIZED (
  SELECT CASE WHEN EXISTS (SELECT FROM schedules WHERE project_no = $1 AND environment = $2 AND name = $10) THEN 'name_taken'
              WHEN active_schedules >= $20 THEN 'limit_exceeded' END AS refusal
    FROM project
), found AS MATERIALIZED (
  SELECT FROM judged WHERE refusal IS NULL
), ${takeKeyFrom("found")}, created AS (
  INSERT INTO schedules (project_no, environment, id, name, cron, timezone, target_url, payload, max_attempts,
                         base_seconds, cap_seconds, next_run_at, shard, tags)
  SELECT $1, $2, $3, $10, $11, $12, $13, $14, $15, $16, $17, $18::timestamptz, $19, $21 FROM made
), counted AS (
  UPDATE projects SET active_schedules = active_schedules + 1 WHERE no = $1 AND EXISTS (SELECT FROM made)
), timetable AS (
  -- The timetable begins before its first firing, which may have come while the statement waited for its turn.
  INSERT INTO timetables (since, schedule_id, paused, cron, timezone)
  SELECT least(now(), $18 - interval '1 ms'), $3, false, $11, $12 FROM made
), ${auditFrom("schedule.create", "made")}
SELECT coalesce(refusal, CASE WHEN EXISTS (SELECT FROM made) THEN 'created' ELSE 'key_taken' END) AS outcome FROM judged`;

/** One schedule, or null if this environment has none of that id. */
export async function findSchedule(db: Database, scope: Scope, id: string): Promise<ScheduleRow | null> {
  return (await look(db, scope, id))?.schedule ?? null;
}

/** The schedule, and how many schedules of the project are active, over both environments. */
async function look(db: Database, scope: Scope, id: string) {
  const place = [scope.projectNo, environmentCode(scope.environment), idToUuid(id)];
  const [found] = await db.run<Row & { activeCount: number }>("find_schedule", FIND, place);
  if (found === undefined) return null;
  const { activeCount, ...row } = found;
  return { schedule: readSchedule(row), activeCount };
}

const COLUMNS = `id, project_no AS "projectNo", environment, name, cron, timezone, target_url AS "targetUrl", payload,
       json_build_object('maxAttempts', max_attempts, 'baseSeconds', base_seconds, 'capSeconds', cap_seconds) AS "retryPolicy",
       paused, (extract(epoch FROM next_run_at) * 1000)::float8 AS "nextRunAt", tags, revision`;
const FIND = `
SELECT ${COLUMNS}, (SELECT active_schedules FROM projects WHERE no = $1) AS "activeCount"
  FROM schedules WHERE project_no = $1 AND environment = $2 AND id = $3`;

/** The bytes of all payloads of a page. Only the last payload may go beyond it. */
export const PAGE_BYTES_MAX = 4_194_304;
/** The bytes of the payloads of one statement: nothing else of the process has a turn while they are read. */
const STATEMENT_BYTES_MAX = 262_144;

/**
 * A page of an environment's schedules, newest first. A page whose payloads become too large is cut: others follow although
 * it has fewer than `limit`. Large payloads come in several statements, so that a page shows changes and deletions of the time
 * in which it was read.
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
    for (const { bytes, found: _, ...row } of found) {
      rows.push(readSchedule(row));
      bytesLeft -= bytes;
    }
    const isCut = found.length < (found[0]?.found ?? 0);
    if (!isCut || bytesLeft <= 0) return { rows, isCut };
  }
}

type ListedRow = Row & {
  /** The size of the payload. */
  bytes: number;
  /** How many schedules there are, up to the limit. */
  found: number;
};

// Postgres knows the size of a payload without reading it.
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

/**
 * Changes one schedule to what `decide` makes of it. Whoever locks its row first wins: after a firing the job exists, and
 * after a pause no firing finds the instant that it was going to fire. The project has at most `activeMax` active schedules.
 */
export function changeSchedule(
  db: Database,
  scope: Scope,
  id: string,
  decide: (schedule: ScheduleRow & { activeCount: number }) => DecidedChange,
  activeMax: number,
  cause: KeyCause,
): Promise<ScheduleRow | "not_found"> {
  return lookAgain(id, async () => {
    const found = await look(db, scope, id);
    if (found === null) return "not_found";
    const { schedule, activeCount } = found;
    const decided = decide({ ...schedule, activeCount });
    const { cron, timezone, payload, paused, tags, nextRunAt } = decided;
    const isSame =
      CHANGEABLE.every((field) => decided[field] === schedule[field]) &&
      JSON.stringify(tags) === JSON.stringify(schedule.tags);
    if (isSame && nextRunAt === undefined) return schedule;
    const [changed] = await db.run<Row>("change_schedule", CHANGE, [
      ...changeOf(scope, id, cause),
      ...[schedule.revision, cron, timezone, payload, paused],
      ...[nextRunAt !== undefined, nullableInstant(nextRunAt ?? null), activeMax, tags],
    ]);
    return changed === undefined ? null : readSchedule(changed);
  });
}

const CHANGEABLE = ["cron", "timezone", "payload", "paused"] as const satisfies (keyof DecidedChange)[];

// A firing changes next_run_at and leaves the revision, because no decision depends on it.
const CHANGE = `
WITH project AS MATERIALIZED (
  SELECT no, active_schedules FROM projects WHERE no = $1 FOR NO KEY UPDATE
), seen AS MATERIALIZED (
  SELECT s.paused, s.cron, s.timezone, s.next_run_at, p.active_schedules
    FROM project p JOIN schedules s ON s.project_no = $1 AND s.environment = $2 AND s.id = $3
   WHERE s.revision = $7
     FOR NO KEY UPDATE OF s
), old AS MATERIALIZED (
  -- The row is locked by now: nothing fires between this instant and the change, which must be before the next firing.
  SELECT *, paused <> $11::boolean OR cron <> $8 OR timezone <> $9 AS is_timed
    FROM (SELECT *, clock_timestamp() AS at FROM seen) s
   WHERE (NOT paused OR $11 OR active_schedules < $14) AND ($13::timestamptz IS NULL OR $13 > at)
), changed AS (
  UPDATE schedules s
     SET cron = $8, timezone = $9, payload = $10, paused = $11, tags = $15, revision = s.revision + 1,
         next_run_at = CASE WHEN $12::boolean THEN $13 ELSE s.next_run_at END
   WHERE s.project_no = $1 AND s.environment = $2 AND s.id = $3 AND EXISTS (SELECT FROM old)
  RETURNING ${COLUMNS}
), counted AS (
  UPDATE projects p SET active_schedules = p.active_schedules + CASE WHEN $11 THEN -1 ELSE 1 END
    FROM old WHERE p.no = $1 AND old.paused <> $11
), timetable AS (
  INSERT INTO timetables (since, schedule_id, superseded_at, paused, cron, timezone)
  SELECT at, $3, next_run_at, $11, $8, $9 FROM old WHERE is_timed
), replaced AS (
  UPDATE timetables t SET replaced_at = old.at
    FROM old
   WHERE old.is_timed AND t.schedule_id = $3
     AND t.no = (SELECT no FROM timetables WHERE schedule_id = $3 ORDER BY no DESC LIMIT 1)
), ${auditFrom("schedule.update", "old", "json_build_object('cron', $8::text, 'timezone', $9::text, 'paused', $11)")}
SELECT * FROM changed`;

/**
 * Deletes one schedule; its jobs stay. False if this environment has none of that id. The purge removes its timetables, of
 * which there may be millions.
 */
export async function deleteSchedule(
  db: Database,
  scope: Scope,
  id: string,
  cause: KeyCause,
): Promise<boolean> {
  return (await db.run("delete_schedule", DELETE, changeOf(scope, id, cause))).length === 1;
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
), ${auditFrom("schedule.delete", "deleted")}
SELECT FROM deleted`;

/** How many schedules of the project are active, over both environments. */
export async function countActiveSchedules(db: Database, projectNo: ProjectNo): Promise<number> {
  const text = "SELECT active_schedules AS count FROM projects WHERE no = $1";
  const [row] = await db.run<{ count: number }>("count_active_schedules", text, [projectNo]);
  return row?.count ?? 0;
}

type Row = Omit<ScheduleRow, "environment"> & { environment: number };

const readSchedule = (row: Row): ScheduleRow => ({
  ...row,
  id: uuidToId(SCHEDULE_PREFIX, row.id),
  environment: environmentOf(row.environment),
});

const nullableInstant = (ms: number | null) => (ms === null ? null : new Date(ms).toISOString());

/** Postgres reports a name that is taken as SQLSTATE 23505 of this constraint. */
function isNameConflict(error: unknown): boolean {
  const { code, constraint } = error as { code?: unknown; constraint?: unknown };
  return code === "23505" && constraint === "schedules_name";
}
