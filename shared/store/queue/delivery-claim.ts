import { sampleFacts } from "../../contract/event-sample.ts";
import type { EventFacts } from "../../contract/event-text.ts";
import {
  ATTEMPT_PREFIX,
  DELIVERY_PREFIX,
  EVENT_PREFIX,
  idTimeMs,
  idToUuid,
  JOB_PREFIX,
  PROJECT_PREFIX,
  RUN_PREFIX,
  SCHEDULE_PREFIX,
  uuidToId,
  WEBHOOK_PREFIX,
} from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import {
  endedDeliveryStatusCode,
  environmentCode,
  environmentOf,
  eventTypeOf,
  regionCode,
  regionOf,
  runStatusOf,
} from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { readTrace } from "../database/traces.ts";
import { type Claimed, NodeDeclaredDead } from "./claim.ts";
import { isStillOwed } from "./endpoint-health.ts";
import { readEventData } from "./event-data.ts";
import {
  CLAIMED_PERMITS,
  HELD_PAUSE_SECONDS,
  IS_HELD,
  inTurn,
  PERMIT_COLUMNS,
  PERMIT_NAMES,
  PLACE_VERDICT,
  TAKE_PERMITS,
} from "./permits.ts";

/** An owed attempt of a delivery that a node wants to send, with the id to record it under. */
export interface DeliveryClaim {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  deliveryId: string;
  attempt: number;
  /** Tells this claim from every other, and has no other use. */
  attemptId: string;
}

/** Everything that a node needs for sending. Instants are milliseconds since 1970 by the database's clock. */
export interface GrantedDelivery {
  deliveryId: string;
  webhookId: string;
  attemptId: string;
  startedAt: number;
  firstStartedAt: number;
  /** How many of the waits between attempts were used. */
  waits: number;
  byHand: boolean;
  /** Null if the endpoint was deleted: then nothing is sent. */
  endpoint: {
    url: string;
    /** The secrets in force, the newest first. */
    sealedSecrets: Buffer[];
  } | null;
  event: EventFacts;
  /** True if a client tries the endpoint with an event that has no job. */
  isSample: boolean;
  /** The trace that the event joins; null if it has none. */
  trace: TraceContext | null;
}

/**
 * Claims many deliveries in one self-committing statement, as claimAttempts does jobs. A claim whose answer was lost is
 * repeated in the same way. A delivery that is not owed any more (endpoint-health.ts) is not granted but ends here as dropped,
 * and so is one whose event has no row: there is nothing to send, and the other claims of the statement go on.
 * The statement locks the endpoints behind the deliveries, so that it reads them as they are now.
 */
export async function claimDeliveries(
  db: Database,
  nodeId: number,
  claims: readonly DeliveryClaim[],
): Promise<Claimed<GrantedDelivery>[]> {
  const rows = await db.run<ClaimRow>("claim_deliveries", CLAIM, [
    nodeId,
    column(claims.map((claim) => claim.projectNo)),
    column(claims.map((claim) => environmentCode(claim.environment))),
    column(claims.map((claim) => regionCode(claim.region))),
    column(claims.map((claim) => idToUuid(claim.deliveryId))),
    column(claims.map((claim) => claim.attempt)),
    column(claims.map((claim) => idToUuid(claim.attemptId))),
  ]);
  if (rows.length === 0) throw new NodeDeclaredDead(`node ${nodeId} was declared dead`);
  const answers: Claimed<GrantedDelivery>[] = claims.map(() => ({ kind: "gone" }));
  for (const row of rows) if (row.n > 0) answers[row.n - 1] = readClaimed(row);
  return answers;
}

