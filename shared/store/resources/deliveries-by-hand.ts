import { and, eq, sql } from "drizzle-orm";
import type { SampleRun } from "../../contract/event.ts";
import { idTimeMs, idToUuid } from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import type { EndpointStatus, EventType, RetriableDelivery } from "../../domain/webhook.ts";
import { environmentCode, eventListOf, eventTypeCode, regionCode, runStatusCode } from "../database/codes.ts";
import { type Database, StoreUnavailable } from "../database/database.ts";
import { webhooks } from "../database/schema/resources.ts";
import { type KeyCause, recordChange } from "./audit.ts";
import {
  type DeliveryRow,
  ENDED_COLUMNS,
  OPEN_COLUMNS,
  readDelivery,
  TOLD,
  TOLD_COLUMNS,
  type ToldRow,
} from "./delivery-log.ts";
import { type KeyToTake, keepAnswer, takeKeyFrom } from "./idempotency.ts";

/**
 * What clients ask to be sent: once more, or for a trial. Nothing that claims and settlements wait for is locked on the
 * way. What is owed has the generation that its endpoint had when it was looked at, so that a claim drops it if the
 * endpoint has been disabled since.
 */

type Scope = { projectNo: ProjectNo; environment: Environment };
/** A key whose answer tells of what was found on the way. */
type KeyToAnswer = KeyToTake & { answerOf: (delivery: DeliveryRow) => Buffer };

const ALL_REGIONS = "'{0,1,2,3}'";

export type RetriedDelivery =
  | { kind: "retried"; delivery: DeliveryRow; attempt: number; shard: number | null }
  | { kind: "not_found" }
  | { kind: "key_taken" };

/**
 * Makes an attempt due now: the one that the delivery waits for, or exactly one more of one that is over. `decide` throws
 * to refuse.
 */
export async function retryDelivery(
  db: Database,
  scope: Scope & { sinceAt: number },
  { webhookId, id }: { webhookId: string; id: string },
  decide: (delivery: RetriableDelivery, endpoint: EndpointStatus) => "hastened" | "reopened",
  cause: KeyCause,
  key: KeyToAnswer | null,
): Promise<RetriedDelivery> {
  if (idTimeMs(id) < scope.sinceAt) return { kind: "not_found" };
  const place = [scope.projectNo, environmentCode(scope.environment), idToUuid(webhookId), idToUuid(id)];
  for (let look = 0; look < LOOKS_MAX; look++) {
    const endpoint = await lookAt(db, scope, webhookId);
    if (endpoint === null) return { kind: "not_found" };
    const [row] = await db.run<ToldRow & { shard: number | null }>("find_delivery", FIND, place);
    if (row === undefined) return { kind: "not_found" };
    const found = readDelivery(row, webhookId);
    const { status, attemptCount } = { status: found.status, attemptCount: row.attempt_count };
    const retry = decide({ status, attemptCount, isInProgress: row.running_since !== null }, endpoint.status);
    const delivery: DeliveryRow = { ...found, status: "pending", nextAttemptAt: endpoint.at };
    const [made] = await db.run<{ outcome: "retried" | "key_taken" }>("retry_delivery", RETRY, [
      ...place,
      endpoint.generation,
      retry === "reopened",
      new Date(endpoint.at).toISOString(),
      attemptCount,
      key?.digest ?? null,
      key?.requestHash ?? null,
      key?.answerOf(delivery) ?? null,
      idToUuid(cause.requestId),
      cause.keyNo,
      id,
      webhookId,
    ]);
    if (made?.outcome === "key_taken") return { kind: "key_taken" };
    if (made?.outcome === "retried") {
      return { kind: "retried", delivery, attempt: attemptCount + 1, shard: row.shard };
    }
  }
  throw new StoreUnavailable(`delivery ${id} moved ${LOOKS_MAX} times while it was being retried`);
}

/** A delivery that is being claimed, settled or ended is another one a moment later. */
const LOOKS_MAX = 10;

const FIND = `
WITH d AS MATERIALIZED (
  SELECT ${OPEN_COLUMNS}
    FROM open_deliveries o JOIN webhooks w ON w.project_no = $1 AND w.environment = $2 AND w.id = $3
   WHERE o.project_no = $1 AND o.environment = $2 AND o.region = ANY (${ALL_REGIONS}) AND o.id = $4 AND o.webhook_id = $3
  UNION ALL
  SELECT ${ENDED_COLUMNS}
    FROM ended_deliveries e
   WHERE e.project_no = $1 AND e.environment = $2 AND e.webhook_id = $3 AND e.status = ANY ('{0,1,2}') AND e.id = $4
)
SELECT ${TOLD_COLUMNS}, l.shard
  FROM d${TOLD}
  LEFT JOIN lanes l ON l.project_no = $1 AND l.region = d.region AND l.environment = $2`;

