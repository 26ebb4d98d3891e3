import { AHEAD_MAX, type Ahead, type OwedFacts, type Surroundings } from "../../domain/explain.ts";
import {
  EVENT_PREFIX,
  firstIdAt,
  idTimeMs,
  idToUuid,
  RUN_PREFIX,
  uuidToId,
  WEBHOOK_PREFIX,
} from "../../domain/ids.ts";
import { type JobStatus, jobStatusOf } from "../../domain/job.ts";
import { UNSENT_RUN_ERROR } from "../../domain/run.ts";
import type { Region } from "../../domain/scope.ts";
import { hostOfTarget } from "../../domain/target.ts";
import {
  type EndedDeliveryFacts,
  type EventFacts,
  type RunFacts,
  TIMELINE_ENTRIES_MAX,
} from "../../domain/timeline.ts";
import {
  ALL_ENDED_DELIVERY_STATUSES,
  ALL_ENDED_STATUSES,
  ALL_REGIONS,
  endedDeliveryStatusCode,
  endedStatusCode,
  endedStatusOf,
  environmentCode,
  eventTypeOf,
  regionOf,
  runStatusOf,
  waitReasonOf,
} from "../database/codes.ts";
import { type Database, epochMs, REAL_NOW } from "../database/database.ts";
import { COUNTED_MONTH, MONTH_RUNS } from "../queue/month.ts";
import { canceledEventId, deliveryIdOf } from "../queue/owed-deliveries.ts";
import {
  GATE_COLUMNS,
  GATE_JOINS,
  type GateRow,
  IS_PARKED,
  parkedForOf,
  readFlow,
  readHostStanding,
} from "./explain-gates.ts";
import type { RetainedScope } from "./runs.ts";

/** The facts for the answer to "why is it waiting", as of one instant. Instants are milliseconds since 1970. */
export interface Explained {
  asOf: number;
  status: JobStatus;
  runAt: number;
  maxAttempts: number;
  /** Null for a job that is over, or whose attempt is on the wire. */
  owed: OwedFacts | null;
  around: Surroundings;
  /** The first attempt first, within retention. A run in progress, or asked for by hand, is the last. */
  runs: RunFacts[];
  /** When the owed attempt is due, if it has no run yet. */
  nextDueAt: number | null;
  canceledAt: number | null;
  events: EventFacts[];
  deliveries: EndedDeliveryFacts[];
}

const CANCELED = endedStatusCode("canceled");
const DELIVERED = endedDeliveryStatusCode("succeeded");

/** A delivery node beats twice a second. A node that has been silent for so long counts as absent. */
export const NODE_SILENT = "interval '10 s'";
/**
 * Attempts that are due at the very same instant go in the order of their ids, which no index has. Up to so many are read, in 0.7 ms.
 * If there are more, so many attempts of older jobs are read, the latest first. The number is not known if both looks were cut
 * before AHEAD_MAX was reached. Nothing is read if more than AHEAD_MAX attempts are due earlier.
 */
const TIES_MAX = 5_000;

/** The facts about a job, or null if this environment has no job with this id. */
export async function findExplained(
  db: Database,
  scope: RetainedScope,
  id: string,
): Promise<Explained | null> {
  const job = [scope.projectNo, environmentCode(scope.environment), idToUuid(id)];
  // These columns never change, so a statement of its own may read them.
  const [asked] = await db.run<AskedRow>("find_explained_job", FIND_ASKED, job);
  if (asked === undefined) return null;
  const host = hostOfTarget(asked.target_url);
  const [row] = await db.run<ExplainedRow>("explain_job", EXPLAIN, [
    ...job,
    asked.region,
    host,
    idToUuid(firstIdAt(RUN_PREFIX, scope.sinceAt)),
  ]);
  if (row === undefined) throw new Error("a project has no flow");
  // The job was asked for at the time in its id, somewhat before the statement that made its first attempt owed.
  const firstDueAt = Math.max(asked.run_at, idTimeMs(id));
  return {
    runAt: asked.run_at,
    maxAttempts: asked.max_attempts,
    ...readExplained(row, { region: regionOf(asked.region), host, firstDueAt }),
  };
}

