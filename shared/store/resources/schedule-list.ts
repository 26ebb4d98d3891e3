import { idToUuid, NEWEST_UUID } from "../../domain/ids.ts";
import type { Scope } from "../../domain/scope.ts";
import { environmentCode } from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { COLUMNS, type Row, readSchedule, type ScheduleRow } from "./schedules.ts";

/** The most bytes of all payloads of a page. Only the last payload may go beyond this. */
export const PAGE_BYTES_MAX = 4_194_304;
/** The most bytes of the payloads of one statement: the process does nothing else while it reads them. */
const STATEMENT_BYTES_MAX = 262_144;

/**
 * A page of an environment's schedules, newest first. A page whose payloads become too large is cut: more schedules follow
 * although the page has fewer than `limit`. Large payloads come in several statements, so a page may show changes and
 * deletions that happened while it was read.
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