// Only of the delivery as it was found: not on the wire, and with no attempt more. The wait that a hastened attempt did not
// wait for is its own again. due_at is what is answered, the clock a look before this statement: should more than the
// sweep's lag lie between them, and the command be lost, the minute's look at everything finds it.
const RETRY = `
WITH open AS MATERIALIZED (
  SELECT region, due_at FROM open_deliveries
   WHERE project_no = $1 AND environment = $2 AND region = ANY (${ALL_REGIONS}) AND id = $4 AND webhook_id = $3
     AND node_id IS NULL AND attempt = $8::int + 1
     FOR NO KEY UPDATE
), over AS MATERIALIZED (
  SELECT status FROM ended_deliveries
   WHERE project_no = $1 AND environment = $2 AND webhook_id = $3 AND status = ANY ('{0,1,2}') AND id = $4
     AND attempts = $8
     FOR UPDATE
), found AS MATERIALIZED (
  SELECT FROM open UNION ALL SELECT FROM over
), key AS (${takeKeyFrom("found", { digest: "$9", requestHash: "$10", answer: "$11" })}
), decided AS MATERIALIZED (
  SELECT CASE WHEN $9::bytea IS NOT NULL AND NOT EXISTS (SELECT FROM key) THEN 'key_taken' ELSE 'retried' END AS outcome
    FROM found
), owed AS (
  UPDATE open_deliveries o
     SET due_at = $7::timestamptz, parked_due_at = NULL, generation = $5, by_hand = by_hand OR $6::boolean,
         waits = CASE WHEN w.due_at > now() THEN greatest(waits - 1, 0) ELSE waits END
    FROM open w, decided d
   WHERE d.outcome = 'retried' AND o.project_no = $1 AND o.environment = $2 AND o.region = w.region AND o.id = $4
), ended AS (
  DELETE FROM ended_deliveries e
   USING over w, decided d
   WHERE d.outcome = 'retried' AND e.project_no = $1 AND e.environment = $2 AND e.webhook_id = $3 AND e.status = w.status
     AND e.id = $4
  RETURNING e.*
), reopened AS (
  INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, attempt, by_hand,
                               first_started_at, due_at)
  SELECT project_no, environment, region, id, webhook_id, event_id, $5::int, attempts + 1, true, first_started_at,
         $7::timestamptz
    FROM ended
), audited AS (
  INSERT INTO audit_entries (id, project_no, environment, key_no, action, subject, detail)
  SELECT $12, $1, $2, $13, 'delivery.retry', $14, json_build_object('webhook_id', $15::text) FROM decided
   WHERE outcome = 'retried'
)
SELECT outcome FROM decided`;

export interface Sample {
  eventId: string;
  deliveryId: string;
  apiVersion: string;
  region: Region;
  shard: number;
  runOf: (type: EventType) => SampleRun;
}

export type OwedSample =
  | { kind: "owed"; delivery: DeliveryRow }
  | { kind: "not_found" }
  | { kind: "key_taken" };

/** Makes a sample of the first event that the endpoint subscribes to due now, once. `check` throws to refuse. */
export async function oweSample(
  db: Database,
  scope: Scope,
  webhookId: string,
  { eventId, deliveryId, apiVersion, region, shard, runOf }: Sample,
  check: (endpoint: EndpointStatus) => void,
  cause: KeyCause,
  key: KeyToAnswer | null,
): Promise<OwedSample> {
  return db.transact(async (tx) => {
    const endpoint = await lookAt(tx, scope, webhookId);
    if (endpoint === null) return { kind: "not_found" };
    check(endpoint.status);
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
    if (key !== null && !(await keepAnswer(tx, scope, key, key.answerOf(delivery))))
      return { kind: "key_taken" };
    await recordChange(tx.drizzle, cause, {
      projectNo: scope.projectNo,
      environment: scope.environment,
      action: "webhook.test",
      subject: webhookId,
      detail: { delivery_id: deliveryId },
    });
    const run = runOf(eventType);
    await tx.run("owe_sample", OWE_SAMPLE, [
      scope.projectNo,
      environmentCode(scope.environment),
      idToUuid(webhookId),
      endpoint.generation,
      regionCode(region),
      shard,
      idToUuid(eventId),
      idToUuid(deliveryId),
      eventTypeCode(eventType),
      apiVersion,
      new Date(endpoint.at).toISOString(),
      run.attempt,
      runStatusCode(run.status),
      run.responseStatus,
      run.error,
      run.durationMs,
    ]);
    return { kind: "owed", delivery };
  });
}

const OWE_SAMPLE = `
WITH event AS (
  INSERT INTO events (project_no, environment, region, id, type, api_version, occurred_at, attempt, run_status,
                      response_status, error, duration_ms, started_at)
  VALUES ($1, $2, $5, $7, $9, $10, $11::timestamptz, $12, $13, $14, $15, $16::int,
          $11::timestamptz - $16::int * interval '1 ms')
), lane AS (
  INSERT INTO lanes AS l (project_no, region, environment, shard, has_deliveries)
  VALUES ($1, $5, $2, $6, true)
      ON CONFLICT (project_no, region, environment) DO UPDATE SET shard = excluded.shard, has_deliveries = true
   WHERE l.shard <> excluded.shard OR NOT l.has_deliveries
)
INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, by_hand, due_at)
VALUES ($1, $2, $5, $8, $3, $7, $4, true, $11::timestamptz)`;

/** The endpoint, and what the database's clock says (milliseconds since 1970). */
async function lookAt(tx: Pick<Database, "drizzle">, { projectNo, environment }: Scope, id: string) {
  const [row] = await tx.drizzle
    .select({
      enabled: webhooks.enabled,
      events: webhooks.events,
      generation: webhooks.generation,
      at: sql<number>`(extract(epoch FROM clock_timestamp()) * 1000)::float8`,
    })
    .from(webhooks)
    .where(
      and(
        eq(webhooks.projectNo, projectNo),
        eq(webhooks.environment, environmentCode(environment)),
        eq(webhooks.id, idToUuid(id)),
      ),
    );
  if (row === undefined) return null;
  const status: EndpointStatus = row.enabled ? "enabled" : "disabled";
  return { status, events: eventListOf(row.events), generation: row.generation, at: row.at };
}
