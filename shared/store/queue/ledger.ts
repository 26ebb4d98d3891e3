import type { FiringFacts } from "../../contract/firing.ts";
import { type ExpectedInstant, expectedStretches, type FiringStatus } from "../../domain/schedule.ts";
import type { Database } from "../database/database.ts";
import { type FiringRow, listFirings, listTimetables } from "./firing-ledger.ts";

/** A schedule's instants and their outcomes. Those a worker fired or skipped have a row; others follow from the timetables. */

/** An instant of a schedule's timetables. Its id is the place from which the next page continues. */
export type LedgerRow = FiringFacts & { id: string };

/** The schedule of a ledger, as it was read before the ledger. `nextRunAt` is in milliseconds since 1970. */
export interface LedgerSchedule {
  id: string;
  nextRunAt: number | null;
}

interface LedgerPage {
  rows: LedgerRow[];
  /** True if older timetables were not looked at. `endId` is the place of the first of them. */
  isCut: boolean;
  endId?: string;
}

/** The place where a page begins: an instant, and the latest timetable (null for any). */
interface LedgerPlace {
  toAt: number;
  untilNo: number | null;
}

/** How many timetables a page looks at. They may have no instants, so the page may be empty. */
const TIMETABLES_MAX = 100;

/**
 * The instants of a schedule in [fromAt, toAt] and whether each fired, newest first, at most `limit`. The caller has read the
 * schedule before: an instant that comes due meanwhile is left for the next call. Instants are milliseconds since 1970. The
 * work is many short steps, and `pause` is called after each.
 */
export async function readLedger(
  db: Database,
  { id, nextRunAt }: LedgerSchedule,
  { fromAt, toAt, untilNo, limit }: LedgerPlace & { fromAt: number; limit: number },
  pause: () => Promise<void> | undefined,
): Promise<LedgerPage> {
  const untilAt = lastPast(nextRunAt, toAt);
  const timetables = await listTimetables(db, id, { untilAt, untilNo, limit: TIMETABLES_MAX + 1 });
  const next = timetables[TIMETABLES_MAX];
  const found: (ExpectedInstant & { id: string })[] = [];
  let leftUntil = untilAt;
  for (const stretch of expectedStretches(timetables.slice(0, TIMETABLES_MAX), fromAt, untilAt)) {
    for (const instant of stretch.instants) {
      found.push({ ...instant, id: placeId(instant.at, stretch.timetable.no) });
      if (found.length === limit) break;
      await pause();
    }
    if (found.length === limit) break;
    leftUntil = stretch.olderUntil;
    await pause();
  }
  const rows = await withOutcomes(db, id, found);
  if (next === undefined || leftUntil < fromAt) return { rows, isCut: false };
  return { rows, isCut: true, endId: placeId(Math.floor(leftUntil) + 1, next.no) };
}

/** An instant that is due but has yet to fire is left out: it is neither fired nor missed. */
const lastPast = (nextRunAt: number | null, toAt: number) =>
  Math.min(toAt, (nextRunAt ?? Number.POSITIVE_INFINITY) - 1);

/** How many timetables a count looks at. */
const COUNTED_TIMETABLES_MAX = 1_000;

/** How many instants a schedule's ledger has in [fromAt, toAt]. Null for more than `max`, or for too many timetables. */
export async function countLedger(
  db: Database,
  { id, nextRunAt }: LedgerSchedule,
  { fromAt, toAt }: { fromAt: number; toAt: number },
  max: number,
  pause: () => Promise<void> | undefined,
): Promise<number | null> {
  const untilAt = lastPast(nextRunAt, toAt);
  const limit = COUNTED_TIMETABLES_MAX + 1;
  const timetables = await listTimetables(db, id, { untilAt, untilNo: null, limit });
  if (timetables.length === limit) return null;
  let count = 0;
  for (const stretch of expectedStretches(timetables, fromAt, untilAt)) {
    count += stretch.count();
    if (count > max) return null;
    await pause();
  }
  return count;
}

async function withOutcomes(
  db: Database,
  scheduleId: string,
  instants: readonly (ExpectedInstant & { id: string })[],
): Promise<LedgerRow[]> {
  const [newest, oldest] = [instants[0], instants.at(-1)];
  if (newest === undefined || oldest === undefined) return [];
  const fired = await listFirings(db, scheduleId, { fromAt: oldest.at, toAt: newest.at });
  const firingOf = new Map(fired.map((firing) => [firing.firedFor, firing]));
  return instants.map(({ id, at, zone, paused, movedByClockChange }) => {
    const firing = firingOf.get(at);
    const { jobId = null, dueAt = null, replaced = null } = firing ?? {};
    return { id, at, zone, status: statusOf(firing, paused), jobId, movedByClockChange, dueAt, replaced };
  });
}

/** Names an instant of a timetable; the next page continues before it. */
const placeId = (at: number, timetableNo: number) => `${at}.${timetableNo}`;

/** The place that a cursor names; `position` is null for the first page. */
export function readLedgerPlace(position: string | null, now: number): LedgerPlace {
  const [at, no] = position?.split(".") ?? [];
  return {
    toAt: at === undefined ? now : Number(at) - 1,
    // Cursors of an older version hold only the instant.
    untilNo: no === undefined ? null : Number(no),
  };
}

/** An instant without a record has not been fired, for want of a worker or because of a pause. */
function statusOf(firing: FiringRow | undefined, paused: boolean): FiringStatus {
  if (firing === undefined) return paused ? "skipped_paused" : "missed_outage";
  if (firing.isBackfilled) return "backfilled";
  switch (firing.skippedFor) {
    case null:
      return "fired";
    case "quota":
      return "skipped_quota";
    case "overlap":
      return "skipped_overlap";
  }
}
