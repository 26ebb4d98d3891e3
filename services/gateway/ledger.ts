import type { FiringFacts } from "../../shared/contract/schedule.ts";
import { expectedInstants, type FiringStatus } from "../../shared/domain/schedule.ts";
import type { Database } from "../../shared/store/database.ts";
import { listFirings, listTimetables } from "../../shared/store/firings.ts";
import type { ScheduleRow } from "../../shared/store/schedules.ts";

/**
 * What became of a schedule's instants in [fromAt, toAt], newest first and at most `limit`. `schedule` was looked at before
 * anything else is: whatever comes due meanwhile is left for the next look. Instants are milliseconds since 1970.
 */
export async function readLedger(
  db: Database,
  { id, nextRunAt }: ScheduleRow,
  { fromAt, toAt, limit }: { fromAt: number; toAt: number; limit: number },
): Promise<FiringFacts[]> {
  // What is due and not yet fired is neither fired nor missed.
  const untilAt = Math.min(toAt, (nextRunAt ?? Number.POSITIVE_INFINITY) - 1);
  const timetables = await listTimetables(db, id, untilAt);
  const instants = expectedInstants(timetables, fromAt, untilAt).take(limit).toArray();
  const [newest, oldest] = [instants[0], instants.at(-1)];
  if (newest === undefined || oldest === undefined) return [];
  const rows = await listFirings(db, id, { fromAt: oldest.at, toAt: newest.at });
  const jobOf = new Map(rows.map(({ firedFor, jobId }) => [firedFor, jobId]));
  return instants.map(({ at, zone, paused, movedByClockChange }) => {
    const jobId = jobOf.get(at);
    return { at, zone, status: statusOf(jobId, paused), jobId: jobId ?? null, movedByClockChange };
  });
}

/** `jobId` is undefined for what was never looked at in time. */
function statusOf(jobId: string | null | undefined, paused: boolean): FiringStatus {
  if (jobId === undefined) return paused ? "skipped_paused" : "missed_outage";
  return jobId === null ? "skipped_quota" : "fired";
}