const FIND_ASKED = `
SELECT region, target_url, max_attempts, ${epochMs("run_at")} AS run_at FROM jobs
 WHERE project_no = $1 AND environment = $2 AND region = ANY (${ALL_REGIONS}) AND id = $3`;

const IS_OWED = "o.node_id IS NULL AND NOT o.canceled";
const OWED_SINCE = "coalesce(o.parked_due_at, o.due_at)";
const IN_LANE = "q.project_no = $1 AND q.region = $4 AND q.environment = $2";

/**
 * How many rows of a queue of the lane go before the job's row (o): those of an earlier instant, or of the same one and a smaller id.
 * It may be any number beyond AHEAD_MAX, and is null if it is not known.
 */
const countBefore = (queue: string, dueAt: string, at: string) => `(
  SELECT CASE WHEN earlier.count > ${AHEAD_MAX} THEN earlier.count
              WHEN ties.read < ${TIES_MAX} THEN earlier.count + ties.count
              WHEN older.read < ${TIES_MAX} OR earlier.count + older.count > ${AHEAD_MAX} THEN earlier.count + older.count END
    FROM (SELECT count(*) FROM (SELECT FROM open_jobs q WHERE ${IN_LANE} AND ${queue} AND q.${dueAt} < ${at} LIMIT ${AHEAD_MAX + 1}) found) earlier
   CROSS JOIN LATERAL (
         SELECT count(*) AS read, count(*) FILTER (WHERE job_id < $3) AS count
           FROM (SELECT q.job_id FROM open_jobs q
                  WHERE earlier.count <= ${AHEAD_MAX} AND ${IN_LANE} AND ${queue} AND q.${dueAt} = ${at} LIMIT ${TIES_MAX}) tied) ties
   CROSS JOIN LATERAL (
         SELECT count(*) AS read, count(*) FILTER (WHERE ${queue} AND q.${dueAt} = ${at}) AS count
           FROM (SELECT q.* FROM open_jobs q
                  WHERE ties.read = ${TIES_MAX} AND ${IN_LANE} AND q.job_id < $3
                  ORDER BY q.job_id DESC LIMIT ${TIES_MAX}) q) older)`;
const AHEAD = `CASE WHEN o.due_at IS NULL
            THEN ${countBefore(`q.parked_host = o.parked_host AND q.due_at IS NULL AND q.node_id IS NULL`, "parked_due_at", "o.parked_due_at")}
            ELSE ${countBefore("q.due_at <= now()", "due_at", "o.due_at")} END`;

