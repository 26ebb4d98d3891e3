import { environmentCode, regionCode } from "../database/codes.ts";
import { idColumn, int2Column, int4Column } from "../database/columns.ts";
import { type Database, epochMs } from "../database/database.ts";
import { type Claim, type GrantedAttempt, type GrantedRow, readGranted } from "./claim.ts";
import { inLockOrder, type OrderedItem } from "./lock-order.ts";
import { countRuns, fitsMonth, MONTH_HAS_BEGUN, RUNS_LEFT_AT_LEAST } from "./month.ts";
import { countByEnvironment, FREE_FOR_ANY, TAKE_FREE_PERMITS } from "./permits.ts";
import { mayReach } from "./quota-events.ts";

/**
 * The short way of a claim. It grants attempts that are owed and due in an ordinary project: no class was called to a permit,
 * nothing is held, permits and the month's quota suffice for all of its claims, no endpoint may have to be told of the quota,
 * and no hosts are watched. It leaves the rest to claimAttempts, unchanged: all claims of other projects, and in an ordinary
 * project attempts that are early, gone, granted before, counted by a manual retry, or of a job with a flow key. For each claim
 * that it grants, claimAttempts would have granted the same and left the same rows.
 *
 * One self-committing statement, with the locks of claimAttempts in their order. One UPDATE judges and takes the open jobs, in
 * the order in which the items come, since only nested loops are planned. Under READ COMMITTED the UPDATE judges a row once
 * more, in its newest version, if others changed the row meanwhile. It leaves a row that is not to be taken any more. The rows
 * that the UPDATE took are counted as granted. The flow is locked by then and has a permit and a run for each.
 *
 * COALESCE hides from the planner that a job which is due has a due time. Otherwise the planner might begin at the index of due
 * rows, where a project's whole backlog stands in the way of each look-up. For `= ANY (ARRAY[...])` see claim-statement.ts.
 *
 * Answers come in the order of the claims; a claim that is left has null. A dead node is granted nothing.
 */
