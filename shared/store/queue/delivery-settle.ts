import type { SettledDelivery } from "../../domain/delivery.ts";
import { idToUuid } from "../../domain/ids.ts";
import { type OwedWork, oweAttempt } from "../../domain/owed.ts";
import type { RunStatus } from "../../domain/run.ts";
import { ENVIRONMENTS, type ProjectNo, type Region, type Scope } from "../../domain/scope.ts";
import {
  endedDeliveryStatusCode,
  environmentCode,
  regionCode,
  regionOf,
  runStatusCode,
} from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { isStillOwed, judgeEndpoints, tellOfDisabling } from "./endpoint-health.ts";
import { IS_CALLED, returnPermits } from "./permits.ts";
import { DURATION_MS_MAX } from "./settle.ts";

/** The end of one attempt of a delivery, and the decision of settleDelivery (domain/delivery.ts) on it. */
export interface DeliverySettlement extends Scope {
  region: Region;
  /** The shard of the delivery, null if it is not known. */
  shard: number | null;
  deliveryId: string;
  attemptId: string;
  status: Exclude<RunStatus, "running">;
  responseStatus: number | null;
  error: string | null;
  /** True if the attempt failed for a reason that says nothing about the endpoint. */
  isOurFault: boolean;
  durationMs: number;
  next: SettledDelivery;
}

/** The outcome of settlements. `owed` holds the retries. */
export interface SettledDeliveries extends OwedWork {
  /** The same order as the settlements; null for one whose attempt had been settled before. */
  items: (SettledDeliveryItem | null)[];
}

export interface SettledDeliveryItem {
  attempt: number;
  /** The delivery's new status. It is dropped if its endpoint was disabled or deleted meanwhile, or is disabled now. */
  status: "pending" | "succeeded" | "failed" | "dropped";
  /** When the next attempt is due, by the database's clock; null if none follows. */
  nextAttemptAt: number | null;
  /** Whether this settlement has disabled the endpoint. */
  isDisabling: boolean;
}

/** The ends of a delivery follow "pending" in the order of their codes. */
const NEXT = ["pending", "succeeded", "failed"] as const;
const PENDING = NEXT.indexOf("pending");
const END = "next - 1";
const DROPPED = endedDeliveryStatusCode("dropped");
const [DEVELOPMENT, PRODUCTION] = ENVIRONMENTS.map(environmentCode);

/**
 * Settles many attempts of deliveries in one self-committing statement, as settleAttempts does those of jobs. The statement
 * disables an endpoint to which everything has failed for `windowMs` (endpoint-health.ts), and tells the other endpoints; the
 * sweeps find these deliveries.
 */
export async function settleDeliveries(
  db: Database,
  settlements: readonly DeliverySettlement[],
  windowMs: number,
): Promise<SettledDeliveries> {
  // Only a failure disables an endpoint. Other settlements take a text without the parts that tell of it, which costs less.
  const hasFailed = settlements.some(({ status, isOurFault }) => status !== "succeeded" && !isOurFault);
  const [name, text] = hasFailed
    ? (["settle_failed_deliveries", SETTLE_FAILED] as const)
    : (["settle_deliveries", SETTLE] as const);
  const rows = await db.run<SettleRow>(name, text, [
    column(settlements.map((item) => item.projectNo)),
    column(settlements.map((item) => environmentCode(item.environment))),
    column(settlements.map((item) => regionCode(item.region))),
    column(settlements.map((item) => idToUuid(item.deliveryId))),
    column(settlements.map((item) => idToUuid(item.attemptId))),
    column(settlements.map((item) => runStatusCode(item.status))),
    column(settlements.map((item) => item.responseStatus)),
    settlements.map((item) => item.error),
    column(settlements.map((item) => Math.min(Math.round(item.durationMs), DURATION_MS_MAX))),
    column(settlements.map((item) => NEXT.indexOf(item.next.status))),
    column(settlements.map((item) => (item.next.status === "pending" ? item.next.waitMs : null))),
    windowMs,
    column(settlements.map((item) => String(item.isOurFault))),
    column(settlements.map((item) => (item.next.status === "pending" ? item.next.waits : 0))),
  ]);
  const settled: SettledDeliveries = { items: settlements.map(() => null), owed: [], freed: [] };
  for (const row of rows) {
    if (row.kind === "freed") {
      settled.freed.push({
        projectNo: row.project_no,
        region: regionOf(row.region),
        shard: row.shard,
        returned: Number(row.returned),
      });
    } else {
      const { attempt, due_at: dueAt, is_disabling: isDisabling } = row;
      const status = row.is_dropped ? "dropped" : (NEXT[row.next] ?? "failed");
      const settlement = settlements[row.n - 1] as DeliverySettlement;
      settled.items[row.n - 1] = { attempt, status, nextAttemptAt: dueAt, isDisabling };
      if (dueAt !== null) {
        const next = { id: settlement.deliveryId, attempt: attempt + 1, dueAt };
        settled.owed.push(...oweAttempt("webhooks", settlement, next));
      }
    }
  }
  return settled;
}