const EXPLAIN = `
WITH ended_run AS MATERIALIZED (
  SELECT r.* FROM runs r WHERE r.job_id = $3 AND r.id >= $6 ORDER BY r.attempt DESC LIMIT ${TIMELINE_ENTRIES_MAX}
), event AS MATERIALIZED (
  SELECT e.id, e.type, e.occurred_at FROM ended_run r
    JOIN events e ON e.project_no = $1 AND e.environment = $2 AND e.id = r.id
  UNION ALL
  SELECT e.id, e.type, e.occurred_at
    FROM ended_jobs j JOIN events e ON e.project_no = $1 AND e.environment = $2 AND e.id = ${canceledEventId("j.job_id", "j.ended_at")}
   WHERE j.project_no = $1 AND j.environment = $2 AND j.status = ${CANCELED} AND j.region = $4 AND j.job_id = $3
), told AS MATERIALIZED (
  -- Each event is looked up for each endpoint. The timeline has no room for more.
  SELECT * FROM event ORDER BY occurred_at DESC
   LIMIT (SELECT ${TIMELINE_ENTRIES_MAX} / greatest(count(*), 1) FROM webhooks w WHERE w.project_no = $1 AND w.environment = $2)
), delivery AS MATERIALIZED (
  -- The id of a delivery follows from its event and its endpoint, so no index by event is needed.
  SELECT d.event_id, d.webhook_id, d.status, d.ended_at, a.response_status
    FROM told e
    JOIN webhooks w ON w.project_no = $1 AND w.environment = $2
    JOIN ended_deliveries d ON d.project_no = $1 AND d.environment = $2 AND d.webhook_id = w.id
         AND d.status = ANY (${ALL_ENDED_DELIVERY_STATUSES}) AND d.id = ${deliveryIdOf("e.id", "w.id", "e.occurred_at")}
    LEFT JOIN delivery_attempts a ON a.delivery_id = d.id AND a.attempt = d.attempts
   LIMIT ${TIMELINE_ENTRIES_MAX}
)
SELECT ${epochMs("now()")} AS as_of, e.status AS ended_status, ${epochMs(`CASE WHEN e.status = ${CANCELED} THEN e.ended_at END`)} AS canceled_at,
       o.attempt, o.run_id, ${IS_OWED} AS is_owed, ${epochMs(OWED_SINCE)} AS due_at, ${IS_PARKED} AS is_parked,
       ${GATE_COLUMNS},
       ${epochMs("o.started_at")} AS started_at, CASE WHEN ${IS_OWED} THEN ${AHEAD} END::int AS ahead,
       f.held AS is_project_held, EXISTS (SELECT FROM held_regions h WHERE h.region = $4) AS is_region_held,
       (${MONTH_RUNS})::float8 AS month_runs, f.month_runs_max::float8 AS month_runs_max,
       ${epochMs(`${COUNTED_MONTH} + interval '1 month'`)} AS month_ends_at,
       f.concurrency, f.development_jobs + f.production_jobs + f.development_webhooks + f.production_webhooks AS permits_in_use,
       (SELECT requests FROM host_limits WHERE host = $5) AS host_requests_max,
       EXISTS (SELECT FROM lanes l
                 JOIN shards s ON s.region = l.region AND s.shard = l.shard
                 JOIN nodes n ON n.id = s.owner AND NOT n.dead
                WHERE l.project_no = $1 AND l.region = $4 AND l.environment = $2 AND s.lease_until > ${REAL_NOW}) AS has_worker,
       EXISTS (SELECT FROM nodes n
                WHERE n.kind = 'delivery' AND NOT n.dead AND $4 = ANY (n.regions) AND n.seen_at > ${REAL_NOW} - ${NODE_SILENT}) AS has_delivery,
       (SELECT json_agg(json_build_array(id, attempt, status, response_status, ${epochMs("started_at")}, duration_ms,
                                         ${epochMs("next_retry_at")}, late_ms, held_for, error = '${UNSENT_RUN_ERROR}') ORDER BY attempt)
          FROM ended_run) AS runs,
       (SELECT json_agg(json_build_array(id, type, ${epochMs("occurred_at")})) FROM event) AS events,
       (SELECT json_agg(json_build_array(event_id, webhook_id, status, ${epochMs("ended_at")}, response_status)) FROM delivery) AS deliveries
  FROM flows f
  LEFT JOIN open_jobs o ON o.project_no = $1 AND o.environment = $2 AND o.region = $4 AND o.job_id = $3
  ${GATE_JOINS}
  LEFT JOIN ended_jobs e ON e.project_no = $1 AND e.environment = $2 AND e.status = ANY (${ALL_ENDED_STATUSES})
                        AND e.region = $4 AND e.job_id = $3
 WHERE f.project_no = $1`;

interface AskedRow {
  region: number;
  target_url: string;
  max_attempts: number;
  run_at: number;
}

interface ExplainedRow extends GateRow {
  as_of: number;
  ended_status: number | null;
  canceled_at: number | null;
  /** Null, like all columns up to `ahead`, if the job is over. */
  attempt: number | null;
  run_id: string | null;
  is_owed: boolean | null;
  due_at: number | null;
  is_parked: boolean;
  started_at: number | null;
  ahead: number | null;
  is_project_held: boolean;
  is_region_held: boolean;
  month_runs: number;
  month_runs_max: number | null;
  month_ends_at: number;
  concurrency: number;
  permits_in_use: number;
  host_requests_max: number | null;
  has_worker: boolean;
  has_delivery: boolean;
  runs:
    | [
        string,
        number,
        number,
        number | null,
        number,
        number,
        number | null,
        number | null,
        number | null,
        boolean | null,
      ][]
    | null;
  events: [string, number, number][] | null;
  deliveries: [string, string, number, number, number | null][] | null;
}

