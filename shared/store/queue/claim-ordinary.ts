import { idToUuid } from "../../domain/ids.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { idColumn, int2Column, int4Column } from "../database/columns.ts";
import { type Database, epochMs } from "../database/database.ts";
import { type Claim, type GrantedAttempt, type GrantedRow, readGranted } from "./claim.ts";
import { inLockOrder, type OrderedItem } from "./lock-order.ts";
import { countRuns, fitsMonth, MONTH_HAS_BEGUN, RUNS_LEFT_AT_LEAST } from "./month.ts";
import { countByEnvironment, FREE_FOR_ANY, TAKE_FREE_PERMIT, TAKE_FREE_PERMITS } from "./permits.ts";
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
 * A claim alone has a statement of its own, made of the same text.
 *
 * Answers come in the order of the claims; a claim that is left has null. A dead node is granted nothing.
 */
export async function claimOrdinary(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<(GrantedAttempt | null)[]> {
  const [only] = claims;
  if (only !== undefined && claims.length === 1) return [await claimOne(db, nodeId, only)];
  const { values, ordered } = ordinaryClaims(nodeId, claims);
  const rows = await db.run<OrdinaryRow>("claim_ordinary", CLAIM_ORDINARY, values);
  return readOrdinary(claims.length, ordered, rows);
}

/** The most frequent statement while few attempts are due at once. Without arrays it takes four fifths of the instructions. */
async function claimOne(db: Database, nodeId: number, claim: Claim): Promise<GrantedAttempt | null> {
  const { projectNo, environment, region, jobId, attempt, runId } = claim;
  const scope = [projectNo, environmentCode(environment), regionCode(region)];
  const values = [nodeId, ...scope, idToUuid(jobId), attempt, idToUuid(runId)];
  const [row] = await db.run<GrantedRow>("claim_ordinary_one", CLAIM_ONE, values);
  return row === undefined ? null : readGranted(row, { jobId, runId });
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

/**
 * Locks the node, and then the flow of `projectNo`. The expression is the project's number if the project is ordinary for
 * `asked` claims, and null if it is not or has no flow, or if the node is dead. `from` may name what the two parameters mention.
 */
const ordinaryProject = (projectNo: string, asked: string, from = "") => `
                    SELECT CASE WHEN f.free >= ${asked} AND ${fitsMonth(asked, "f.runs_left")} AND NOT f.may_reach
                                THEN f.project_no END
                      FROM ${from}(
                           SELECT f.project_no, ${RUNS_LEFT_AT_LEAST} AS runs_left, ${mayReach(asked)} AS may_reach,
                                  CASE WHEN ${MONTH_HAS_BEGUN} THEN ${FREE_FOR_ANY} END AS free
                             FROM flows f
                            WHERE f.project_no = ${projectNo}
                              FOR NO KEY UPDATE) f${from && " ON true"}
                     WHERE (SELECT true FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE)`;

/** The projects of many claims, each at its place; no place has a project if the node is dead. */
export const ORDINARY_PROJECTS = `ARRAY (${ordinaryProject("p.project_no", "p.asked", "unnest($2::int[], $3::int[]) AS p (project_no, asked) LEFT JOIN LATERAL ")})`;
/**
 * As items of a SELECT, arrays are taken apart in step. As a FROM item, each would first be written to a store of its own. `n` is
 * counted by an array that is never null.
 */
export const CLAIMED_ITEMS = `(SELECT unnest($4::int[]) AS place, unnest($5::smallint[]) AS environment, unnest($6::smallint[]) AS region,
                        unnest($7::uuid[]) AS job_id, unnest($8::smallint[]) AS attempt, unnest($9::uuid[]) AS run_id,
                        generate_subscripts($7::uuid[], 1) AS n)`;

/** The parts in which the statements for many claims and for one differ. */
interface ClaimParts {
  /** clock.projects: what locks the node and the flows. */
  projects: string;
  /** A row for each claim (a). */
  items: string;
  /** The number of a claim's project; null if the project is not ordinary. */
  projectNo: string;
  /** How many attempts of each project are taken in each environment (c), and the assignments that count them in its flow (f). */
  counts: string;
  take: string;
  /** How many are taken of each project, day and region. */
  runs: string;
}

const claimOf = ({ projects, items, projectNo, counts, take, runs }: ClaimParts) => `
WITH clock AS MATERIALIZED (
  -- The clock is read once all flows are locked. Of a project that is not ordinary, or has no flow, the number is null.
  SELECT projects, at, at::date AS day, date_trunc('month', at)::date AS month
    FROM (SELECT projects, clock_timestamp() AS at
            FROM (SELECT ${projects} AS projects
                  OFFSET 0) locked) read
), taken AS (
  UPDATE open_jobs o
     SET due_at = NULL, run_id = i.run_id, node_id = $1, started_at = i.at, parked_due_at = coalesce(o.parked_due_at, o.due_at)
    FROM (SELECT a.*, clock.at, ${projectNo} AS project_no
            FROM clock
           CROSS JOIN ${items} a
           -- A clock that was set back since the statement began might be in a month before the flows'.
           WHERE ${projectNo} IS NOT NULL AND clock.at >= now() AND NOT EXISTS (SELECT FROM held_regions)
          OFFSET 0) i
   WHERE o.project_no = ANY (ARRAY[i.project_no]) AND o.environment = i.environment AND o.region = i.region
     AND o.job_id = i.job_id AND o.attempt = i.attempt AND o.run_id IS NULL AND coalesce(o.due_at <= now(), false)
     AND o.flow_key IS NULL
  RETURNING i.n, o.project_no, o.environment, o.region, o.job_id, o.attempt, o.attempts_allowed, o.parked_due_at,
            o.started_at, o.trace
), counted AS (
  UPDATE flows f
     SET ${take}
    FROM ${counts}
   CROSS JOIN clock
   WHERE f.project_no = c.project_no
), usage AS (
  INSERT INTO usage_days AS u (project_no, day, region, runs)
  ${runs}
      ON CONFLICT (project_no, day, region) DO UPDATE SET runs = u.runs + excluded.runs
)
SELECT t.n::int AS n, t.attempts_allowed, ${epochMs("CASE WHEN t.attempt = 1 THEN j.run_at ELSE t.parked_due_at END")} AS scheduled_at,
       ${epochMs("t.started_at")} AS started_at, j.target_url, j.payload, j.schedule_id, j.max_attempts, j.base_seconds,
       j.cap_seconds, j.tags IS NOT NULL AS is_tagged, coalesce(t.trace, j.trace) AS trace
  FROM taken t
  LEFT JOIN jobs j ON j.project_no = t.project_no AND j.environment = t.environment AND j.region = t.region AND j.id = t.job_id`;

const CLAIM_ORDINARY = claimOf({
  projects: ORDINARY_PROJECTS,
  items: CLAIMED_ITEMS,
  projectNo: "clock.projects[a.place]",
  counts: countByEnvironment("taken"),
  take: `${TAKE_FREE_PERMITS},
         ${countRuns("c.development + c.production")}`,
  runs: `SELECT project_no, clock.day, region, count(*) FROM taken CROSS JOIN clock
   GROUP BY 1, 2, 3 ORDER BY 1, 2, 3`,
});
const PRODUCTION = environmentCode("production");
const CLAIM_ONE = claimOf({
  projects: `(${ordinaryProject("$2", "1")})`,
  items: `(SELECT $3::smallint AS environment, $4::smallint AS region, $5::uuid AS job_id, $6::smallint AS attempt,
                        $7::uuid AS run_id, 1 AS n)`,
  projectNo: "clock.projects",
  counts: `(
       SELECT project_no, CASE environment WHEN ${PRODUCTION} THEN 0 ELSE 1 END AS development,
              CASE environment WHEN ${PRODUCTION} THEN 1 ELSE 0 END AS production
         FROM taken) c`,
  take: `${TAKE_FREE_PERMIT},
         ${countRuns("1")}`,
  runs: "SELECT project_no, clock.day, region, 1 FROM taken CROSS JOIN clock",
});
