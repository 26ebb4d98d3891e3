import { JOB_PREFIX, RUN_PREFIX, uuidToId } from "../../domain/ids.ts";
import { type OwedAttempt, oweAttempt, type Placed } from "../../domain/owed.ts";
import type { Scope } from "../../domain/scope.ts";
import { environmentCode, environmentOf, HOSTS_WATCHED, regionOf } from "../database/codes.ts";
import { idColumn, int2Column, int4Column } from "../database/columns.ts";
import { type Database, epochMs } from "../database/database.ts";
import { type GrantedAttempt, type GrantedRow, readGranted } from "./claim.ts";
import { byRegion, calledLanes, roomOf, sameKey, USED_AT } from "./flow-gates.ts";
import { isInTime, moveTags, OPEN_STATE } from "./job-tags.ts";
import { countRuns, countUsage, fitsMonth, MONTH_HAS_BEGUN, RUNS_LEFT_AT_LEAST } from "./month.ts";
import { countHandedOn, FREE_FOR_ANY, HAND_ON_PERMITS } from "./permits.ts";
import { mayReach } from "./quota-events.ts";
import type { SettledItem } from "./settle.ts";
import {
  END_ATTEMPTS,
  ENDS_HEARD,
  type LastSettlement,
  lastSettlements,
  ordinaryClass,
  readSettled,
  SETTLED_ITEMS,
  type SettledRow,
} from "./settle-ordinary.ts";
import { SWEEP_LAG_MS } from "./sweep.ts";

/** How far the low-water mark of a key's queue moves on at once while places are handed on. Looks pass the started attempts behind it. */
const MARK_STEP_MS = 100;

/** A settlement, and the run id under which its node takes the next attempt of the key; null if it takes none. */
export interface KeyedSettlement extends LastSettlement {
  nextRunId: string | null;
}

/** The attempt that got the place of one that has ended. Its job is of the same project, environment and region. */
export interface NextAttempt {
  attempt: number;
  granted: GrantedAttempt;
}

export interface KeyedSettled {
  /** In the order of the settlements; null for one that is left. */
  items: (SettledItem | null)[];
  /** In the order of the settlements; null where no attempt was started. */
  next: (NextAttempt | null)[];
  /** The attempts that were called. */
  owed: Placed<OwedAttempt>[];
}

/**
 * The short way of a settlement that ends a job with a flow key. In projects that are ordinary by settle-ordinary.ts and whose
 * hosts are not watched, it settles, hands the place on, and calls others that wait for the key. It leaves the rest to
 * settleAttempts, unchanged: jobs with tags or without a key, keys that have a rate, and attempts that started at another time
 * than their run's id tells.
 *
 * The place is handed on if the settlement has a `nextRunId`, its node lives, and the project is ordinary for a claim as well
 * (claim-ordinary.ts): the attempt that is next in the key's queue, over all regions, starts on the same node with the same permit
 * (start_next of migration 0034). So a queue costs one statement an attempt, and no attempt of it waits for a hint and a claim. If the
 * next may not start there, or no place is free by the key's limits, it is called, as settleAttempts does. For each settlement that this
 * statement makes, settleAttempts, and then claimAttempts for the attempts that it starts, would have answered the same and left the same
 * rows.
 *
 * An attempt that was started by a statement whose answer was lost is found by its run id (findStarted).
 *
 * One self-committing statement, with the locks of claimAttempts and settleAttempts in their order; for the rest see
 * settle-ordinary.ts and claim-keyed.ts.
 */
export async function settleKeyed(
  db: Database,
  nodeId: number,
  settlements: readonly KeyedSettlement[],
): Promise<KeyedSettled> {
  const { values, projects, ordered } = lastSettlements(settlements);
  const rows = await db.run<Row>("settle_keyed", SETTLE_KEYED, [
    ...values,
    nodeId,
    idColumn(ordered.map(({ item }) => item.nextRunId)),
    int4Column(projects.map(({ itemCount }) => itemCount)),
  ]);
  const next: (NextAttempt | null)[] = settlements.map(() => null);
  const places = new Map(settlements.map(({ nextRunId }, place) => [nextRunId, place]));
  const owed: Placed<OwedAttempt>[] = [];
  for (const row of rows) {
    if (row.kind === "started") {
      const started = readStarted(row);
      next[places.get(started.granted.runId) ?? -1] = started;
    }
    if (row.kind !== "called") continue;
    const { project_no: projectNo, shard, attempt, due_at: dueAt } = row;
    const place = {
      projectNo,
      environment: environmentOf(row.environment),
      region: regionOf(row.region),
      shard,
    };
    owed.push(
      ...oweAttempt("jobs", place, { id: uuidToId(JOB_PREFIX, row.job_id), attempt, dueAt, isGated: true }),
    );
  }
  const settled = rows.filter((row) => row.kind === "settled");
  return { items: readSettled(settlements.length, ordered, settled), next, owed };
}