export async function claimOrdinary(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<(GrantedAttempt | null)[]> {
  const { values, ordered } = ordinaryClaims(nodeId, claims);
  const rows = await db.run<OrdinaryRow>("claim_ordinary", CLAIM_ORDINARY, values);
  return readOrdinary(claims.length, ordered, rows);
}

/** The parameters of ORDINARY_PROJECTS and CLAIMED_ITEMS, and the claims in the order of these. */
export function ordinaryClaims(nodeId: number, claims: readonly Claim[]) {
  const { projects, ordered } = inLockOrder(claims);
  const values = [
    nodeId,
    int4Column(projects.map((project) => project.no)),
    int4Column(projects.map((project) => project.itemCount)),
    int4Column(ordered.map(({ projectPlace }) => projectPlace)),
    int2Column(ordered.map(({ item }) => environmentCode(item.environment))),
    int2Column(ordered.map(({ item }) => regionCode(item.region))),
    idColumn(ordered.map(({ item }) => item.jobId)),
    int2Column(ordered.map(({ item }) => item.attempt)),
    idColumn(ordered.map(({ item }) => item.runId)),
  ];
  return { values, ordered };
}

/** `n` is the place among the ordered claims, from 1. */
export type OrdinaryRow = GrantedRow & { n: number };

/** The answers in the order in which the claims came; a claim that is left has null. */
export function readOrdinary(
  count: number,
  ordered: readonly OrderedItem<Claim>[],
  rows: readonly OrdinaryRow[],
): (GrantedAttempt | null)[] {
  const answers: (GrantedAttempt | null)[] = Array.from({ length: count }, () => null);
  for (const row of rows) {
    const claimed = ordered[row.n - 1];
    if (claimed === undefined) continue;
    const { jobId, runId } = claimed.item;
    answers[claimed.index] = readGranted(row, { jobId, runId });
  }
  return answers;
}

/** Locks the flows. The number of a project is null if it is not ordinary or has no flow; all are null for a dead node. */
export const ORDINARY_PROJECTS = `ARRAY (
                    SELECT CASE WHEN f.free >= p.asked AND ${fitsMonth("p.asked", "f.runs_left")} AND NOT f.may_reach
                                THEN f.project_no END
                      FROM unnest($2::int[], $3::int[]) AS p (project_no, asked)
                      LEFT JOIN LATERAL (
                           SELECT f.project_no, ${RUNS_LEFT_AT_LEAST} AS runs_left, ${mayReach("p.asked")} AS may_reach,
                                  CASE WHEN ${MONTH_HAS_BEGUN} THEN ${FREE_FOR_ANY} END AS free
                             FROM flows f
                            WHERE f.project_no = p.project_no
                              FOR NO KEY UPDATE) f ON true
                     WHERE (SELECT true FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE))`;
/**
 * As items of a SELECT, arrays are taken apart in step. As a FROM item, each would first be written to a store of its own. `n` is
 * counted by an array that is never null.
 */
export const CLAIMED_ITEMS = `(SELECT unnest($4::int[]) AS place, unnest($5::smallint[]) AS environment, unnest($6::smallint[]) AS region,
                        unnest($7::uuid[]) AS job_id, unnest($8::smallint[]) AS attempt, unnest($9::uuid[]) AS run_id,
                        generate_subscripts($7::uuid[], 1) AS n) a`;

const CLAIM_ORDINARY = `
WITH clock AS MATERIALIZED (
  -- The clock is read once all flows are locked. Of a project that is not ordinary, or has no flow, the number is null.
  SELECT projects, at, at::date AS day, date_trunc('month', at)::date AS month
    FROM (SELECT projects, clock_timestamp() AS at
            FROM (SELECT ${ORDINARY_PROJECTS} AS projects
                  OFFSET 0) locked) read
), taken AS (
  UPDATE open_jobs o
     SET due_at = NULL, run_id = i.run_id, node_id = $1, started_at = i.at, parked_due_at = coalesce(o.parked_due_at, o.due_at)
    FROM (SELECT a.*, clock.at, clock.projects[a.place] AS project_no
            FROM clock
           CROSS JOIN ${CLAIMED_ITEMS}
           -- A clock that was set back since the statement began might be in a month before the flows'.
           WHERE clock.projects[a.place] IS NOT NULL AND clock.at >= now() AND NOT EXISTS (SELECT FROM held_regions)
          OFFSET 0) i
   WHERE o.project_no = ANY (ARRAY[i.project_no]) AND o.environment = i.environment AND o.region = i.region
     AND o.job_id = i.job_id AND o.attempt = i.attempt AND o.run_id IS NULL AND coalesce(o.due_at <= now(), false)
     AND o.flow_key IS NULL
  RETURNING i.n, o.project_no, o.environment, o.region, o.job_id, o.attempt, o.attempts_allowed, o.parked_due_at,
            o.started_at, o.trace
), counted AS (
  UPDATE flows f
     SET ${TAKE_FREE_PERMITS},
         ${countRuns("c.development + c.production")}
    FROM ${countByEnvironment("taken")}
   CROSS JOIN clock
   WHERE f.project_no = c.project_no
), usage AS (
  INSERT INTO usage_days AS u (project_no, day, region, runs)
  SELECT project_no, clock.day, region, count(*) FROM taken CROSS JOIN clock
   GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
      ON CONFLICT (project_no, day, region) DO UPDATE SET runs = u.runs + excluded.runs
)
SELECT t.n::int AS n, t.attempts_allowed, ${epochMs("CASE WHEN t.attempt = 1 THEN j.run_at ELSE t.parked_due_at END")} AS scheduled_at,
       ${epochMs("t.started_at")} AS started_at, j.target_url, j.payload, j.schedule_id, j.max_attempts, j.base_seconds,
       j.cap_seconds, j.tags IS NOT NULL AS is_tagged, coalesce(t.trace, j.trace) AS trace
  FROM taken t
  LEFT JOIN jobs j ON j.project_no = t.project_no AND j.environment = t.environment AND j.region = t.region AND j.id = t.job_id`;
