import type { SampleRun } from "../../contract/event-sample.ts";
import { idTimeMs, idToUuid } from "../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import type { Region, Scope } from "../../domain/scope.ts";
import {
  checkEnabled,
  decideDeliveryRetry,
  type EndpointStatus,
  type EventType,
} from "../../domain/webhook.ts";
import {
  ALL_ENDED_DELIVERY_STATUSES,
  ALL_REGIONS,
  environmentCode,
  eventListCode,
  eventListOf,
  eventTypeCode,
  regionCode,
  runStatusCode,
} from "../database/codes.ts";
import type { Database } from "../database/database.ts";
import { lookAgain } from "../database/look-again.ts";
import { oweDeliveries } from "../queue/owed-deliveries.ts";
import { auditFrom, changeOf, type KeyCause } from "./audit.ts";
import {
  type DeliveryRow,
  ENDED_COLUMNS,
  OPEN_COLUMNS,
  readDelivery,
  TOLD,
  TOLD_COLUMNS,
  type ToldRow,
} from "./delivery-log.ts";
import { type KeyToTake, keyOf, madeFrom, readMade, takeKeyFrom } from "./idempotency.ts";

/**
 * Deliveries that clients ask for: one that is sent once more, or a sample. No statement here locks an endpoint, because
 * claims and settlements would wait for that. The delivery has the generation that its endpoint had when the store looked,
 * so a claim drops it if the endpoint has been disabled since.
 */

/** A key together with the answer that is kept under it, which shows the delivery. */
type KeyToAnswer = KeyToTake & { answerOf: (delivery: DeliveryRow) => Buffer };

export type RetriedDelivery =
  | { kind: "retried"; delivery: DeliveryRow; owed: Placed<OwedAttempt>[] }
  | { kind: "not_found" }
  | { kind: "key_taken" };

/** Makes the next attempt of a delivery, or one attempt more, due now, as decideDeliveryRetry (domain/webhook.ts) decides. */
export async function retryDelivery(
  db: Database,
  scope: Scope & { sinceAt: number },
  { webhookId, id }: { webhookId: string; id: string },
  cause: KeyCause,
  key: KeyToAnswer | null,
): Promise<RetriedDelivery> {
  if (idTimeMs(id) < scope.sinceAt) return { kind: "not_found" };
  return lookAgain(id, async () => {
    const endpoint = await lookAt(db, scope, webhookId);
    if (endpoint === null) return { kind: "not_found" };
    const place = [scope.projectNo, environmentCode(scope.environment), idToUuid(webhookId), idToUuid(id)];
    const [row] = await db.run<FoundRow>("find_delivery", FIND, place);
    if (row === undefined) return { kind: "not_found" };
    const { attempt_count: attemptCount, waits, by_hand: byHand, shard } = row;
    const found = readDelivery(row, webhookId);
    const isInProgress = row.running_since !== null;
    const next = decideDeliveryRetry(
      { ...found, isInProgress, attemptCount, waits, byHand },
      endpoint.status,
      endpoint.at,
    );
    const delivery: DeliveryRow = { ...found, status: "pending", nextAttemptAt: endpoint.at };
    const rows = await db.run<{ is_made: boolean }>("retry_delivery", RETRY, [
      ...changeOf(scope, id, cause),
      ...keyOf(key, key?.answerOf(delivery)),
      ...[idToUuid(webhookId), webhookId, attemptCount, waits, byHand],
      ...[next.waits, next.byHand, endpoint.generation, new Date(endpoint.at).toISOString()],
    ]);
    const outcome = readMade(rows);
    if (outcome !== "made") return outcome && { kind: outcome };
    const owed = { id, attempt: attemptCount + 1, dueAt: endpoint.at };
    return {
      kind: "retried",
      delivery,
      owed: oweAttempt("webhooks", { ...scope, region: found.region, shard }, owed),
    };
  });
}