export type StartedRun = Scope & { runId: string };

/** The attempts that were started under these run ids on the node; null where there is none, or if the node is dead. */
export async function findStarted(
  db: Database,
  nodeId: number,
  runs: readonly StartedRun[],
): Promise<(NextAttempt | null)[]> {
  const rows = await db.run<StartedRow>("find_started", FIND_STARTED, [
    nodeId,
    int4Column(runs.map(({ projectNo }) => projectNo)),
    int2Column(runs.map(({ environment }) => environmentCode(environment))),
    idColumn(runs.map(({ runId }) => runId)),
  ]);
  const started = new Map(rows.map((row) => [uuidToId(RUN_PREFIX, row.run_id), readStarted(row)]));
  return runs.map(({ runId }) => started.get(runId) ?? null);
}

const readStarted = (row: StartedRow): NextAttempt => ({
  attempt: row.attempt,
  granted: readGranted(row, {
    jobId: uuidToId(JOB_PREFIX, row.job_id),
    runId: uuidToId(RUN_PREFIX, row.run_id),
  }),
});

type StartedRow = GrantedRow & { attempt: number; job_id: string; run_id: string };
type Row =
  | (SettledRow & { kind: "settled" })
  | (StartedRow & { kind: "started" })
  | {
      kind: "called";
      attempt: number;
      shard: number;
      project_no: number;
      environment: number;
      region: number;
      job_id: string;
      due_at: number;
    };

const grantedColumns = (dueAt: string, startedAt: string, trace: string) =>
  `attempts_allowed, ${epochMs(`CASE WHEN attempt = 1 THEN run_at ELSE ${dueAt} END`)} AS scheduled_at, ${epochMs(startedAt)} AS started_at,
       target_url, payload, schedule_id, max_attempts, base_seconds, cap_seconds, true AS is_tagged, true AS is_keyed, ${trace} AS trace,
       'flow' AS waited_for`;

const FIND_STARTED = `
SELECT attempt, job_id, run_id, ${grantedColumns("parked_due_at", "started_at", "coalesce(o_trace, trace)")}
  FROM (SELECT o.attempt, o.job_id, o.run_id, o.attempts_allowed, o.parked_due_at, o.started_at, o.trace AS o_trace,
               j.run_at, j.target_url, j.payload, j.schedule_id, j.max_attempts, j.base_seconds, j.cap_seconds, j.trace
          FROM unnest($2::int[], $3::smallint[], $4::uuid[]) AS i (project_no, environment, run_id)
          JOIN open_jobs o ON o.project_no = i.project_no AND o.environment = i.environment AND o.run_id = i.run_id AND o.node_id = $1
          JOIN jobs j ON j.project_no = o.project_no AND j.environment = o.environment AND j.region = o.region AND j.id = o.job_id
         WHERE EXISTS (SELECT FROM nodes WHERE id = $1 AND NOT dead)) o`;