const CLAIM = `
WITH living AS MATERIALIZED (
  SELECT id FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE
), item AS MATERIALIZED (
  SELECT i.*
    FROM unnest($2::int[], $3::smallint[], $4::smallint[], $5::uuid[], $6::smallint[], $7::uuid[])
         WITH ORDINALITY AS i (project_no, environment, region, id, attempt, attempt_id, n)
   WHERE EXISTS (SELECT FROM living)
), flow AS MATERIALIZED (
  SELECT p.*, ${PERMIT_COLUMNS}
    FROM (SELECT project_no, array_agg(environment) AS environments, array_agg(region) AS regions,
                 array_agg(id) AS ids, array_agg(attempt) AS attempts, array_agg(attempt_id) AS attempt_ids,
                 array_agg(n) AS ns
            FROM item GROUP BY project_no) p
    JOIN flows f USING (project_no)
   ORDER BY f.project_no
     FOR NO KEY UPDATE OF f
), owed AS MATERIALIZED (
  SELECT i.n, i.attempt AS asked, i.attempt_id AS new_attempt_id, ${PERMIT_NAMES}, o.*
    FROM (SELECT f.project_no, ${PERMIT_NAMES}, a.*
            FROM flow f
           CROSS JOIN LATERAL unnest(f.environments, f.regions, f.ids, f.attempts, f.attempt_ids, f.ns)
                 AS a (environment, region, id, attempt, attempt_id, n)
           ORDER BY a.id) i
   CROSS JOIN LATERAL (
         SELECT o.* FROM open_deliveries o
          WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.region = i.region AND o.id = i.id
            FOR NO KEY UPDATE) o
), asked AS MATERIALIZED (
  SELECT *, due_at <= now() AS due, due_at IS NULL AS again, ${IS_HELD} AS is_held
    FROM owed
   WHERE attempt = asked AND (due_at IS NOT NULL OR node_id = $1)
), endpoint AS MATERIALIZED (
  SELECT w.*
    FROM (SELECT DISTINCT project_no, environment, webhook_id FROM asked ORDER BY webhook_id) a
   CROSS JOIN LATERAL (
         SELECT w.project_no, w.environment, w.id, w.generation, w.enabled, w.url, w.sealed_secret,
                CASE WHEN w.old_secret_until > now() THEN w.sealed_old_secret END AS sealed_old_secret
           FROM webhooks w
          WHERE w.project_no = a.project_no AND w.environment = a.environment AND w.id = a.webhook_id
            FOR SHARE) w
), met AS MATERIALIZED (
  SELECT a.*, e.url, e.sealed_secret, e.sealed_old_secret,
         -- An attempt that is on the wire goes to its end. OFFSET 0 keeps the planner to a look-up of one event by its key.
         NOT again AND NOT (${isStillOwed("e", "a")} AND EXISTS (
           SELECT FROM events v WHERE v.project_no = a.project_no AND v.environment = a.environment AND v.id = a.event_id OFFSET 0)) AS is_dropped
    FROM asked a
    LEFT JOIN endpoint e ON e.project_no = a.project_no AND e.environment = a.environment AND e.id = a.webhook_id
), verdict AS MATERIALIZED (
  SELECT *, kind = 'granted' AND NOT again AS taken
    FROM (SELECT *, CASE WHEN again THEN 'granted'
                 WHEN NOT due THEN 'early'
                 WHEN is_held THEN 'blocked'
                 ${PLACE_VERDICT} AS kind
            FROM (${inTurn("SELECT *, (environment + 2)::smallint AS class, coalesce(due AND NOT is_held, false) AS wants FROM met WHERE NOT is_dropped")}) placed) judged
), taken AS (
  UPDATE open_deliveries o
     SET due_at = NULL, attempt_id = v.new_attempt_id, node_id = $1, started_at = now(),
         first_started_at = coalesce(o.first_started_at, now())
    FROM verdict v
   WHERE v.taken AND o.project_no = ANY (ARRAY[v.project_no]) AND o.environment = v.environment
     AND o.region = v.region AND o.id = v.id
), dropped AS (
  DELETE FROM open_deliveries o
   USING met m
   WHERE m.is_dropped AND o.project_no = ANY (ARRAY[m.project_no]) AND o.environment = m.environment
     AND o.region = m.region AND o.id = m.id
), ended AS (
  INSERT INTO ended_deliveries (project_no, environment, region, id, webhook_id, event_id, status, attempts, first_started_at, ended_at)
  SELECT project_no, environment, region, id, webhook_id, event_id, ${endedDeliveryStatusCode("dropped")},
         attempt - 1, first_started_at, now()
    FROM met WHERE is_dropped
), counted AS (
  UPDATE flows f
     SET ${TAKE_PERMITS}
    FROM (SELECT project_no, ${CLAIMED_PERMITS} FROM verdict GROUP BY project_no) c
   WHERE f.project_no = c.project_no
)
SELECT v.n::int AS n, v.kind,
       CASE v.kind
         WHEN 'early' THEN CASE WHEN v.due THEN v.kept_ms ELSE extract(epoch FROM v.due_at - now()) * 1000 END
         WHEN 'no_permit' THEN v.returned
         WHEN 'blocked' THEN extract(epoch FROM now() + interval '${HELD_PAUSE_SECONDS} s') * 1000
       END::float8 AS number,
       v.id, v.webhook_id, CASE WHEN v.again THEN v.attempt_id ELSE v.new_attempt_id END AS attempt_id, v.by_hand, v.waits,
       ${epochMs("CASE WHEN v.again THEN v.started_at ELSE now() END")} AS started_at,
       ${epochMs("coalesce(v.first_started_at, now())")} AS first_started_at,
       v.url, v.sealed_secret, v.sealed_old_secret,
       e.id AS event_id, e.type, ${epochMs("e.occurred_at")} AS occurred_at, e.api_version,
       p.id AS project_id, e.environment, e.region, e.job_id, j.target_url, j.schedule_id, j.tags, e.attempt, e.run_status,
       e.response_status, e.error, ${epochMs("e.started_at")} AS run_started_at, e.duration_ms,
       coalesce(e.trace, j.trace) AS trace, e.data
  FROM verdict v
  LEFT JOIN events e ON v.kind = 'granted' AND e.project_no = v.project_no AND e.environment = v.environment AND e.id = v.event_id
  LEFT JOIN projects p ON p.no = e.project_no
  LEFT JOIN jobs j ON j.project_no = e.project_no AND j.environment = e.environment AND j.region = e.region AND j.id = e.job_id
 UNION ALL
SELECT 0, ${Array(31).fill("NULL").join(", ")} FROM living`;

