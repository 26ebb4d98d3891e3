import {
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  firstIdAt,
  idTimeMs,
  idToUuid,
  JOB_PREFIX,
  NEWEST_UUID,
  uuidToId,
} from "../../domain/ids.ts";
import type { RunStatus } from "../../domain/run.ts";
import type { Region, Scope } from "../../domain/scope.ts";
import { DELIVERY_STATUSES, type DeliveryStatus, type EventType } from "../../domain/webhook.ts";
import { environmentCode, eventTypeOf, regionOf, runStatusOf } from "../database/codes.ts";
import { column, type Database } from "../database/database.ts";
import { isStillOwed } from "../queue/endpoint-health.ts";

/**
 * Deliveries as clients see them. A delivery is in open_deliveries until it has ended, then in ended_deliveries. An open
 * delivery that was owed before its endpoint was disabled is shown as dropped; a claim moves its row later.
 */

/** Instants are milliseconds since 1970. */
export interface DeliveryRow {
  id: string;
  webhookId: string;
  eventId: string;
  eventType: EventType;
  /** Null if the event is not about a job, or is a sample. */
  jobId: string | null;
  region: Region;
  status: DeliveryStatus;
  attempts: DeliveryAttemptRow[];
  nextAttemptAt: number | null;
  createdAt: number;
}

export interface DeliveryAttemptRow {
  attempt: number;
  status: RunStatus;
  responseStatus: number | null;
  error: string | null;
  startedAt: number;
  durationMs: number | null;
}

/** The most bytes of all attempts of a page. Only the last delivery may go beyond this. */
export const PAGE_BYTES_MAX = 4_194_304;
export const BYTES_PER_ATTEMPT = 150;

const statusCode = (status: DeliveryStatus) => DELIVERY_STATUSES.indexOf(status);

const isShownAs = (owed: string) =>
  `CASE WHEN ${isStillOwed("w", owed)} THEN ${statusCode("pending")} ELSE ${statusCode("dropped")} END`;

// The columns of an open delivery (o) of an endpoint (w), and of one that has ended (e). The codes of ended_deliveries leave
// out "pending", the first of DELIVERY_STATUSES.
export const OPEN_COLUMNS = `o.id, o.event_id, o.region, o.attempt - 1 AS attempt_count,
  ${isShownAs("o")} AS status,
  CASE WHEN o.node_id IS NOT NULL THEN (extract(epoch FROM o.started_at) * 1000)::float8 END AS running_since,
  (extract(epoch FROM coalesce(o.due_at, CASE WHEN o.node_id IS NULL THEN o.parked_due_at END)) * 1000)::float8 AS due_at`;
export const ENDED_COLUMNS = `e.id, e.event_id, e.region, e.attempts, e.status + 1, NULL::float8, NULL::float8`;

/** The event and the attempts of a delivery (d). $1 and $2 are its project and environment. */
export const TOLD_COLUMNS = `d.*, event.type, event.job_id, attempt.list AS attempts`;
export const TOLD = `
 CROSS JOIN LATERAL (
   SELECT type, job_id FROM events WHERE project_no = $1 AND environment = $2 AND id = d.event_id) event
 CROSS JOIN LATERAL (
   SELECT json_agg(json_build_array(attempt, status, response_status, error, extract(epoch FROM started_at) * 1000, duration_ms)
                   ORDER BY attempt) AS list
     FROM delivery_attempts WHERE delivery_id = d.id) attempt`;

/**
 * A page of the deliveries to one endpoint since an instant, newest first. A page whose error texts become too large is cut:
 * more deliveries follow although the page has fewer than `limit`.
 */
export async function listDeliveries(
  db: Database,
  query: Scope & {
    webhookId: string;
    status: DeliveryStatus | null;
    sinceAt: number;
    beforeId: string | null;
    limit: number;
  },
): Promise<{ rows: DeliveryRow[]; isCut: boolean }> {
  const statuses = query.status === null ? DELIVERY_STATUSES : [query.status];
  const rows = await db.run<ToldRow & { found: number }>("list_deliveries", LIST, [
    query.projectNo,
    environmentCode(query.environment),
    idToUuid(query.webhookId),
    column(statuses.map(statusCode)),
    idToUuid(firstIdAt(DELIVERY_PREFIX, query.sinceAt)),
    query.beforeId === null ? NEWEST_UUID : idToUuid(query.beforeId),
    query.limit,
    PAGE_BYTES_MAX,
  ]);
  return {
    rows: rows.map((row) => readDelivery(row, query.webhookId)),
    isCut: rows.length < (rows[0]?.found ?? 0),
  };
}

