import { DELIVERY_PREFIX, idToUuid, JOB_PREFIX, uuidToId } from "../../domain/ids.ts";
import { type OwedWork, oweAttempt } from "../../domain/owed.ts";
import { type NextOfJob, type RunStatus, startedInTime } from "../../domain/run.ts";
import type { ProjectNo, Region, Scope } from "../../domain/scope.ts";
import { WAITED_FROM_MS, type WaitReason } from "../../domain/wait.ts";
import {
  environmentCode,
  environmentOf,
  regionCode,
  regionOf,
  runStatusCode,
  waitReasonCode,
} from "../database/codes.ts";
import { int2Column, int4Column } from "../database/columns.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import type { GrantedAttempt } from "./claim.ts";
import { CLOCK_BEHIND_GATES, calledLanes, LEAVE_GATES, LOCK_GATES } from "./flow-gates.ts";
import { LOCK_HOSTS_OF_SETTLEMENTS, WATCH_HOSTS } from "./host-gates.ts";
import { HAS_WORDS, moveTags, noteShiftedRuns, OPEN_STATE, tagRuns } from "./job-tags.ts";
import { tellEndpoints } from "./owed-deliveries.ts";
import { countByEnvironment, IS_CALLED, returnPermits } from "./permits.ts";

/** True if less is to be written at an attempt's end: no tags, flow key or watched hosts, and a start at its run id's time. */
export const isPlain = ({
  isTagged,
  runId,
  startedAt,
}: Pick<GrantedAttempt, "isTagged" | "runId" | "startedAt">): boolean =>
  !isTagged && startedInTime(runId, startedAt);

/** The end of one attempt, and the decision of settleAttempt (domain/run.ts) on it. */
export interface Settlement extends Scope {
  region: Region;
  /** The shard of the job, null if it is not known. */
  shard: number | null;
  jobId: string;
  runId: string;
  /** True if the attempt is known to be plain. */
  isPlain?: boolean;
  /** True if its job is known to have a flow key. */
  isKeyed?: true | undefined;
  status: Exclude<RunStatus, "running">;
  responseStatus: number | null;
  error: string | null;
  durationMs: number;
  /** How long after its due time the attempt was dialled; left out if unknown. */
  lateMs?: number | undefined;
  /** Why the attempt was last kept from starting; left out if it never was, or if unknown. */
  waitedFor?: WaitReason | undefined;
  /** The attempt's host, and whether it found nobody there (domain/host-state.ts); left out if unknown. */
  met?: { host: string; nobody: boolean } | undefined;
  /** The next state of the job, unless it was canceled meanwhile. */
  next: NextOfJob;
}

/** The outcome of settlements. `owed` holds retries, called attempts, and deliveries of the events of jobs that are over. */
export interface Settled extends OwedWork {
  /** The same order as the settlements; null for one whose attempt had been settled before. */
  items: (SettledItem | null)[];
}

export interface SettledItem {
  jobId: string;
  attempt: number;
  status: NextOfJob["status"] | "canceled";
  /** When the next attempt is due, by the database's clock; null if none follows. */
  nextRetryAt: number | null;
}

/**
 * Settles many attempts in one self-committing statement: the run is written, the permit comes back, and the job is owed again
 * or over. The statement is compare-and-set on the attempt's run id. The first settlement of an attempt counts, and a second
 * one finds nothing: a settlement whose answer was lost is sent again, and a rescue may meet the node that it rescues from.
 * Lock order and look-ups are those of claim-statement.ts; `locked` reads all flows, which locks them before the first job.
 *
 * The same statement tells endpoints of a job that is over (owed-deliveries.ts), so that each transition has its event and each
 * event its transition. It also moves the tags of the job, writes those of the run (job-tags.ts), gives the places of flow keys
 * back (flow-gates.ts), and watches hosts (host-gates.ts). If every attempt is plain, a shorter text without these last parts
 * is used.
 */