interface ClaimRow {
  /** The claim's place, from 1; 0 in the row that stands for the living node. */
  n: number;
  kind: Exclude<Claimed["kind"], "gone">;
  /** By kind: milliseconds to wait, permits returned, or an instant. */
  number: number | null;
  id: string;
  webhook_id: string;
  attempt_id: string;
  by_hand: boolean;
  waits: number;
  started_at: number;
  first_started_at: number;
  /** Null if the endpoint was deleted between two answers to the same claim. */
  url: string | null;
  sealed_secret: Buffer | null;
  sealed_old_secret: Buffer | null;
  event_id: string;
  type: number;
  occurred_at: number;
  api_version: string;
  project_id: string;
  environment: number;
  region: number;
  job_id: string | null;
  target_url: string;
  schedule_id: string | null;
  tags: string[] | null;
  /** Null in an event without a run of its own, as are the run's other facts. */
  attempt: number | null;
  run_status: number | null;
  response_status: number | null;
  error: string | null;
  run_started_at: number | null;
  duration_ms: number | null;
  trace: Buffer | null;
  /** The data of an event that is not the end of an attempt (event-data.ts). */
  data: unknown;
}

function readClaimed(row: ClaimRow): Claimed<GrantedDelivery> {
  switch (row.kind) {
    case "granted":
      return {
        kind: "granted",
        attempt: {
          deliveryId: uuidToId(DELIVERY_PREFIX, row.id),
          webhookId: uuidToId(WEBHOOK_PREFIX, row.webhook_id),
          attemptId: uuidToId(ATTEMPT_PREFIX, row.attempt_id),
          startedAt: row.started_at,
          firstStartedAt: row.first_started_at,
          byHand: row.by_hand,
          waits: row.waits,
          endpoint: readEndpoint(row),
          event: readEvent(row),
          isSample: row.job_id === null && row.data === null,
          trace: readTrace(row.trace),
        },
      };
    case "early":
      return { kind: "early", waitMs: row.number ?? 0 };
    case "blocked":
      return { kind: "blocked", untilAt: row.number ?? 0 };
    case "no_permit":
      return { kind: "no_permit", returned: row.number ?? 0 };
  }
}

function readEndpoint({ url, sealed_secret, sealed_old_secret }: ClaimRow): GrantedDelivery["endpoint"] {
  if (url === null || sealed_secret === null) return null;
  return {
    url,
    sealedSecrets: sealed_old_secret === null ? [sealed_secret] : [sealed_secret, sealed_old_secret],
  };
}

function readEvent(row: ClaimRow): EventFacts {
  const region = regionOf(row.region);
  const type = eventTypeOf(row.type);
  const head = {
    id: uuidToId(EVENT_PREFIX, row.event_id),
    occurredAt: row.occurred_at,
    apiVersion: row.api_version,
    projectId: uuidToId(PROJECT_PREFIX, row.project_id),
    environment: environmentOf(row.environment),
  };
  const job = row.job_id === null ? null : readJob(row, uuidToId(JOB_PREFIX, row.job_id));
  if (row.data !== null) return readEventData({ ...head, type }, row.data, job);
  const run = readRun(row);
  if (job === null) return sampleFacts({ ...head, type, region, run });
  if (run === null || (type !== "job.succeeded" && type !== "job.failed")) {
    throw new Error(`the event ${head.id} has no run`);
  }
  return {
    ...head,
    type,
    job: { ...job, attempts: run.attempt },
    run: { id: uuidToId(RUN_PREFIX, row.event_id), ...run },
  };
}

const readJob = (row: ClaimRow, id: string) => ({
  id,
  targetUrl: row.target_url,
  region: regionOf(row.region),
  scheduleId: row.schedule_id === null ? null : uuidToId(SCHEDULE_PREFIX, row.schedule_id),
  createdAt: idTimeMs(id),
  tags: row.tags,
});

function readRun({ attempt, run_status, run_started_at, duration_ms, response_status, error }: ClaimRow) {
  if (attempt === null || run_status === null || run_started_at === null || duration_ms === null) return null;
  return {
    attempt,
    status: runStatusOf(run_status),
    responseStatus: response_status,
    error,
    startedAt: run_started_at,
    durationMs: duration_ms,
  };
}