// The index has open deliveries in the order of their ids within each generation of the endpoint. There are few generations:
// the statement finds them one by one, and reads no more than a page of each.
const LIST = `
WITH RECURSIVE w AS MATERIALIZED (
  SELECT generation, enabled FROM webhooks WHERE project_no = $1 AND environment = $2 AND id = $3
), owed AS (
  SELECT (SELECT min(generation) FROM open_deliveries
           WHERE project_no = $1 AND environment = $2 AND webhook_id = $3) AS generation
  UNION ALL
  SELECT (SELECT min(o.generation) FROM open_deliveries o
           WHERE o.project_no = $1 AND o.environment = $2 AND o.webhook_id = $3 AND o.generation > owed.generation)
    FROM owed WHERE owed.generation IS NOT NULL
), page AS MATERIALIZED (
  (SELECT found.*
     FROM owed CROSS JOIN w
    CROSS JOIN LATERAL (
      SELECT ${OPEN_COLUMNS} FROM open_deliveries o
       WHERE o.project_no = $1 AND o.environment = $2 AND o.webhook_id = $3 AND o.generation = owed.generation
         AND o.id >= $5 AND o.id < $6
       ORDER BY o.id DESC LIMIT $7) found
    WHERE ${isShownAs("owed")} = ANY ($4::smallint[])
    ORDER BY found.id DESC LIMIT $7)
  UNION ALL
  SELECT found.*
    FROM unnest($4::smallint[]) AS s (status)
   CROSS JOIN LATERAL (
     SELECT ${ENDED_COLUMNS} FROM ended_deliveries e
      WHERE e.project_no = $1 AND e.environment = $2 AND e.webhook_id = $3 AND e.status = s.status - 1
        AND e.id >= $5 AND e.id < $6
      ORDER BY e.id DESC LIMIT $7) found
   ORDER BY id DESC LIMIT $7
)
SELECT ${TOLD_COLUMNS}
  FROM (
   SELECT page.*, sum(bytes) OVER (ORDER BY page.id DESC) - bytes AS bytes_before, count(*) OVER ()::int AS found
     FROM page
    CROSS JOIN LATERAL (
      SELECT coalesce(sum(octet_length(error)), 0) + count(*) * ${BYTES_PER_ATTEMPT} AS bytes
        FROM delivery_attempts WHERE delivery_id = page.id) size) d${TOLD}
 WHERE d.bytes_before < $8
 ORDER BY d.id DESC`;

export interface ToldRow {
  id: string;
  event_id: string;
  region: number;
  attempt_count: number;
  status: number;
  running_since: number | null;
  due_at: number | null;
  type: number;
  job_id: string | null;
  attempts: [number, number, number | null, string | null, number, number][] | null;
}

export function readDelivery(row: ToldRow, webhookId: string): DeliveryRow {
  const status = DELIVERY_STATUSES[row.status];
  if (status === undefined) throw new Error(`unknown status ${row.status} of a delivery`);
  const id = uuidToId(DELIVERY_PREFIX, row.id);
  const attempts = (row.attempts ?? []).map(
    ([attempt, code, responseStatus, error, startedAt, durationMs]): DeliveryAttemptRow => ({
      attempt,
      status: runStatusOf(code),
      responseStatus,
      error,
      startedAt,
      durationMs,
    }),
  );
  if (row.running_since !== null) {
    attempts.push({
      attempt: row.attempt_count + 1,
      status: "running",
      responseStatus: null,
      error: null,
      startedAt: row.running_since,
      durationMs: null,
    });
  }
  return {
    id,
    webhookId,
    eventId: uuidToId(EVENT_PREFIX, row.event_id),
    eventType: eventTypeOf(row.type),
    jobId: row.job_id === null ? null : uuidToId(JOB_PREFIX, row.job_id),
    region: regionOf(row.region),
    status,
    attempts,
    nextAttemptAt: status === "pending" ? row.due_at : null,
    createdAt: idTimeMs(id),
  };
}