export async function settleAttempts(db: Database, settlements: readonly Settlement[]): Promise<Settled> {
  const [name, text] = settlements.every(({ isPlain }) => isPlain)
    ? (["settle", SETTLE] as const)
    : (["settle_whole", SETTLE_WHOLE] as const);
  const rows = await db.run<SettleRow>(name, text, [
    column(settlements.map((item) => item.projectNo)),
    column(settlements.map((item) => environmentCode(item.environment))),
    column(settlements.map((item) => regionCode(item.region))),
    column(settlements.map((item) => idToUuid(item.jobId))),
    column(settlements.map((item) => idToUuid(item.runId))),
    column(settlements.map((item) => runStatusCode(item.status))),
    column(settlements.map((item) => item.responseStatus)),
    settlements.map((item) => item.error),
    column(settlements.map((item) => Math.min(Math.round(item.durationMs), DURATION_MS_MAX))),
    column(settlements.map((item) => NEXT.indexOf(item.next.status))),
    column(settlements.map((item) => (item.next.status === "queued" ? item.next.waitMs : null))),
    ...lateColumns(settlements),
    ...(text === SETTLE ? [] : hostColumns(settlements)),
  ]);
  const settled: Settled = { items: settlements.map(() => null), owed: [], freed: [] };
  for (const row of rows) {
    const { project_no: projectNo } = row;
    const region = regionOf(row.region);
    switch (row.kind) {
      case "attempt": {
        const { attempt, due_at: dueAt } = row;
        const status = row.canceled ? "canceled" : (NEXT[row.next] ?? "failed");
        const settlement = settlements[row.n - 1] as Settlement;
        const { jobId, isKeyed } = settlement;
        settled.items[row.n - 1] = { jobId, attempt, status, nextRetryAt: dueAt };
        if (dueAt !== null) {
          const next = { id: jobId, attempt: attempt + 1, dueAt, isGated: isKeyed };
          settled.owed.push(...oweAttempt("jobs", settlement, next));
        }
        break;
      }
      case "freed":
        settled.freed.push({ projectNo, region, shard: row.shard, returned: Number(row.returned) });
        break;
      case "called": {
        const place = { projectNo, environment: environmentOf(row.environment), region, shard: row.shard };
        const { attempt, due_at: dueAt } = row;
        const called = { id: uuidToId(JOB_PREFIX, row.id), attempt, dueAt, isGated: true } as const;
        settled.owed.push(...oweAttempt("jobs", place, called));
        break;
      }
      case "delivery": {
        const place = { projectNo, environment: environmentOf(row.environment), region, shard: row.shard };
        const id = uuidToId(DELIVERY_PREFIX, row.id);
        settled.owed.push(...oweAttempt("webhooks", place, { id, attempt: 1, dueAt: row.due_at }));
      }
    }
  }
  return settled;
}

/** The most that the column holds. An attempt may be found lost after any time. */
export const DURATION_MS_MAX = 2_147_483_647;
/** The columns of `late_ms` and `held_for`: the reason for a wait is recorded if the attempt was late. */
export const lateColumns = (settlements: readonly Settlement[]) => [
  int4Column(
    settlements.map(({ lateMs }) =>
      lateMs === undefined ? null : Math.min(Math.round(lateMs), DURATION_MS_MAX),
    ),
  ),
  int2Column(
    settlements.map(({ lateMs = 0, waitedFor }) =>
      waitedFor === undefined || lateMs <= WAITED_FROM_MS ? null : waitReasonCode(waitedFor),
    ),
  ),
];

const hostColumns = (settlements: readonly Settlement[]) => [
  settlements.map(({ met }) => met?.host ?? null),
  settlements.map(({ met }) => met?.nobody ?? null),
];

/** The default of the column settled_in, reckoned once for all runs of the statement. */
export const SETTLED_IN = "(SELECT pg_current_xact_id()::text::bigint)";

/** The ends of a job follow "queued" in the order of their codes, which is also the order of the events' types. */
const NEXT = ["queued", "succeeded", "failed"] as const satisfies NextOfJob["status"][];
const QUEUED = NEXT.indexOf("queued");
const END = "next - 1";
const WRITE_TAGS = `
  ${moveTags(`attempt WHERE ${HAS_WORDS} AND next <> ${QUEUED} AND NOT canceled`, String(OPEN_STATE), END)},
  ${tagRuns("attempt WHERE tags IS NOT NULL")},
  ${noteShiftedRuns("attempt")}`;