const FIND = `
WITH d AS MATERIALIZED (
  SELECT ${OPEN_COLUMNS}, o.waits, o.by_hand
    FROM open_deliveries o JOIN webhooks w ON w.project_no = $1 AND w.environment = $2 AND w.id = $3
   WHERE o.project_no = $1 AND o.environment = $2 AND o.region = ANY (${ALL_REGIONS}) AND o.id = $4 AND o.webhook_id = $3
  UNION ALL
  SELECT ${ENDED_COLUMNS}, 0::smallint, false
    FROM ended_deliveries e
   WHERE e.project_no = $1 AND e.environment = $2 AND e.webhook_id = $3 AND e.status = ANY (${ALL_ENDED_DELIVERY_STATUSES}) AND e.id = $4
)
SELECT ${TOLD_COLUMNS}, l.shard
  FROM d${TOLD}
  LEFT JOIN lanes l ON l.project_no = $1 AND l.region = d.region AND l.environment = $2`;

interface FoundRow extends ToldRow {
  waits: number;
  by_hand: boolean;
  shard: number | null;
}

// The delivery must be as it was read, and not on the wire. The answer shows due_at, the clock's time at the look. If the
// statement comes later than the sweep's lag and the command is lost, a shard's look at everything, each minute, finds it.
const RETRY = `
WITH open AS MATERIALIZED (
  SELECT region FROM open_deliveries
   WHERE project_no = $1 AND environment = $2 AND region = ANY (${ALL_REGIONS}) AND id = $3 AND webhook_id = $10
     AND node_id IS NULL AND attempt = $12::int + 1 AND waits = $13 AND by_hand = $14
     FOR NO KEY UPDATE
), over AS MATERIALIZED (
  SELECT status FROM ended_deliveries
   WHERE project_no = $1 AND environment = $2 AND webhook_id = $10 AND status = ANY (${ALL_ENDED_DELIVERY_STATUSES}) AND id = $3
     AND attempts = $12
     FOR UPDATE
), found AS MATERIALIZED (
  SELECT FROM open UNION ALL SELECT FROM over
), ${takeKeyFrom("found")}, owed AS (
  UPDATE open_deliveries o
     SET due_at = $18::timestamptz, parked_due_at = NULL, waits = $15, by_hand = $16, generation = $17
    FROM open, made
   WHERE o.project_no = $1 AND o.environment = $2 AND o.region = open.region AND o.id = $3
), ended AS (
  DELETE FROM ended_deliveries e
   USING over, made
   WHERE e.project_no = $1 AND e.environment = $2 AND e.webhook_id = $10 AND e.status = over.status AND e.id = $3
  RETURNING e.*
), reopened AS (
  INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, attempt, waits, by_hand,
                               first_started_at, due_at)
  SELECT project_no, environment, region, id, webhook_id, event_id, $17, attempts + 1, $15, $16, first_started_at, $18
    FROM ended
), ${auditFrom("delivery.retry", "made", "json_build_object('webhook_id', $11::text)")}
${madeFrom("found")}`;

export interface Sample {
  eventId: string;
  deliveryId: string;
  apiVersion: string;
  region: Region;
  shard: number;
  runOf: (type: EventType) => SampleRun | null;
}

export type OwedSample =
  | { kind: "owed"; delivery: DeliveryRow; owed: Placed<OwedAttempt>[] }
  | { kind: "not_found" }
  | { kind: "key_taken" };