function readExplained(
  row: ExplainedRow,
  { region, host, firstDueAt }: { region: Region; host: string; firstDueAt: number },
): Omit<Explained, "runAt" | "maxAttempts"> {
  const runs = (row.runs ?? []).map((run) => readRun(run, row.canceled_at));
  const open = readOpen(row, firstDueAt, runs.at(-1)?.endedAt ?? null);
  const { ended_status: endedStatus, canceled_at: canceledAt } = row;
  return {
    asOf: row.as_of,
    status: jobStatusOf({
      endedAs: endedStatus === null ? null : endedStatusOf(endedStatus),
      hasRunInProgress: row.run_id !== null,
    }),
    owed: open.owed,
    around: {
      isProjectHeld: row.is_project_held,
      isRegionHeld: row.is_region_held,
      region,
      month: { runs: row.month_runs, max: row.month_runs_max, endsAt: row.month_ends_at },
      hasWorker: row.has_worker,
      hasDelivery: row.has_delivery,
      host,
      hostRequestsMax: row.host_requests_max,
      hostStanding: readHostStanding(row),
      flow: readFlow(row),
      concurrency: row.concurrency,
      permitsInUse: row.permits_in_use,
    },
    runs: open.run === null ? runs : [...runs, open.run],
    nextDueAt: open.run === null && open.owed !== null ? open.owed.dueAt : null,
    canceledAt,
    events: (row.events ?? []).map(([id, type, createdAt]) => ({
      id: uuidToId(EVENT_PREFIX, id),
      type: eventTypeOf(type),
      createdAt,
    })),
    deliveries: (row.deliveries ?? []).map(([eventId, webhookId, status, endedAt, responseStatus]) => ({
      eventId: uuidToId(EVENT_PREFIX, eventId),
      webhookId: uuidToId(WEBHOOK_PREFIX, webhookId),
      isDelivered: status === DELIVERED,
      responseStatus,
      endedAt,
    })),
  };
}

const aheadOf = (count: number | null): Ahead =>
  count === null ? "unknown" : count > AHEAD_MAX ? null : count;

/** The owed attempt of an open job, and the run that the job has already. */
function readOpen(
  row: ExplainedRow,
  firstDueAt: number,
  ranUntil: number | null,
): { owed: OwedFacts | null; run: RunFacts | null } {
  const { attempt, run_id: runId, started_at: startedAt } = row;
  if (attempt === null || row.due_at === null) return { owed: null, run: null };
  const dueAt = attempt === 1 ? firstDueAt : row.due_at;
  const isOwed = row.is_owed === true;
  const parkedFor = row.is_parked ? parkedForOf(row) : null;
  const ahead = parkedFor === "host" || parkedFor === "flow" ? row.ahead_at_gate : row.ahead;
  const isByHand = runId !== null;
  const owed = isOwed
    ? {
        attempt,
        dueAt,
        ranUntil,
        isByHand,
        parkedFor,
        hasPlace: row.has_place === true,
        ahead: aheadOf(ahead),
        aheadAtFlow: row.flow_key === null ? null : aheadOf(row.ahead_at_gate),
      }
    : null;
  if (runId === null) return { owed, run: null };
  const id = uuidToId(RUN_PREFIX, runId);
  const isSent = !isOwed && startedAt !== null;
  const run: RunFacts = {
    ...{ id, attempt, madeAt: idTimeMs(id), status: "running", responseStatus: null },
    startedAt: isSent ? startedAt : null,
    ...{ endedAt: null, durationMs: 0, nextRetryAt: null },
    lateMs: null,
    heldFor: null,
  };
  return { owed, run };
}

/** A run that was never sent ended when its job was canceled. */
function readRun(row: NonNullable<ExplainedRow["runs"]>[number], canceledAt: number | null): RunFacts {
  const [
    uuid,
    attempt,
    status,
    responseStatus,
    startedAt,
    durationMs,
    nextRetryAt,
    lateMs,
    heldFor,
    isUnsent,
  ] = row;
  const id = uuidToId(RUN_PREFIX, uuid);
  return {
    id,
    attempt,
    madeAt: idTimeMs(id),
    status: runStatusOf(status),
    responseStatus,
    startedAt: isUnsent === true ? null : startedAt,
    endedAt: (isUnsent === true ? canceledAt : null) ?? startedAt + durationMs,
    durationMs,
    nextRetryAt,
    lateMs,
    heldFor: heldFor === null ? null : waitReasonOf(heldFor),
  };
}
