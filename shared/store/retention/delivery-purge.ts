import { REGIONS } from "../../domain/scope.ts";
import { DELIVERY_RETENTION_DAYS } from "../../domain/webhook.ts";
import { regionCode } from "../database/codes.ts";
import type { Database } from "../database/database.ts";

/** Removes the deliveries and events that are not shown any more. */

/** Rows are kept a day longer than shown, so that none disappears between two requests of a client that saw it. */
const KEPT = `interval '${DELIVERY_RETENTION_DAYS + 1} days'`;

// A delivery's id begins with the time of its event. A sample event's delivery may have a somewhat later time.
const FIRST_KEPT_ID = `
  (lpad(to_hex(floor(extract(epoch FROM $2::timestamptz - ${KEPT} + interval '1 min') * 1000)::bigint), 12, '0') || repeat('0', 20))::uuid`;

/**
 * Removes up to `limit` deliveries that ended too long before `now` (milliseconds since 1970). Answers how many.
 * Concurrent calls are safe.
 */
export async function purgeEndedDeliveries(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_ended_deliveries", PURGE_ENDED, [limit, new Date(now).toISOString()])).length;
}

const PURGE_ENDED = `
DELETE FROM ended_deliveries
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM ended_deliveries WHERE ended_at < $2::timestamptz - ${KEPT}
                           ORDER BY ended_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;

/** Removes the attempts of deliveries that began too long ago to be shown, like purgeEndedDeliveries. */
export async function purgeDeliveryAttempts(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_delivery_attempts", PURGE_ATTEMPTS, [limit, new Date(now).toISOString()]))
    .length;
}

const PURGE_ATTEMPTS = `
DELETE FROM delivery_attempts
 WHERE ctid = ANY (ARRAY (SELECT ctid FROM delivery_attempts WHERE delivery_id < ${FIRST_KEPT_ID}
                           ORDER BY delivery_id, attempt LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;

/**
 * Removes events in the same way, except while their project still owes a delivery of that age: a delivery is rendered
 * from its event.
 */
export async function purgeEvents(db: Database, limit: number, now: number): Promise<number> {
  return (await db.run("purge_events", PURGE_EVENTS, [limit, new Date(now).toISOString()])).length;
}

const PURGE_EVENTS = `
DELETE FROM events
 WHERE ctid = ANY (ARRAY (
       SELECT ctid FROM events e
        WHERE occurred_at < $2::timestamptz - ${KEPT}
          AND NOT EXISTS (SELECT FROM open_deliveries o
                           WHERE o.project_no = e.project_no AND o.environment = e.environment
                             AND o.region = ANY ('{${REGIONS.map(regionCode).join(",")}}') AND o.id < ${FIRST_KEPT_ID})
        ORDER BY occurred_at LIMIT $1 FOR UPDATE SKIP LOCKED))
RETURNING 1`;