const settleText = (isTelling: boolean): string => `
WITH item AS MATERIALIZED (
  SELECT i.*
    FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[], $5::uuid[], $6::smallint[], $7::smallint[],
                $8::text[], $9::int[], $10::smallint[], $11::float8[], $13::boolean[], $14::smallint[])
         WITH ORDINALITY AS i (project_no, environment, region, id, attempt_id, status, response_status,
                               error, duration_ms, next, wait_ms, is_our_fault, waits, n)
), flow AS MATERIALIZED (
  SELECT f.project_no, f.waiting, f.returned
    FROM (SELECT DISTINCT project_no FROM item) p JOIN flows f USING (project_no)
   ORDER BY f.project_no
     FOR NO KEY UPDATE OF f
), found AS MATERIALIZED (
  SELECT i.*, o.attempt_id AS open_attempt_id, o.node_id, o.attempt, o.started_at, o.first_started_at, o.webhook_id,
         o.event_id, o.generation, NOT o.by_hand AND NOT i.is_our_fault AS counts
    FROM (SELECT item.* FROM (SELECT count(*) FROM flow) l CROSS JOIN item ORDER BY id) i
   CROSS JOIN LATERAL (
         SELECT o.* FROM open_deliveries o
          WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.region = i.region AND o.id = i.id
            FOR NO KEY UPDATE) o
), attempt AS MATERIALIZED (
  SELECT * FROM found WHERE open_attempt_id = attempt_id AND node_id IS NOT NULL
), ${judgeEndpoints("$12")}, ending AS MATERIALIZED (
  SELECT a.*, coalesce(j.is_disabling, false) AS is_disabling,
         -- Its endpoint is judged only if it was neither disabled nor deleted since this was owed to it.
         a.next = ${PENDING} AND (j.is_disabling OR NOT ${isStillOwed("j", "a")}) AS is_dropped,
         -- LEAST leaves a null out.
         greatest(now(), least(now() + a.wait_ms * interval '1 ms', a.first_started_at + $12::float8 * interval '1 ms')) AS next_at
    FROM attempt a LEFT JOIN judged j ON j.id = a.webhook_id
), owed_again AS (
  UPDATE open_deliveries o
     SET attempt = o.attempt + 1, waits = e.waits, due_at = e.next_at, attempt_id = NULL, node_id = NULL, started_at = NULL,
         parked_due_at = NULL
    FROM ending e
   WHERE e.next = ${PENDING} AND NOT e.is_dropped AND o.project_no = ANY (ARRAY[e.project_no]) AND o.environment = e.environment
     AND o.region = e.region AND o.id = e.id
), over AS (
  DELETE FROM open_deliveries o
   USING ending e
   WHERE (e.next <> ${PENDING} OR e.is_dropped) AND o.project_no = ANY (ARRAY[e.project_no]) AND o.environment = e.environment
     AND o.region = e.region AND o.id = e.id
), ended AS (
  INSERT INTO ended_deliveries (project_no, environment, region, id, webhook_id, event_id, status, attempts, first_started_at, ended_at)
  SELECT project_no, environment, region, id, webhook_id, event_id, CASE WHEN is_dropped THEN ${DROPPED} ELSE ${END} END,
         attempt, first_started_at, now()
    FROM ending WHERE next <> ${PENDING} OR is_dropped
), recorded AS (
  INSERT INTO delivery_attempts (delivery_id, attempt, webhook_id, status, response_status, error, started_at, duration_ms, counts)
  SELECT id, attempt, webhook_id, status, response_status, error, started_at, duration_ms, counts FROM ending
), returned AS (
  UPDATE flows f
     SET development_webhooks = f.development_webhooks - c.development,
         production_webhooks = f.production_webhooks - c.production,
         ${returnPermits("c.development + c.production")}
    FROM (SELECT project_no, count(*) FILTER (WHERE environment = ${DEVELOPMENT}) AS development,
                 count(*) FILTER (WHERE environment = ${PRODUCTION}) AS production
            FROM attempt GROUP BY project_no) c
   WHERE f.project_no = c.project_no
)${isTelling ? TELLING : ""}
SELECT 'attempt' AS kind, e.n::int AS n, e.project_no, e.region, NULL::smallint AS shard, NULL::bigint AS returned,
       e.attempt, e.next, e.is_dropped, e.is_disabling,
       CASE WHEN e.next = ${PENDING} AND NOT e.is_dropped THEN ${epochMs("e.next_at")} END AS due_at
  FROM ending e
UNION ALL
SELECT DISTINCT 'freed', NULL::int, l.project_no, l.region, l.shard, f.returned + f.settled, NULL::smallint, NULL::smallint,
       NULL::boolean, NULL::boolean, NULL::float8
  FROM (SELECT project_no, waiting, returned,
               (SELECT count(*) FROM attempt a WHERE a.project_no = flow.project_no) AS settled
          FROM flow WHERE waiting <> 0) f
  JOIN lanes l ON l.project_no = f.project_no AND f.settled > 0 AND ${IS_CALLED}`;

const TELLING = `, disabled AS MATERIALIZED (
  SELECT 'disabled ' || j.id || ' ' || j.generation AS seed, j.project_no, j.environment, j.id, j.url, l.region, l.shard
    FROM judged j
   CROSS JOIN LATERAL (
         SELECT region, shard FROM lanes l
          WHERE l.project_no = j.project_no AND l.environment = j.environment
          ORDER BY region LIMIT 1) l
   WHERE j.is_disabling
), ${tellOfDisabling("disabled", "failing")}`;

const SETTLE = settleText(false);
const SETTLE_FAILED = settleText(true);

type SettleRow =
  | {
      kind: "attempt";
      n: number;
      attempt: number;
      next: number;
      is_dropped: boolean;
      is_disabling: boolean;
      due_at: number | null;
    }
  | { kind: "freed"; project_no: ProjectNo; region: number; shard: number; returned: string };
