import { and, eq, sql } from "drizzle-orm";
import type { SampleRun } from "../contract/event.ts";
import { idTimeMs, idToUuid } from "../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../domain/scope.ts";
import type { EndpointStatus, EventType, RetriableDelivery } from "../domain/webhook.ts";
import { type KeyCause, recordChange } from "./audit.ts";
import { environmentCode, eventTypeCode, eventTypesOf, regionCode, runStatusCode } from "./codes.ts";
import { type Database, StoreUnavailable, type Transaction } from "./database.ts";
import {
  type DeliveryRow,
  ENDED_COLUMNS,
  OPEN_COLUMNS,
  readDelivery,
  TOLD,
  TOLD_COLUMNS,
  type ToldRow,
} from "./delivery-log.ts";
import { type KeyToTake, keepAnswer } from "./idempotency.ts";
import { webhooks } from "./schema.ts";

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
  for (let look = 0; look < LOOKS_MAX; look++) {
    const retried = await db
      .transact((tx) => tryRetry(tx, scope, { webhookId, id }, decide, cause, key))
      .catch(moved);
    if (retried !== "moved") return retried;
  }
  throw new StoreUnavailable(`delivery ${id} moved ${LOOKS_MAX} times while it was being retried`);
}

/** A delivery that is being claimed, settled or ended is another one a moment later. */
const LOOKS_MAX = 10;

class Moved extends Error {}

function moved(error: unknown): "moved" {
  if (error instanceof Moved) return "moved";
  throw error;
}

async function tryRetry(
  tx: Transaction,
  scope: Scope,
  { webhookId, id }: { webhookId: string; id: string },
  decide: (delivery: RetriableDelivery, endpoint: EndpointStatus) => "hastened" | "reopened",
  cause: KeyCause,
  key: KeyToAnswer | null,
): Promise<RetriedDelivery> {
  const endpoint = await lookAt(tx, scope, webhookId);
  if (endpoint === null) return { kind: "not_found" };
  const place = [scope.projectNo, environmentCode(scope.environment), idToUuid(webhookId), idToUuid(id)];
  const [row] = await tx.run<ToldRow & { shard: number | null }>("find_delivery", FIND, place);
  if (row === undefined) return { kind: "not_found" };
  const found = readDelivery(row, webhookId);
  const { status, attemptCount } = { status: found.status, attemptCount: row.attempt_count };
  const retry = decide({ status, attemptCount, isInProgress: row.running_since !== null }, endpoint.status);
  const delivery: DeliveryRow = { ...found, status: "pending", nextAttemptAt: endpoint.at };
  if (key !== null && !(await keepAnswer(tx, scope, key, key.answerOf(delivery))))
    return { kind: "key_taken" };
  await recordChange(tx.drizzle, cause, {
    projectNo: scope.projectNo,
    environment: scope.environment,
    action: "delivery.retry",
    subject: id,
    detail: { webhook_id: webhookId },
  });
  const now = new Date(endpoint.at).toISOString();
  const made = await tx.run("retry_delivery", RETRY, [
    ...place,
    endpoint.generation,
    retry === "reopened",
    now,
    attemptCount,
  ]);
  // Thrown, so that the key and the audit's entry are taken back.
  if (made.length === 0) throw new Moved();
  return { kind: "retried", delivery, attempt: attemptCount + 1, shard: row.shard };
}

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

// Only of the delivery as it was found: not on the wire, and with no attempt more.
const RETRY = `
WITH owed AS (
  UPDATE open_deliveries SET due_at = $7::timestamptz, generation = $5, by_hand = by_hand OR $6::boolean
   WHERE project_no = $1 AND environment = $2 AND region = ANY (${ALL_REGIONS}) AND id = $4 AND webhook_id = $3
     AND node_id IS NULL AND attempt = $8::int + 1
  RETURNING 1
), ended AS (
  DELETE FROM ended_deliveries
   WHERE project_no = $1 AND environment = $2 AND webhook_id = $3 AND status = ANY ('{0,1,2}') AND id = $4
     AND attempts = $8
  RETURNING *
), reopened AS (
  INSERT INTO open_deliveries (project_no, environment, region, id, webhook_id, event_id, generation, attempt, by_hand,
                               first_started_at, due_at)
  SELECT project_no, environment, region, id, webhook_id, event_id, $5::int, attempts + 1, true, first_started_at,
         $7::timestamptz
    FROM ended
)
SELECT 1 FROM owed UNION ALL SELECT 1 FROM ended`;

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
VALUES ($1, $2, $5, $8, $3, $7, $4, true, $11)`;

/** The endpoint, and what the database's clock says (milliseconds since 1970). */
async function lookAt(tx: Transaction, { projectNo, environment }: Scope, id: string) {
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
  return { status, events: eventTypesOf(row.events), generation: row.generation, at: row.at };
}