const SETTLE_KEYED = `
WITH living AS MATERIALIZED (
  SELECT FROM nodes WHERE id = $15 AND NOT dead FOR KEY SHARE
), locked AS MATERIALIZED (
  SELECT array_agg(f.retention_class) AS classes, array_agg(f.may_start) AS may_start
    FROM (SELECT f.*
            FROM (SELECT EXISTS (SELECT FROM living) AND NOT EXISTS (SELECT FROM held_regions) AS may_start OFFSET 0) node
           CROSS JOIN unnest($1::int[], $17::int[]) AS p (project_no, asked)
            LEFT JOIN LATERAL (
                 SELECT ${ordinaryClass(ENDS_HEARD | HOSTS_WATCHED)} AS retention_class,
                        node.may_start AND coalesce(${FREE_FOR_ANY} >= 0, false) AND ${MONTH_HAS_BEGUN}
                        AND ${fitsMonth("p.asked", RUNS_LEFT_AT_LEAST)} AND NOT ${mayReach("p.asked")} AS may_start
                   FROM flows f
                  WHERE f.project_no = p.project_no
                    FOR NO KEY UPDATE) f ON true
          OFFSET 0) f
), named AS MATERIALIZED (
  SELECT a.*, ($16::uuid[])[a.n] AS next_run_id, l.classes[a.place] AS retention_class, o.flow_key
    FROM locked l
   CROSS JOIN ${SETTLED_ITEMS}
   CROSS JOIN LATERAL (
         SELECT o.flow_key FROM open_jobs o
          WHERE o.project_no = a.project_no AND o.environment = a.environment AND o.region = a.region AND o.job_id = a.job_id OFFSET 0) o
   WHERE l.classes[a.place] IS NOT NULL AND o.flow_key IS NOT NULL
), gate AS MATERIALIZED (
  SELECT g.ns, k.concurrency, k.in_use, k.paused,
         CASE WHEN k.queue_since <= now() - interval '${SWEEP_LAG_MS} ms' THEN k.queue_since ELSE '-infinity' END AS since,
         ARRAY (SELECT w.n - 1 FROM unnest(k.waiting) WITH ORDINALITY AS w (count, n) WHERE w.count > 0)::text AS waits_in
    FROM (SELECT project_no, environment, flow_key, array_agg(n) AS ns FROM named GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
   CROSS JOIN LATERAL (
         SELECT k.* FROM flow_keys k
          WHERE k.project_no = ANY (ARRAY[g.project_no]) AND k.environment = g.environment AND k.flow_key = g.flow_key
            FOR NO KEY UPDATE) k
   WHERE k.rate_count IS NULL
), keyed AS MATERIALIZED (
  SELECT array_agg(a.n) AS ns, array_agg(g.concurrency) AS concurrencies, array_agg(g.in_use) AS in_uses, array_agg(g.paused) AS pauses,
         array_agg(g.since) AS sinces, array_agg(g.waits_in) AS waits
    FROM gate g CROSS JOIN LATERAL unnest(g.ns) AS a (n)
), attempt AS (
  DELETE FROM open_jobs o
   USING (SELECT i.*, k.concurrencies[x.at] AS concurrency, k.in_uses[x.at] AS in_use, k.pauses[x.at] AS paused, k.sinces[x.at] AS since,
                 k.waits[x.at] AS waits_in
            FROM keyed k
           CROSS JOIN named i
           CROSS JOIN LATERAL (SELECT array_position(k.ns, i.n) AS at OFFSET 0) x
           WHERE x.at IS NOT NULL OFFSET 0) i
   WHERE o.project_no = ANY (ARRAY[i.project_no]) AND o.environment = i.environment AND o.region = i.region
     AND o.job_id = i.job_id AND coalesce(o.run_id = i.run_id AND o.node_id IS NOT NULL AND ${isInTime("o")}, false)
     AND o.tags IS NULL
  RETURNING i.*, o.attempt, o.started_at, o.canceled, o.schedule_id, o.has_place
), ${END_ATTEMPTS}, ${moveTags("(SELECT *, NULL::text[] AS tags FROM attempt WHERE NOT canceled) plain", String(OPEN_STATE), "job_status")}, left_places AS MATERIALIZED (
  SELECT project_no, environment, flow_key, concurrency, in_use, paused, since, waits_in, min(place) AS place,
         count(*) FILTER (WHERE has_place)::int AS freed, min(region) AS region, max(region) AS last_region,
         array_agg(next_run_id) FILTER (WHERE has_place AND next_run_id IS NOT NULL) AS run_ids
    FROM attempt GROUP BY 1, 2, 3, 4, 5, 6, 7, 8
), clock AS MATERIALIZED (
  SELECT at, at::date AS day, date_trunc('month', at)::date AS month
    FROM (SELECT clock_timestamp() AS at WHERE (SELECT count(*) FROM left_places) >= 0 OFFSET 0) read
), handed_on AS MATERIALIZED (
  SELECT project_no, environment, flow_key, region, since, run_ids, least(cardinality(run_ids), concurrency - in_use + freed) AS room,
         (sum(cardinality(run_ids)) OVER (ROWS UNBOUNDED PRECEDING) - cardinality(run_ids))::int AS runs_before
    FROM left_places
   CROSS JOIN locked
   CROSS JOIN clock
   -- A clock that was set back since the statement began might be in a month before the flows'.
   WHERE run_ids IS NOT NULL AND region = last_region AND NOT paused AND concurrency - in_use + freed > 0
     AND locked.may_start[place] AND clock.at >= now()
), started AS MATERIALIZED (
  SELECT h.projects[s.place] AS project_no, h.environments[s.place] AS environment, h.regions[s.place] AS region, substr(h.gates[s.place], 2) AS flow_key,
         s.run_id, s.job_id, s.attempt, s.attempts_allowed, s.was_parked, s.due_at, s.run_at, s.target_url, s.payload, s.schedule_id,
         s.max_attempts, s.base_seconds, s.cap_seconds, s.trace
    FROM (SELECT array_agg(project_no) AS projects, array_agg(environment) AS environments, array_agg('k' || flow_key) AS gates,
                 array_agg(region) AS regions, array_agg(room) AS rooms, array_agg(since) AS sinces, array_agg(runs_before) AS runs_before,
                 ARRAY (SELECT unnest(run_ids) FROM handed_on) AS run_ids
            FROM handed_on) h
   CROSS JOIN clock
   CROSS JOIN LATERAL start_next(h.projects, h.environments, h.gates, h.regions, h.rooms, h.sinces, h.runs_before, h.run_ids, $15, clock.at) s
   WHERE h.gates IS NOT NULL
), returned AS (
  UPDATE flows f
     SET ${HAND_ON_PERMITS},
         ${countRuns("c.next_development + c.next_production")}
    FROM ${countHandedOn("attempt", "started")}
   CROSS JOIN clock
   WHERE f.project_no = c.project_no
), ${countUsage("started")}, waiting AS MATERIALIZED (
  SELECT array_agg(k.project_no) AS projects, array_agg(k.environment) AS environments, array_agg('k' || k.flow_key) AS gates,
         array_agg(w.region) AS regions, array_agg(k.room) AS rooms
    FROM (SELECT k.*, ${roomOf("k.in_use")} AS room
            FROM (SELECT project_no, environment, flow_key, max(concurrency) AS concurrency, max(in_use) - sum(freed) AS in_use, bool_or(paused) AS paused,
                         NULL::int AS rate_count, max(waits_in) AS waits_in
                    FROM (SELECT project_no, environment, flow_key, concurrency, in_use, paused, waits_in, freed FROM left_places WHERE waits_in <> '{}'
                          UNION ALL
                          SELECT project_no, environment, flow_key, NULL, NULL, NULL, NULL, -1 FROM started) changes
                   GROUP BY 1, 2, 3) k
           WHERE k.waits_in IS NOT NULL) k
   CROSS JOIN LATERAL unnest(k.waits_in::smallint[]) AS w (region)
   WHERE k.room > 0
), called AS MATERIALIZED (
  SELECT w.projects[c.place] AS project_no, w.environments[c.place] AS environment, substr(w.gates[c.place], 2) AS flow_key, c.region, c.job_id,
         c.attempt, c.due_at
    FROM waiting w
   CROSS JOIN LATERAL call_gates(w.projects, w.environments, w.gates, w.regions, w.rooms) c
   WHERE w.gates IS NOT NULL
), noted AS (
  UPDATE flow_keys k
     SET used_at = ${USED_AT}, in_use = greatest(k.in_use - s.freed, 0),
         waiting = ${byRegion((region) => `k.waiting[${region + 1}] - s.gone[${region + 1}]`)},
         queue_since = coalesce(s.since, k.queue_since)
    FROM (SELECT project_no, environment, flow_key, sum(freed)::int AS freed, least(min(head_due_at), CASE WHEN count(head_due_at) > 0 THEN now() - interval '${SWEEP_LAG_MS} ms' END) AS since,
                 ${byRegion((region) => `count(*) FILTER (WHERE gone_region = ${region})`)} AS gone
            FROM (SELECT project_no, environment, flow_key, freed, NULL::timestamptz AS head_due_at, NULL::smallint AS gone_region FROM left_places
                  UNION ALL
                  SELECT project_no, environment, flow_key, -1, due_at, CASE WHEN was_parked THEN region END FROM started
                  UNION ALL
                  SELECT project_no, environment, flow_key, 0, NULL, region FROM called) changes
           GROUP BY 1, 2, 3
          OFFSET 0) s
   -- Most places of a long queue are handed on. The low-water mark moves on in steps, so that most of these write no row of flow_keys.
   WHERE ${sameKey("k", "s")}
     AND (s.freed <> 0 OR 0 < ANY (s.gone) OR s.since < k.queue_since OR s.since >= k.queue_since + interval '${MARK_STEP_MS} ms'
          OR k.used_at < now() - interval '1 hour')
)
SELECT 'settled' AS kind, n::int AS n, attempt, canceled, NULL::int AS project_no, NULL::smallint AS environment, NULL::smallint AS region,
       NULL::smallint AS shard, NULL::uuid AS job_id, NULL::float8 AS due_at, NULL::uuid AS run_id, NULL::smallint AS attempts_allowed,
       NULL::float8 AS scheduled_at, NULL::float8 AS started_at, NULL::text AS target_url, NULL::text AS payload, NULL::uuid AS schedule_id,
       NULL::smallint AS max_attempts, NULL::int AS base_seconds, NULL::int AS cap_seconds, NULL::boolean AS is_tagged,
       NULL::boolean AS is_keyed, NULL::bytea AS trace, NULL::text AS waited_for
  FROM attempt
 UNION ALL
SELECT 'called', 0, attempt, false, project_no, environment, region, shard, job_id, ${epochMs("due_at")}, ${Array(14).fill("NULL").join(", ")} FROM ${calledLanes()} c
 UNION ALL
SELECT 'started', 0, attempt, false, project_no, environment, region, NULL, job_id, NULL, run_id, ${grantedColumns("due_at", "clock.at", "trace")}
  FROM started CROSS JOIN clock`;
