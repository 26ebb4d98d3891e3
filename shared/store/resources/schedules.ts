import { isDeepStrictEqual } from "node:util";
import { idToUuid, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import { type Changeable, type DecidedChange, spreadMsOf } from "../../domain/schedule.ts";
import type { Environment, ProjectNo, Scope } from "../../domain/scope.ts";
import { environmentCode, environmentOf, overlapCode, overlapOf } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { lookAgain } from "../database/look-again.ts";
import { giveFlowOfSchedule } from "../queue/given-flows.ts";
import { auditFrom, changeOf, type KeyCause } from "./audit.ts";
import { type KeyToTake, keyOf, takeKeyFrom } from "./idempotency.ts";

/** A schedule. Instants are milliseconds since 1970. */
export interface ScheduleRow extends Changeable {
  id: string;
  projectNo: ProjectNo;
  environment: Environment;
  nextRunAt: number | null;
  /** How many changes clients have made. */
  revision: number;
}

export interface ScheduleToCreate extends Omit<ScheduleRow, "revision"> {
  shard: number;
  /** How many active schedules the project may have. */
  activeMax: number;
}

export type CreatedSchedule = "created" | "name_taken" | "limit_exceeded" | "key_taken";

/**
 * Creates a schedule. The statement locks the project's row first, so that creations of one project see each other's
 * names and count. The constraint of the name has the last word: if it fails, the whole statement is taken back.
 */
export async function createSchedule(
  db: Database,
  schedule: ScheduleToCreate,
  cause: KeyCause,
  key: (KeyToTake & { answer: Buffer }) | null,
): Promise<CreatedSchedule> {
  try {
    const { cron, timezone, payload, paused, nextRunAt, shard, activeMax } = schedule;
    const [row] = await db.run<{ outcome: CreatedSchedule }>("create_schedule", CREATE, [
      ...changeOf(schedule, schedule.id, cause),
      ...keyOf(key, key?.answer),
      ...[cron, timezone, payload, paused, nullableInstant(nextRunAt), shard, activeMax],
      ...termsOf(schedule.id, schedule),
    ]);
    if (row === undefined) throw new Error(`there is no project ${schedule.projectNo}`);
    return row.outcome;
  } catch (error) {
    if (isNameConflict(error)) return "name_taken";
    throw error;
  }
}

/** The last parameters of a statement that creates or changes a schedule: the timetable does not depend on them. */
function termsOf(id: string, terms: Changeable) {
  const { name, targetUrl, retryPolicy, overlap, spreadSeconds, tags, flow } = terms;
  const { maxAttempts, baseSeconds, capSeconds } = retryPolicy;
  const overlaps = overlap === null ? null : overlapCode(overlap);
  const spreadMs = spreadMsOf(id, spreadSeconds);
  return [
    ...[name, targetUrl, maxAttempts, baseSeconds, capSeconds, overlaps, spreadSeconds, spreadMs, tags],
    flow === null ? null : JSON.stringify(flow),
  ];
}

const CREATE = `
WITH project AS MATERIALIZED (
  SELECT active_schedules FROM projects WHERE no = $1 FOR NO KEY UPDATE
), judged AS MATERIALIZED (
  SELECT CASE WHEN EXISTS (SELECT FROM schedules WHERE project_no = $1 AND environment = $2 AND name = $17) THEN 'name_taken'
              WHEN active_schedules >= $16 AND NOT $13::boolean THEN 'limit_exceeded' END AS refusal
    FROM project
), found AS MATERIALIZED (
  SELECT FROM judged WHERE refusal IS NULL
), ${takeKeyFrom("found")}, created AS (
  INSERT INTO schedules (project_no, environment, id, cron, timezone, payload, paused, next_run_at, shard, name, target_url,
                         max_attempts, base_seconds, cap_seconds, overlap, spread_seconds, spread_ms, tags, flow)
  SELECT $1, $2, $3, $10, $11, $12, $13, $14::timestamptz, $15, $17, $18, $19, $20, $21, $22, $23, $24, $25, $26::json
    FROM made
), counted AS (
  UPDATE projects SET active_schedules = active_schedules + 1 WHERE no = $1 AND NOT $13 AND EXISTS (SELECT FROM made)
), timetable AS (
  -- The timetable begins before its first firing, which may have come while the statement waited for its turn.
  INSERT INTO timetables (since, schedule_id, paused, cron, timezone)
  SELECT least(now(), $14 - interval '1 ms'), $3, $13, $10, $11 FROM made
), ${giveFlowOfSchedule("SELECT $1::int AS project_no, $2::smallint AS environment, $26::json AS flow FROM made")}, ${auditFrom("schedule.create", "made")}
SELECT coalesce(refusal, CASE WHEN EXISTS (SELECT FROM made) THEN 'created' ELSE 'key_taken' END) AS outcome FROM judged`;

/** One schedule, or null if this environment has no schedule with this id. */
export async function findSchedule(db: Database, scope: Scope, id: string): Promise<ScheduleRow | null> {
  return (await look(db, scope, id))?.schedule ?? null;
}

/** The schedule of this name, or null if this environment has none. */
export async function findScheduleByName(
  db: Database,
  scope: Scope,
  name: string,
): Promise<ScheduleRow | null> {
  return (await lookByName(db, scope, name))?.schedule ?? null;
}

/** A schedule, and how many schedules of the project are active, over both environments. */
export interface FoundSchedule {
  schedule: ScheduleRow;
  activeCount: number;
}

const look = (db: Database, scope: Scope, id: string) =>
  lookFor(db, scope, "find_schedule", FIND_BY_ID, idToUuid(id));
export const lookByName = (db: Database, scope: Scope, name: string) =>
  lookFor(db, scope, "find_schedule_by_name", FIND_BY_NAME, name);

async function lookFor(
  db: Database,
  { projectNo, environment }: Scope,
  statement: string,
  text: string,
  sought: string,
): Promise<FoundSchedule | null> {
  const values = [projectNo, environmentCode(environment), sought];
  const [found] = await db.run<Row & { activeCount: number }>(statement, text, values);
  if (found === undefined) return null;
  const { activeCount, ...row } = found;
  return { schedule: readSchedule(row), activeCount };
}

export const COLUMNS = `id, project_no AS "projectNo", environment, name, cron, timezone, target_url AS "targetUrl", payload,
       json_build_object('maxAttempts', max_attempts, 'baseSeconds', base_seconds, 'capSeconds', cap_seconds) AS "retryPolicy",
       overlap, spread_seconds AS "spreadSeconds", paused,
       (extract(epoch FROM next_run_at) * 1000)::float8 AS "nextRunAt", tags, flow, revision`;
const FIND = `
SELECT ${COLUMNS}, (SELECT active_schedules FROM projects WHERE no = $1) AS "activeCount"
  FROM schedules WHERE project_no = $1 AND environment = $2`;
const FIND_BY_ID = `${FIND} AND id = $3`;
const FIND_BY_NAME = `${FIND} AND name = $3`;

/** Decides the next state of a schedule, by the rules of the domain. */
export type DecideChange = (schedule: ScheduleRow & { activeCount: number }) => DecidedChange;

/**
 * Changes one schedule to the state that `decide` answers. A change and a firing race for the row's lock: after a
 * firing the job exists, and after a pause no firing finds its instant. The project has at most `activeMax` active
 * schedules.
 */
export function changeSchedule(
  db: Database,
  scope: Scope,
  id: string,
  decide: DecideChange,
  activeMax: number,
  cause: KeyCause,
): Promise<ScheduleRow | "not_found" | "name_taken"> {
  return lookAgain(id, async () => {
    const found = await look(db, scope, id);
    return found === null ? "not_found" : changeFound(db, found, decide, activeMax, cause);
  });
}

/** The same for a schedule that was just read. Null if it has been changed since. Writes nothing if nothing changes. */
export async function changeFound(
  db: Database,
  { schedule, activeCount }: FoundSchedule,
  decide: DecideChange,
  activeMax: number,
  cause: KeyCause,
): Promise<ScheduleRow | "name_taken" | null> {
  const decided = decide({ ...schedule, activeCount });
  const { cron, timezone, payload, paused, nextRunAt } = decided;
  const isSame = CHANGEABLE.every((field) => isDeepStrictEqual(decided[field], schedule[field]));
  if (isSame && nextRunAt === undefined) return schedule;
  try {
    const [changed] = await db.run<Row>("change_schedule", CHANGE, [
      ...changeOf(schedule, schedule.id, cause),
      ...[schedule.revision, cron, timezone, payload, paused],
      ...[nextRunAt !== undefined, nullableInstant(nextRunAt ?? null), activeMax],
      ...termsOf(schedule.id, decided),
      detailOf(decided, schedule),
    ]);
    return changed === undefined ? null : readSchedule(changed);
  } catch (error) {
    if (isNameConflict(error)) return "name_taken";
    throw error;
  }
}

const CHANGEABLE = [
  "name",
  "cron",
  "timezone",
  "targetUrl",
  "payload",
  "retryPolicy",
  "overlap",
  "spreadSeconds",
  "paused",
  "tags",
  "flow",
] as const satisfies (keyof Changeable)[];

/** The audit's detail of a change: the timetable always, and other changed fields. A URL's path may hold a secret. */
function detailOf(decided: Changeable, before: Changeable): string {
  const { cron, timezone, paused, name, targetUrl, overlap, spreadSeconds, flow } = decided;
  return JSON.stringify({
    ...{ cron, timezone, paused },
    ...(name === before.name ? {} : { name }),
    ...(targetUrl === before.targetUrl ? {} : { target_origin: new URL(targetUrl).origin }),
    ...(overlap === before.overlap ? {} : { overlap }),
    ...(spreadSeconds === before.spreadSeconds ? {} : { spread_seconds: spreadSeconds }),
    ...(isDeepStrictEqual(flow, before.flow) ? {} : { flow }),
  });
}

// A firing changes next_run_at but not the revision, because no decision depends on next_run_at.
const CHANGE = `
WITH project AS MATERIALIZED (
  SELECT no, active_schedules FROM projects WHERE no = $1 FOR NO KEY UPDATE
), seen AS MATERIALIZED (
  SELECT s.paused, s.cron, s.timezone, s.next_run_at, s.flow, p.active_schedules
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
     SET cron = $8, timezone = $9, payload = $10, paused = $11, revision = s.revision + 1,
         next_run_at = CASE WHEN $12::boolean THEN $13 ELSE s.next_run_at END, name = $15, target_url = $16,
         max_attempts = $17, base_seconds = $18, cap_seconds = $19, overlap = $20, spread_seconds = $21, spread_ms = $22,
         tags = $23, flow = $24::json
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
), ${giveFlowOfSchedule(`
  SELECT $1::int AS project_no, $2::smallint AS environment, $24::json AS flow FROM old WHERE flow::text IS DISTINCT FROM $24::json::text`)}, ${auditFrom("schedule.update", "old", "$25")}
SELECT * FROM changed`;

/**
 * Deletes one schedule; its jobs stay. False if this environment has no schedule with this id. The purge removes its
 * timetables, of which there may be millions.
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

/** A row of COLUMNS. */
export type Row = Omit<ScheduleRow, "environment" | "overlap"> & {
  environment: number;
  overlap: number | null;
};

export const readSchedule = (row: Row): ScheduleRow => ({
  ...row,
  id: uuidToId(SCHEDULE_PREFIX, row.id),
  environment: environmentOf(row.environment),
  overlap: row.overlap === null ? null : overlapOf(row.overlap),
});

const nullableInstant = (ms: number | null) => (ms === null ? null : new Date(ms).toISOString());

/** Postgres reports a name that is taken as SQLSTATE 23505 of this constraint. */
function isNameConflict(error: unknown): boolean {
  const { code, constraint } = error as { code?: unknown; constraint?: unknown };
  return code === "23505" && constraint === "schedules_name";
}
