import { idToUuid, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import { HOME_REGION, isRegionAllowed, PLANS } from "../../domain/plan.ts";
import { CATCH_UP_MS, type MissedFirings, REPLACED_JOBS_MAX } from "../../domain/schedule.ts";
import { type Environment, type ProjectNo, REGIONS, type Region } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import type { EventType } from "../../domain/webhook.ts";
import {
  endedStatusCode,
  environmentCode,
  environmentOf,
  eventTypeCode,
  overlapCode,
  regionCode,
  regionOf,
} from "../database/codes.ts";
import { textColumn } from "../database/columns.ts";
import { column, type Database, epochMs, instant } from "../database/database.ts";
import { traceHex } from "../database/traces.ts";
import { callGates, HAS_GATE } from "./gate-calls.ts";
import { giveFlows, IS_PARKED } from "./given-flows.ts";
import { HAS_WORDS, moveTags, OPEN_STATE } from "./job-tags.ts";
import { HAS_QUOTA } from "./month.ts";
import { DUE_AT, newJobs } from "./new-jobs.ts";
import { canceledSeed, sameLane, tellOf } from "./owed-deliveries.ts";
import type { HeldShard } from "./shards.ts";

/** A schedule that comes due. Instants are milliseconds since 1970. */
export interface DueSchedule {
  projectNo: ProjectNo;
  environment: Environment;
  scheduleId: string;
  shard: number;
  cron: string;
  timezone: string;
  nextRunAt: number;
  /** Whether its firing locks more than the schedule: jobs that it replaces, or its flow key. See fireBoundSchedules. */
  isBound: boolean;
}

/**
 * The schedules of these shards of the home region whose next instant lies between `sinceAt` and `aheadMs` from now: at most
 * the oldest `limit` of each shard. A negative `aheadMs` means that long ago.
 */
export async function listDueSchedules(
  db: Database,
  shards: readonly number[],
  query: { sinceAt: number; aheadMs: number; limit: number },
): Promise<DueSchedule[]> {
  const rows = await db.run<DueRow>("list_due_schedules", LIST_DUE, [
    column(shards),
    query.sinceAt === Number.NEGATIVE_INFINITY ? "-infinity" : new Date(query.sinceAt).toISOString(),
    query.aheadMs,
    query.limit,
  ]);
  return rows.map((row) => ({
    projectNo: row.project_no,
    environment: environmentOf(row.environment),
    scheduleId: uuidToId(SCHEDULE_PREFIX, row.id),
    shard: row.shard,
    cron: row.cron,
    timezone: row.timezone,
    nextRunAt: row.next_run_at,
    isBound: row.is_bound,
  }));
}

const SKIP = overlapCode("skip");
const REPLACE = overlapCode("replace");

const LIST_DUE = `
SELECT due.*
  FROM unnest($1::smallint[]) AS s (shard)
 CROSS JOIN LATERAL (
   SELECT project_no, environment, id, shard, cron, timezone,
          ${epochMs("next_run_at")} AS next_run_at, overlap IS NOT DISTINCT FROM ${REPLACE} OR flow IS NOT NULL AS is_bound
     FROM schedules
    WHERE shard = s.shard AND next_run_at >= $2::timestamptz AND next_run_at <= now() + $3::float8 * interval '1 ms'
    ORDER BY next_run_at LIMIT $4) due`;

interface DueRow {
  project_no: number;
  environment: number;
  id: string;
  shard: number;
  cron: string;
  timezone: string;
  next_run_at: number;
  is_bound: boolean;
}

/** One schedule's turn, decided on the timetable and the `nextRunAt` that it was found with. */
export interface Firing {
  projectNo: ProjectNo;
  environment: Environment;
  scheduleId: string;
  held: HeldShard;
  cron: string;
  timezone: string;
  nextRunAt: number;
  /** The instant that fires now; null if every due instant is too late. */
  firedFor: number | null;
  /** The next one after it; null if the timetable has none. */
  thenAt: number | null;
  /** The instants before it that the schedule missed in an outage; null for none. */
  missed: MissedFirings | null;
  /** The id of the job that the firing makes. */
  jobId: string;
  /** The trace that the job's attempts belong to, null for none. */
  trace: TraceContext | null;
}

export type Fired =
  | { kind: "fired"; region: Region; owed: Placed<OwedAttempt>[] }
  /** No quota was left, jobs of the schedule are not over, or every due instant is too late; the schedule goes on. */
  | { kind: "skipped" }
  /** The schedule was changed, paused, deleted or fired meanwhile, or another worker owns the shard now. */
  | { kind: "gone" };

/**
 * Fires many schedules in one self-committing statement: for each the job, the record of the firing, and its next instant, all
 * or nothing. The statement is fenced by the shards' epochs. It is compare-and-set on the next instant and on the timetable.
 * After a pause, a change or a deletion was answered it finds nothing to fire. After a change that keeps the instant, the old
 * timetable cannot decide the instant that follows. The record is unique for a schedule and its instant, whatever else fails.
 * The database's clock judges as well whether an instant is due or too late, since a worker whose clock is wrong would fire too
 * soon or pass over what is due. Lock order: fence, schedules by id. The quota is read without a lock, as by a creation. The
 * statement also tells endpoints of instants that a schedule missed in an outage or skipped; the sweeps find these deliveries.
 *
 * The statement also applies `overlap`. With "skip" a firing makes no job while another job of its schedule is not over. It
 * sees such a job if its firing, its creation or its retry by hand was committed before the statement began.
 */
export function fireSchedules(db: Database, firings: readonly Firing[]): Promise<Fired[]> {
  return fire(db, "fire_schedules", FIRE, firings);
}

/**
 * The same for schedules that replace jobs which have not started, and for those whose jobs have a flow key. fireSchedules
 * finds both gone. It locks the schedules, then flow keys, then open jobs by id. It cancels up to REPLACED_JOBS_MAX jobs of
 * each schedule in the statement that makes the next job: a firing that makes no job cancels none. If such a cancel meets a
 * claim, the one that locks the open row first wins. Endpoints hear of each cancel as of a cancel by hand.
 */
export function fireBoundSchedules(db: Database, firings: readonly Firing[]): Promise<Fired[]> {
  return fire(db, "fire_bound_schedules", FIRE_BOUND, firings);
}

async function fire(db: Database, name: string, text: string, firings: readonly Firing[]): Promise<Fired[]> {
  const rows = await db.run<FiredRow>(name, text, [
    column(firings.map((firing) => firing.projectNo)),
    column(firings.map((firing) => environmentCode(firing.environment))),
    column(firings.map((firing) => idToUuid(firing.scheduleId))),
    column(firings.map((firing) => firing.held.shard)),
    column(firings.map((firing) => firing.held.epoch)),
    column(firings.map((firing) => instant(firing.nextRunAt))),
    column(firings.map((firing) => (firing.firedFor === null ? null : instant(firing.firedFor)))),
    column(firings.map((firing) => (firing.thenAt === null ? null : instant(firing.thenAt)))),
    column(firings.map((firing) => idToUuid(firing.jobId))),
    textColumn(firings.map((firing) => firing.cron)),
    textColumn(firings.map((firing) => firing.timezone)),
    column(firings.map((firing) => traceHex(firing.trace))),
    firings.map(({ missed }) => (missed === null ? null : JSON.stringify(missed))),
  ]);
  const fired: Fired[] = firings.map(() => ({ kind: "gone" }));
  for (const row of rows) {
    if (row.region === null) {
      fired[row.n - 1] = { kind: "skipped" };
      continue;
    }
    const { projectNo, environment, jobId: id } = firings[row.n - 1] as Firing;
    const region = regionOf(row.region);
    const place = { projectNo, environment, region, shard: row.lane_shard };
    const isGated = row.is_keyed || undefined;
    const owed = row.is_parked
      ? []
      : oweAttempt("jobs", place, { id, attempt: 1, dueAt: row.due_at, isGated });
    fired[row.n - 1] = { kind: "fired", region, owed };
  }
  return fired;
}

/** The error of a worker's clock that is tolerated: the worker follows the database's clock by a measured offset. */
const CLOCK_TOLERANCE = "interval '1 s'";
const CATCH_UP = `interval '${CATCH_UP_MS} ms'`;
const HOME = regionCode(HOME_REGION);
/** A default_region that the plan does not allow any more counts as the home region. */
const HOME_PLANS = PLANS.filter((plan) => REGIONS.some((region) => !isRegionAllowed(plan, region)));
/** The region of the jobs that a project's schedules make. */
export const firingRegion = (project: string): string =>
  `CASE WHEN ${project}.plan = ANY ('{${HOME_PLANS.join(",")}}') THEN ${HOME}::smallint ELSE ${project}.default_region END`;

/** The columns of `happened` for an event about the schedule `id`; `row` is an alias with the schedule's project. */
const scheduleEvent = (type: EventType, row: string, id: string, more: string) =>
  `${eventTypeCode(type)}::smallint AS type, ${row}.project_no, ${row}.environment, ${row}.shard,
         json_build_object('schedule_id', ${id}, 'name', (
           SELECT name FROM schedules s
            WHERE s.project_no = ${row}.project_no AND s.environment = ${row}.environment AND s.id = ${id}), ${more}) AS data`;

/** The skipped_for of an instant that overlap skipped. An instant that the quota skipped has null. */
export const FOR_OVERLAP = 1;
/** Whether all jobs of the schedule d are over. A scalar, since for anything else the planner might read the whole table. */
const HAS_NO_OPEN_JOB =
  "(SELECT true FROM open_jobs o WHERE o.schedule_id = d.id AND NOT o.canceled LIMIT 1) IS NULL";
const HAS_NOT_FIRED =
  "(SELECT true FROM firings f WHERE f.schedule_id = d.id AND f.fired_for = d.fired_for) IS NULL";
const HAS_NOT_STARTED = "o.attempt = 1 AND o.run_id IS NULL";
const CANCELED = endedStatusCode("canceled");
/** Why the instant of `judged j` made no job. */
const SKIPPED_STATUS = "CASE WHEN j.has_quota THEN 'skipped_overlap' ELSE 'skipped_quota' END";

/** `makes_job` of `judged` is true if a firing is to make its job. `replaced` is the ledger's count of canceled jobs. */
const fireStatement = (ways: {
  isTaken: string;
  /** Whether jobs may have a flow. */
  flow: boolean;
  /** Whether the job may be made if the quota allows it. */
  isFree: string;
  cancel: string;
  /** More rows for `told`: events beside those about the schedules. */
  alsoTold: string;
  replaced: string;
}): string => `
WITH item AS MATERIALIZED (
  SELECT i.*
    FROM unnest($1::int[], $2::smallint[], $3::uuid[], $4::smallint[], $5::bigint[], $6::timestamptz[], $7::timestamptz[],
                $8::timestamptz[], $9::uuid[], $10::text[], $11::text[], $12::text[], $13::text[])
         WITH ORDINALITY AS i (project_no, environment, schedule_id, shard, epoch, next_run_at, fired_for, then_at, job_id,
                               cron, timezone, trace, missed, n)
), fence AS MATERIALIZED (
  SELECT s.shard, s.epoch
    FROM (SELECT DISTINCT shard, epoch FROM item) i
    JOIN shards s ON s.region = ${HOME} AND s.shard = i.shard AND s.epoch = i.epoch
   ORDER BY s.shard
     FOR KEY SHARE OF s
), due AS MATERIALIZED (
  SELECT i.n, i.fired_for, i.then_at, i.job_id, i.trace, i.shard, s.*
    FROM (SELECT item.* FROM item JOIN fence USING (shard, epoch) ORDER BY schedule_id) i
   CROSS JOIN LATERAL (
         SELECT s.project_no, s.environment, s.id, s.target_url, s.payload, s.max_attempts, s.base_seconds, s.cap_seconds,
                s.overlap, s.spread_ms, s.tags${ways.flow ? ", s.flow" : ""}
           FROM schedules s
          WHERE s.project_no = i.project_no AND s.environment = i.environment AND s.id = i.schedule_id
            AND s.next_run_at = i.next_run_at AND s.cron = i.cron AND s.timezone = i.timezone AND ${ways.isTaken}
            FOR NO KEY UPDATE) s
   WHERE coalesce(i.fired_for <= now() + ${CLOCK_TOLERANCE}, i.next_run_at <= now() + ${CLOCK_TOLERANCE} - ${CATCH_UP})
), moved AS (
  UPDATE schedules s SET next_run_at = d.then_at
    FROM due d
   WHERE s.project_no = d.project_no AND s.environment = d.environment AND s.id = d.id
), judged AS MATERIALIZED (
  SELECT d.n, d.shard, d.job_id AS id, d.project_no, d.environment,
         ${firingRegion("p")} AS region,
         d.target_url, d.payload, d.fired_for, d.max_attempts, d.base_seconds, d.cap_seconds, NULL::int AS key_no,
         CASE WHEN d.spread_ms IS NULL THEN d.fired_for ELSE d.fired_for + d.spread_ms * interval '1 ms' END AS run_at,
         NULL::uuid AS request_id, d.id AS schedule_id, d.trace, d.overlap, d.spread_ms, d.tags${ways.flow ? ", d.flow" : ""}, ${HAS_QUOTA} AS has_quota,
         ${HAS_QUOTA} AND ${ways.isFree} AS makes_job
    FROM due d
    JOIN projects p ON p.no = d.project_no
    JOIN flows f ON f.project_no = d.project_no
   WHERE d.fired_for IS NOT NULL
), ${ways.flow ? `${giveFlows("judged WHERE makes_job")}, ` : ""}${ways.cancel}recorded AS (
  INSERT INTO firings (schedule_id, fired_for, job_id, due_at, skipped_for, replaced)
  SELECT schedule_id, fired_for, CASE WHEN makes_job THEN id END, CASE WHEN makes_job AND spread_ms IS NOT NULL THEN run_at END,
         CASE WHEN has_quota AND NOT makes_job THEN ${FOR_OVERLAP} END, ${ways.replaced}
    FROM judged
      ON CONFLICT (schedule_id, fired_for) DO NOTHING
  RETURNING schedule_id, fired_for, job_id
), fired AS MATERIALIZED (
  -- The shard of a schedule may be older than that of a lane that has its row: it names one only for a lane that has none.
  SELECT j.*, CASE WHEN l.shard IS NULL THEN j.shard END AS new_shard, coalesce(l.shard, j.shard) AS lane_shard
    FROM judged j
    LEFT JOIN lanes l ON l.project_no = j.project_no AND l.region = j.region AND l.environment = j.environment
   WHERE j.id IN (SELECT job_id FROM recorded WHERE job_id IS NOT NULL)
), happened AS MATERIALIZED (
  SELECT 'missed ' || d.id || ' ' || i.missed AS seed,
         ${scheduleEvent("schedule.firing_missed", "d", "d.id", "'missed', i.missed::json")}
    FROM due d JOIN item i USING (n) WHERE i.missed IS NOT NULL
  UNION ALL
  SELECT 'skipped ' || j.schedule_id || ' ' || j.fired_for,
         ${scheduleEvent("schedule.firing_skipped", "j", "j.schedule_id", `'at', ${epochMs("j.fired_for")}, 'status', ${SKIPPED_STATUS}`)}
    FROM judged j JOIN recorded r USING (schedule_id, fired_for) WHERE r.job_id IS NULL
), told AS MATERIALIZED (
  SELECT h.*, ${HOME}::smallint AS region, NULL::uuid AS job_id, NULL::bytea AS trace FROM happened h${ways.alsoTold}
), made_lane AS MATERIALIZED (
  SELECT project_no, region, environment FROM fired WHERE makes_job AND new_shard IS NOT NULL
), ${tellOf("told", { madeLanes: "made_lane" })}, ${newJobs("fired WHERE makes_job", { tags: true, flow: ways.flow, hasDeliveries: `EXISTS (SELECT FROM heard h WHERE ${sameLane("h", "fired")})` })}
SELECT d.n::int AS n, f.region, f.lane_shard, ${epochMs(DUE_AT)} AS due_at, ${ways.flow ? IS_PARKED.replace("id", "f.id") : "false"} AS is_parked,
       ${ways.flow ? "f.flow IS NOT NULL" : "false"} AS is_keyed
  FROM due d LEFT JOIN fired f USING (n)`;

const FIRE = fireStatement({
  isTaken: `s.overlap IS DISTINCT FROM ${REPLACE} AND s.flow IS NULL`,
  flow: false,
  isFree: `CASE WHEN d.overlap = ${SKIP} THEN ${HAS_NO_OPEN_JOB} ELSE true END`,
  cancel: "",
  alsoTold: "",
  replaced: "NULL",
});

// A schedule that has stopped replacing since it was listed is judged by its present row. Jobs are found first, then locked,
// since the jobs of all schedules are locked in one order. An instant that was fired before makes no job, and so cancels none.
const FIRE_BOUND = fireStatement({
  isTaken: "true",
  flow: true,
  isFree: `CASE WHEN d.overlap = ${SKIP} THEN ${HAS_NO_OPEN_JOB} ELSE ${HAS_NOT_FIRED} END`,
  cancel: `waiting AS MATERIALIZED (
  SELECT o.*
    FROM judged j
   CROSS JOIN LATERAL (
         SELECT o.project_no, o.environment, o.region, o.job_id
           FROM (SELECT * FROM open_jobs o
                  -- Without the other condition only the index by attempt fits.
                  WHERE o.schedule_id = j.schedule_id AND o.attempt = 1
                  ORDER BY o.job_id OFFSET 0) o
          WHERE ${HAS_NOT_STARTED} LIMIT ${REPLACED_JOBS_MAX}) o
   WHERE j.makes_job AND j.overlap = ${REPLACE} AND (SELECT count(*) FROM flowing) >= 0
), canceled AS MATERIALIZED (
  SELECT o.*
    FROM (SELECT * FROM waiting ORDER BY job_id) w
   CROSS JOIN LATERAL (
         SELECT o.project_no, o.environment, o.region, o.job_id, o.schedule_id, o.tags, o.trace, o.due_at, o.flow_key, o.gate, o.has_place
           FROM open_jobs o
          WHERE o.project_no = ANY (ARRAY[w.project_no]) AND o.environment = w.environment AND o.region = w.region
            AND o.job_id = w.job_id AND ${HAS_NOT_STARTED}
            FOR UPDATE) o
), given_up AS (
  DELETE FROM open_jobs o
   USING canceled c
   WHERE o.project_no = ANY (ARRAY[c.project_no]) AND o.environment = c.environment AND o.region = c.region
     AND o.job_id = c.job_id
), ended AS (
  INSERT INTO ended_jobs (project_no, environment, region, job_id, status, attempts, ended_at, schedule_id)
  SELECT project_no, environment, region, job_id, ${CANCELED}, 0, now(), schedule_id FROM canceled
), ${callGates(`canceled WHERE ${HAS_GATE}`)}, ${moveTags(`canceled WHERE ${HAS_WORDS}`, String(OPEN_STATE), String(CANCELED))}, `,
  alsoTold: `
  UNION ALL
  SELECT ${canceledSeed("c.job_id")}, ${eventTypeCode("job.canceled")}::smallint, c.project_no, c.environment,
         (SELECT shard FROM lanes l WHERE ${sameLane("l", "c")}),
         json_build_object('attempts', 0, 'run', NULL), c.region, c.job_id, c.trace
    FROM canceled c`,
  replaced: `CASE WHEN makes_job AND overlap = ${REPLACE}
              THEN (SELECT count(*) FROM canceled c WHERE c.schedule_id = judged.schedule_id) END`,
});

type FiredRow = { n: number } & (
  | { region: null }
  | { region: number; lane_shard: number; due_at: number; is_parked: boolean; is_keyed: boolean }
);
