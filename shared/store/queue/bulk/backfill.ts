import { idToUuid, JOB_PREFIX, uuidToId } from "../../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../../domain/owed.ts";
import { regionOf } from "../../database/codes.ts";
import { column, type Database, epochMs } from "../../database/database.ts";
import { firingRegion } from "../firings.ts";
import { giveFlows, IS_PARKED } from "../given-flows.ts";
import { HAS_QUOTA } from "../month.ts";
import { DUE_AT, newJobs } from "../new-jobs.ts";
import {
  ANSWER,
  type AnswerColumns,
  BULK_CLOCK,
  type BulkPlace,
  type JudgedPage,
  lockedBulk,
  NOTE_JUDGED,
  PAGE,
  placeOf,
  RUNNING,
  readAnswer,
} from "./page.ts";

/**
 * Makes the jobs of the next instants of a bulk operation, by the schedule as it is now and at most as many as there are ids.
 * The ledger is unique for a schedule and its instant: an instant that has a job by now is skipped. All instants fail if the
 * schedule is gone, or while the month has no run left. One statement, like cancelMembers.
 */
export async function backfillMembers(
  db: Database,
  bulk: BulkPlace,
  { jobIds, scheduleId }: { jobIds: readonly string[]; scheduleId: string },
): Promise<(JudgedPage & { owed: Placed<OwedAttempt>[] }) | null> {
  const values = [...placeOf(bulk), jobIds.length, idToUuid(scheduleId), column(jobIds.map(idToUuid))];
  const rows = await db.run<Row>("backfill_bulk_members", BACKFILL, values);
  const [first] = rows;
  if (first === undefined) return null;
  const { projectNo, environment } = bulk;
  const owed = rows.flatMap(({ job_id, region, lane_shard: shard, due_at: dueAt, is_keyed, is_parked }) => {
    if (job_id === null || is_parked) return [];
    const place = { projectNo, environment, region: regionOf(region ?? 0), shard };
    const id = uuidToId(JOB_PREFIX, job_id);
    return oweAttempt("jobs", place, { id, attempt: 1, dueAt, isGated: is_keyed || undefined });
  });
  return { ...readAnswer(first), owed };
}

const BACKFILL = `
WITH ${lockedBulk(`b.status = ${RUNNING}`)}, ${BULK_CLOCK}, ${PAGE}, able AS MATERIALIZED (
  SELECT p.position, i.id, s.project_no, s.environment, ${firingRegion("o")} AS region, s.target_url, s.payload,
         to_timestamp(p.position / 1000.0) AS run_at, s.max_attempts, s.base_seconds, s.cap_seconds, NULL::int AS key_no,
         NULL::uuid AS request_id, s.id AS schedule_id, NULL::text AS trace, s.tags, s.flow, i.n
    FROM page p
    JOIN unnest($8::uuid[]) WITH ORDINALITY AS i (id, n) USING (n)
    JOIN schedules s ON s.project_no = $1 AND s.environment = $2 AND s.id = $7
    JOIN projects o ON o.no = s.project_no
    JOIN flows f ON f.project_no = s.project_no
   WHERE ${HAS_QUOTA}
), recorded AS (
  INSERT INTO firings AS f (schedule_id, fired_for, job_id, backfilled)
  SELECT schedule_id, run_at, id, true FROM able ORDER BY run_at
      ON CONFLICT (schedule_id, fired_for) DO UPDATE SET job_id = excluded.job_id, backfilled = true
   WHERE f.job_id IS NULL
  RETURNING job_id
), made AS MATERIALIZED (
  SELECT a.*, CASE WHEN l.shard IS NULL THEN $4::smallint END AS new_shard, coalesce(l.shard, $4) AS lane_shard
    FROM able a
    LEFT JOIN lanes l ON l.project_no = a.project_no AND l.region = a.region AND l.environment = a.environment
   WHERE a.id IN (SELECT job_id FROM recorded)
), judged AS MATERIALIZED (
  SELECT p.position, CASE WHEN a.position IS NULL THEN 'failed' WHEN m.position IS NULL THEN 'skipped' ELSE 'done' END AS outcome
    FROM page p LEFT JOIN able a USING (position) LEFT JOIN made m USING (position)
), ${giveFlows("made WHERE true")}, ${newJobs("made WHERE true", { tags: true, flow: true })}, ${NOTE_JUDGED}
SELECT ${ANSWER}, m.id AS job_id, m.region, m.lane_shard, ${epochMs(DUE_AT.replace("run_at", "m.run_at"))} AS due_at, m.flow IS NOT NULL AS is_keyed,
       ${IS_PARKED.replace("id", "m.id")} AS is_parked
  FROM turn t CROSS JOIN total s LEFT JOIN made m ON true`;

interface Row extends AnswerColumns {
  /** Null if no job was made. */
  job_id: string | null;
  region: number | null;
  lane_shard: number | null;
  due_at: number;
  is_keyed: boolean;
  /** True if the flow key has no place for the job yet. */
  is_parked: boolean;
}