/** Makes one sample due now: an event of the first type that the endpoint subscribes to. */
export function oweSample(
  db: Database,
  scope: Scope,
  webhookId: string,
  { eventId, deliveryId, apiVersion, region, shard, runOf }: Sample,
  cause: KeyCause,
  key: KeyToAnswer | null,
): Promise<OwedSample> {
  return lookAgain(webhookId, async () => {
    const endpoint = await lookAt(db, scope, webhookId);
    if (endpoint === null) return { kind: "not_found" };
    checkEnabled(endpoint.status);
    const [eventType] = endpoint.events;
    if (eventType === undefined) throw new Error(`endpoint ${webhookId} subscribes to nothing`);
    const delivery: DeliveryRow = {
      id: deliveryId,
      webhookId,
      eventId,
      eventType,
      jobId: null,
      region,
      status: "pending",
      attempts: [],
      nextAttemptAt: endpoint.at,
      createdAt: idTimeMs(deliveryId),
    };
    const run = runOf(eventType);
    const rows = await db.run<{ is_made: boolean }>("owe_sample", OWE_SAMPLE, [
      ...changeOf(scope, webhookId, cause),
      ...keyOf(key, key?.answerOf(delivery)),
      ...[endpoint.generation, eventListCode(endpoint.events), deliveryId],
      ...[
        idToUuid(eventId),
        idToUuid(deliveryId),
        regionCode(region),
        shard,
        eventTypeCode(eventType),
        apiVersion,
      ],
      ...[
        new Date(endpoint.at).toISOString(),
        run?.attempt ?? null,
        run === null ? null : runStatusCode(run.status),
        run?.responseStatus ?? null,
        run?.error ?? null,
      ],
      run?.durationMs ?? null,
    ]);
    const outcome = readMade(rows);
    if (outcome !== "made") return outcome && { kind: outcome };
    const owed = { id: deliveryId, attempt: 1, dueAt: endpoint.at };
    return { kind: "owed", delivery, owed: oweAttempt("webhooks", { ...scope, region, shard }, owed) };
  });
}

const OWE_SAMPLE = `
WITH endpoint AS MATERIALIZED (
  SELECT FROM webhooks
   WHERE project_no = $1 AND environment = $2 AND id = $3 AND enabled AND generation = $10 AND events = $11
), ${takeKeyFrom("endpoint")}, heard AS MATERIALIZED (
  SELECT $1::int AS project_no, $2::smallint AS environment, $15::smallint AS region, $13::uuid AS event_id,
         $17::smallint AS type, NULL::uuid AS job_id, $20::smallint AS attempt, $21::smallint AS status,
         $22::smallint AS response_status, $23::text AS error, $19::timestamptz - $24::int * interval '1 ms' AS started_at,
         $24 AS duration_ms, $19 AS occurred_at, $18::text AS api_version, NULL::bytea AS trace, $14::uuid AS delivery_id,
         $3::uuid AS webhook_id, $10::int AS generation, true AS by_hand
    FROM made
), ${oweDeliveries("heard")}, lane AS (
  INSERT INTO lanes AS l (project_no, region, environment, shard, has_deliveries)
  SELECT project_no, region, environment, $16, true FROM heard
      ON CONFLICT (project_no, region, environment) DO UPDATE SET shard = excluded.shard, has_deliveries = true
   WHERE l.shard <> excluded.shard OR NOT l.has_deliveries
), ${auditFrom("webhook.test", "made", "json_build_object('delivery_id', $12::text)")}
${madeFrom("endpoint")}`;

/** Reads the endpoint, and the database's clock in milliseconds since 1970. */
async function lookAt(db: Database, { projectNo, environment }: Scope, id: string) {
  const values = [projectNo, environmentCode(environment), idToUuid(id)];
  const [row] = await db.run<EndpointRow>("look_at_endpoint", LOOK_AT_ENDPOINT, values);
  if (row === undefined) return null;
  const status: EndpointStatus = row.enabled ? "enabled" : "disabled";
  return { status, events: eventListOf(row.events, row.event_order), generation: row.generation, at: row.at };
}

const LOOK_AT_ENDPOINT = `
SELECT enabled, events, event_order, generation, (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS at
  FROM webhooks WHERE project_no = $1 AND environment = $2 AND id = $3`;

interface EndpointRow {
  enabled: boolean;
  events: number;
  event_order: number[] | null;
  generation: number;
  at: number;
}