/** Whether a job keeps its place at its flow key between attempts. */
const KEEPS_PLACE = `coalesce(o.flow_key IS NOT NULL AND (
           SELECT j.flow ->> 'hold' = 'job' FROM jobs j
            WHERE j.project_no = i.project_no AND j.environment = i.environment AND j.region = i.region AND j.id = i.job_id), false)`;

/** The text with `isWhole` also writes tags, calls the next of flow keys and watches hosts. The other is for plain attempts. */
const settlementOf = (isWhole: boolean) => `
WITH item AS MATERIALIZED (
  SELECT i.*
    FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[], $5::uuid[], $6::smallint[], $7::smallint[],
                $8::text[], $9::int[], $10::smallint[], $11::float8[], $12::int[], $13::smallint[]${isWhole ? ", $14::text[], $15::boolean[]" : ""})
         WITH ORDINALITY AS i (project_no, environment, region, job_id, run_id, status, response_status,
                               error, duration_ms, next, wait_ms, late_ms, held_for, ${isWhole ? "host, nobody, " : ""}n)
), flow AS MATERIALIZED (
  SELECT f.project_no, f.waiting, f.returned, f.retention_class, f.subscriptions
    FROM (SELECT DISTINCT project_no FROM item) p JOIN flows f USING (project_no)
   ORDER BY f.project_no
     FOR NO KEY UPDATE OF f
), ${isWhole ? `${LOCK_GATES}, ${LOCK_HOSTS_OF_SETTLEMENTS}, ${CLOCK_BEHIND_GATES}, ` : ""}locked AS MATERIALIZED (
  SELECT array_agg(project_no) AS projects, array_agg(retention_class) AS classes,
         array_agg(subscriptions) AS subscriptions FROM flow${isWhole ? " WHERE (SELECT at FROM clock) IS NOT NULL" : ""}
), found AS MATERIALIZED (
  SELECT i.*, o.run_id AS owed_run_id, o.node_id, o.attempt, o.started_at, o.canceled, o.trace,
         o.schedule_id, o.tags${isWhole ? `, o.flow_key, o.has_place, ${KEEPS_PLACE} AS keeps_place` : ""}
    FROM (SELECT item.*, l.classes[array_position(l.projects, item.project_no)] AS retention_class,
                 l.subscriptions[array_position(l.projects, item.project_no)] AS subscriptions
            FROM locked l CROSS JOIN item ORDER BY job_id) i
   CROSS JOIN LATERAL (
         SELECT o.run_id, o.node_id, o.attempt, o.started_at, o.canceled, o.trace, o.schedule_id, o.tags${isWhole ? ", o.flow_key, o.has_place" : ""}
           FROM open_jobs o
          WHERE o.project_no = i.project_no AND o.environment = i.environment
            AND o.region = i.region AND o.job_id = i.job_id
            FOR NO KEY UPDATE) o
), attempt AS MATERIALIZED (
  SELECT n, project_no, environment, region, job_id, run_id, status, response_status, error, duration_ms, next,
         now() + wait_ms * interval '1 ms' AS due_at, retention_class, subscriptions, attempt, started_at, late_ms, held_for, canceled, trace,
         schedule_id, tags${isWhole ? `, host, nobody, flow_key, keeps_place, has_place AND (next <> ${QUEUED} OR canceled OR NOT keeps_place) AS frees` : ""}
    FROM found WHERE owed_run_id = run_id AND node_id IS NOT NULL
), owed_again AS (
  UPDATE open_jobs o
     SET attempt = o.attempt + 1, due_at = a.due_at, run_id = NULL, node_id = NULL, started_at = NULL,
         ${isWhole ? "parked_due_at = CASE WHEN o.flow_key IS NOT NULL THEN a.due_at END, has_place = CASE WHEN a.keeps_place THEN o.has_place END,\n         gate = CASE WHEN a.keeps_place AND o.has_place THEN NULL ELSE 'k' || o.flow_key END" : "parked_due_at = NULL"}
    FROM attempt a
   WHERE a.next = ${QUEUED} AND NOT a.canceled AND o.project_no = ANY (ARRAY[a.project_no]) AND o.environment = a.environment
     AND o.region = a.region AND o.job_id = a.job_id${isWhole ? "\n  RETURNING 1" : ""}
), over AS (
  DELETE FROM open_jobs o
   USING attempt a
   WHERE (a.next <> ${QUEUED} OR a.canceled) AND o.project_no = ANY (ARRAY[a.project_no]) AND o.environment = a.environment
     AND o.region = a.region AND o.job_id = a.job_id${isWhole ? "\n  RETURNING 1" : ""}
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT project_no, environment, region, job_id, ${END}, attempt, now(), schedule_id
    FROM attempt WHERE next <> ${QUEUED} AND NOT canceled
), recorded AS (
  INSERT INTO runs (id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
                    started_at, duration_ms, next_retry_at, schedule_id, late_ms, held_for, settled_in)
  SELECT run_id, job_id, project_no, environment, retention_class, attempt, status, response_status, error,
         started_at, duration_ms, CASE WHEN next = ${QUEUED} AND NOT canceled THEN due_at END, schedule_id, late_ms, held_for,
         ${SETTLED_IN}
    FROM attempt
), returned AS (
  UPDATE flows f
     SET development_jobs = f.development_jobs - c.development,
         production_jobs = f.production_jobs - c.production,
         ${returnPermits("c.development + c.production")}
    FROM ${countByEnvironment("attempt")}
   WHERE f.project_no = c.project_no
), ${isWhole ? `${WRITE_TAGS}, ${LEAVE_GATES}, ` : ""}${tellEndpoints(`next <> ${QUEUED} AND NOT canceled`, END)}${isWhole ? `, ${WATCH_HOSTS}` : ""}
SELECT 'attempt' AS kind, a.n::int AS n, a.project_no, a.environment, a.region, NULL::smallint AS shard, NULL::bigint AS returned,
       a.job_id AS id, a.attempt, a.next, a.canceled,
       CASE WHEN a.next = ${QUEUED} AND NOT a.canceled THEN ${epochMs("a.due_at")} END AS due_at
  FROM attempt a
UNION ALL
SELECT DISTINCT 'freed', NULL::int, l.project_no, NULL::smallint, l.region, l.shard, f.returned + f.settled, NULL::uuid, NULL::smallint,
       NULL::smallint, NULL::boolean, NULL::float8
  FROM (SELECT project_no, waiting, returned,
               (SELECT count(*) FROM attempt a WHERE a.project_no = flow.project_no) AS settled
          FROM flow WHERE waiting <> 0) f
  JOIN lanes l ON l.project_no = f.project_no AND f.settled > 0 AND ${IS_CALLED}
UNION ALL
SELECT 'delivery', NULL, h.project_no, h.environment, h.region, l.shard, NULL, h.delivery_id, NULL, NULL, NULL,
       ${epochMs("now()")}
  FROM heard h
  JOIN lanes l ON l.project_no = h.project_no AND l.region = h.region AND l.environment = h.environment${
    isWhole
      ? `
UNION ALL
SELECT 'called', NULL, project_no, environment, region, shard, NULL, job_id, attempt, NULL, NULL, ${epochMs("due_at")} FROM ${calledLanes("host_called")} c`
      : ""
  }`;

const SETTLE = settlementOf(false);
const SETTLE_WHOLE = settlementOf(true);

type SettleRow = { project_no: ProjectNo; region: number } & (
  | {
      kind: "attempt";
      n: number;
      attempt: number;
      next: number;
      canceled: boolean;
      due_at: number | null;
    }
  | { kind: "freed"; shard: number; returned: string }
  | { kind: "called"; environment: number; shard: number; id: string; attempt: number; due_at: number }
  | { kind: "delivery"; environment: number; shard: number; id: string; due_at: number }
);
