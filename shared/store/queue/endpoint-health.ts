import type { DisabledReason } from "../../domain/webhook.ts";
import { hasClockRunEvenly } from "../database/clock-watch.ts";
import { eventTypeCode, runStatusCode } from "../database/codes.ts";
import { disabledData } from "./event-data.ts";
import { tellOf } from "./owed-deliveries.ts";

/**
 * The parts of the statements that disable an endpoint, and that decide which deliveries are still owed to it.
 *
 * A settlement disables an endpoint if an attempt has failed, and if `failing_since` is at least DELIVERY_WINDOW_SECONDS ago
 * (domain/delivery.ts). Attempts overlap, so they are ordered by the instants at which they began. Of the failed attempts that
 * began after the latest successful one, `failing_since` is when the first began. A failure by our own fault, or of an attempt
 * that was asked for by hand, does not count. The clock must have run evenly for as long (database/clock-watch.ts). A clock that
 * leaps ahead by days, even to the right time, would otherwise disable endpoints and drop all that is owed to them.
 *
 * `generation` counts how often an endpoint was disabled. A delivery keeps the generation that its endpoint had when it was
 * owed, and is dropped if the endpoint has another one. So disabling costs the same however much is owed.
 */

const SUCCEEDED = runStatusCode("succeeded");

/** Whether a delivery (`owed`) is still to be sent: its endpoint was neither disabled nor deleted since. Both are aliases. */
export const isStillOwed = (endpoint: string, owed: string): string =>
  `coalesce(${endpoint}.enabled AND ${endpoint}.generation = ${owed}.generation, false)`;

/** Assignments to an endpoint that a client enables or disables. An endpoint that is enabled begins a new window. */
export const setEnabled = (enabled: string): string => `enabled = ${enabled},
         generation = generation + (enabled AND NOT ${enabled})::int,
         failing_since = CASE WHEN ${enabled} AND NOT enabled THEN NULL ELSE failing_since END`;

/**
 * Locks the endpoints of attempts that have ended (`attempt`) and judges their health. `judged` has the endpoints about which
 * the attempts say something, with `is_disabling`. `counts` of an attempt is false if its failure does not count. `windowMs` is
 * a parameter.
 */
export const judgeEndpoints = (windowMs: string): string => `endpoint AS MATERIALIZED (
  SELECT w.*
    FROM (SELECT DISTINCT project_no, environment, webhook_id FROM attempt ORDER BY webhook_id) a
   CROSS JOIN LATERAL (
         SELECT w.project_no, w.environment, w.id, w.generation, w.enabled, w.failing_since, w.succeeded_at, w.url
           FROM webhooks w
          WHERE w.project_no = a.project_no AND w.environment = a.environment AND w.id = a.webhook_id
            FOR NO KEY UPDATE) w
), told AS MATERIALIZED (
  -- An attempt that began before the endpoint was last disabled says nothing about it any more.
  SELECT a.webhook_id, max(a.started_at) FILTER (WHERE a.status = ${SUCCEEDED}) AS succeeded_at,
         array_agg(a.started_at) FILTER (WHERE a.status <> ${SUCCEEDED} AND a.counts) AS failed_ats
    FROM attempt a JOIN endpoint e ON e.id = a.webhook_id AND e.generation = a.generation
   GROUP BY a.webhook_id
), health AS MATERIALIZED (
  SELECT e.*, latest.succeeded_at AS latest_at, t.failed_ats IS NOT NULL AS has_failed,
         least(CASE WHEN latest.succeeded_at IS NULL OR e.failing_since > latest.succeeded_at THEN e.failing_since
                    -- Other failures since the latest success began were settled before. Some may have been settled while this
                    -- statement waited for the flow, so a function reads them (migration 0030).
                    WHEN e.failing_since IS NOT NULL THEN first_failure(e.id, latest.succeeded_at) END,
               (SELECT min(f.at) FROM unnest(t.failed_ats) AS f (at)
                 WHERE latest.succeeded_at IS NULL OR f.at > latest.succeeded_at)) AS failed_since
    FROM endpoint e
    JOIN told t ON t.webhook_id = e.id
   CROSS JOIN LATERAL (SELECT greatest(e.succeeded_at, t.succeeded_at) AS succeeded_at) latest
), judged AS MATERIALIZED (
  SELECT *, enabled AND has_failed AND coalesce(failed_since <= now() - ${windowMs}::float8 * interval '1 ms', false)
            AND ${hasClockRunEvenly(windowMs)} AS is_disabling
    FROM health
), healed AS (
  UPDATE webhooks w
     SET failing_since = j.failed_since, succeeded_at = j.latest_at, enabled = w.enabled AND NOT j.is_disabling,
         generation = w.generation + j.is_disabling::int
    FROM judged j
   WHERE w.project_no = j.project_no AND w.environment = j.environment AND w.id = j.id
)`;

/**
 * For each endpoint that is disabled, tells the other endpoints of its environment (`disabled`: `seed`, project_no,
 * environment, region and shard as for tellOf, id, url).
 */
export const tellOfDisabling = (
  disabled: string,
  reason: DisabledReason,
): string => `disabling AS MATERIALIZED (
  SELECT seed, project_no, environment, region, shard, ${eventTypeCode("webhook.disabled")}::smallint AS type, NULL::uuid AS job_id,
         NULL::bytea AS trace, ${disabledData("d", reason)} AS data, id AS disabled_id
    FROM ${disabled} d
), ${tellOf("disabling", { except: "w.id = e.disabled_id" })}`;
