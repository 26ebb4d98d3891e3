import { idToUuid, JOB_PREFIX, uuidToId } from "../../domain/ids.ts";
import { PLAN_TERMS, PLANS } from "../../domain/plan.ts";
import { type Database, epochMs } from "../database/database.ts";
import { FOR_OVERLAP } from "./firings.ts";

/** The records of firings, and the timetables by which the other instants are told. Both are shown, and purged by age. */

/** An instant that has been fired or skipped. */
export interface FiringRow {
  firedFor: number;
  /** Null if the instant was skipped. */
  jobId: string | null;
  /** Why the instant was skipped; null if it fired. */
  skippedFor: "quota" | "overlap" | null;
  /** When the job is due by the schedule's spread; null if the schedule had none. */
  dueAt: number | null;
  /** How many jobs the firing canceled; null if the schedule did not replace jobs. */
  replaced: number | null;
  /** Whether a bulk operation made the job later, for an instant that had not fired. */
  isBackfilled: boolean;
}

/** The firings of a schedule for instants in [fromAt, toAt], in no order. */
export async function listFirings(
  db: Database,
  scheduleId: string,
  { fromAt, toAt }: { fromAt: number; toAt: number },
): Promise<FiringRow[]> {
  const rows = await db.run<ListedRow>("list_firings", LIST_FIRINGS, [
    idToUuid(scheduleId),
    new Date(fromAt).toISOString(),
    new Date(toAt).toISOString(),
  ]);
  return rows.map((row) => ({
    firedFor: row.fired_for,
    jobId: row.job_id === null ? null : uuidToId(JOB_PREFIX, row.job_id),
    skippedFor: row.job_id !== null ? null : row.skipped_for === FOR_OVERLAP ? "overlap" : "quota",
    dueAt: row.due_at,
    replaced: row.replaced,
    isBackfilled: row.backfilled,
  }));
}

interface ListedRow {
  fired_for: number;
  job_id: string | null;
  skipped_for: number | null;
  due_at: number | null;
  replaced: number | null;
  backfilled: boolean;
}

const LIST_FIRINGS = `
SELECT ${epochMs("fired_for")} AS fired_for, job_id, skipped_for, ${epochMs("due_at")} AS due_at, replaced, backfilled
  FROM firings WHERE schedule_id = $1 AND fired_for >= $2::timestamptz AND fired_for <= $3::timestamptz`;

/**
 * Removes up to `limit` firings that no plan shows any more at `now` (milliseconds since 1970); answers how many. Several
 * processes may do so at once.
 */
export async function purgeFirings(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_firings", PURGE_FIRINGS, [limit, new Date(now).toISOString()])).length;
}

const KEPT_DAYS = Math.max(...PLANS.map((plan) => PLAN_TERMS[plan].retentionDays)) + 1;
const PURGE_FIRINGS = `
DELETE FROM firings
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM firings WHERE fired_for < $2::timestamptz - interval '${KEPT_DAYS} days'
                           ORDER BY fired_for LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;

/** Removes, as purgeFirings does, up to `limit` timetables that were replaced before anything that a plan shows. */
export async function purgeTimetables(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_timetables", PURGE_TIMETABLES, [limit, new Date(now).toISOString()])).length;
}

const PURGE_TIMETABLES = `
DELETE FROM timetables
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM timetables WHERE replaced_at < $2::timestamptz - interval '${KEPT_DAYS} days'
                           ORDER BY replaced_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;

/** The same for the timetables of deleted schedules. A deleted schedule is forgotten once it has no timetable. */
export async function purgeDeletedSchedules(db: Database, limit: number): Promise<number> {
  return (await db.run("purge_deleted_schedules", PURGE_DELETED, [limit])).length;
}

const PURGE_DELETED = `
WITH deleted AS MATERIALIZED (
  SELECT schedule_id FROM deleted_schedules ORDER BY schedule_id LIMIT $1 FOR UPDATE SKIP LOCKED
), past AS (
  DELETE FROM timetables
   WHERE ctid = ANY (ARRAY (SELECT t.ctid FROM deleted d JOIN timetables t USING (schedule_id) LIMIT $1))
  RETURNING 1
), forgotten AS (
  DELETE FROM deleted_schedules s
   USING deleted d
   WHERE s.schedule_id = d.schedule_id AND NOT EXISTS (SELECT FROM timetables t WHERE t.schedule_id = d.schedule_id)
  RETURNING 1
)
SELECT FROM past UNION ALL SELECT FROM forgotten`;

/** A timetable that a schedule has or had. */
export interface TimetableRow {
  /** A later timetable has a greater number. */
  no: number;
  since: number;
  /** The next firing of the timetable before, which this one made void; null if there was none. */
  supersededAt: number | null;
  paused: boolean;
  cron: string;
  timezone: string;
}

/**
 * The timetables of a schedule that begin up to an instant, the latest one first and at most `limit`. `untilNo` is the
 * number of the latest one that may come; null for any.
 */
export async function listTimetables(
  db: Database,
  scheduleId: string,
  query: { untilAt: number; untilNo: number | null; limit: number },
): Promise<TimetableRow[]> {
  const rows = await db.run<Omit<TimetableRow, "supersededAt"> & { superseded_at: number | null }>(
    "list_timetables",
    LIST_TIMETABLES,
    [
      idToUuid(scheduleId),
      new Date(query.untilAt).toISOString(),
      query.untilNo ?? Number.MAX_SAFE_INTEGER,
      query.limit,
    ],
  );
  return rows.map(({ superseded_at: supersededAt, ...row }) => ({ ...row, supersededAt }));
}

const LIST_TIMETABLES = `
SELECT no::float8 AS no, ${epochMs("since")} AS since,
       ${epochMs("superseded_at")} AS superseded_at, paused, cron, timezone
  FROM timetables
 WHERE schedule_id = $1 AND no <= $3::bigint AND least(since, superseded_at) <= $2::timestamptz
 ORDER BY no DESC LIMIT $4`;
