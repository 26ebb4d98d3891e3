import { idToUuid, JOB_PREFIX, RUN_PREFIX, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import type { TraceContext } from "../../domain/trace.ts";
import { environmentCode, regionCode } from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { readTrace } from "../database/traces.ts";
import { CLOCK, clockWith, countRuns, MONTH_AT_CLOCK, MONTH_COLUMNS } from "./month.ts";
import {
  CLAIMED_PERMITS,
  IS_HELD,
  inTurn,
  PERMIT_COLUMNS,
  PERMIT_NAMES,
  PLACE_VERDICT,
  TAKE_PERMITS,
} from "./permits.ts";
import { HEARS_OF_QUOTA, QUOTA_COLUMNS, tellOfQuota } from "./quota-events.ts";

/** An owed attempt that a delivery node wants to send, with the run id to record it under. */
export interface Claim {
  projectNo: ProjectNo;
  environment: Environment;
  region: Region;
  jobId: string;
  attempt: number;
  runId: string;
}

/** What the claim decided. Instants are milliseconds since 1970 by the database's clock. */
export type Claimed<Granted = GrantedAttempt> =
  | { kind: "granted"; attempt: Granted }
  /** Not owed any more: sent, canceled or over. */
  | { kind: "gone" }
  /** Not due yet, or the free permits are kept for a class that has been called. */
  | { kind: "early"; waitMs: number }
  /** All permits of the project are in use, and its flow notes that this region waits. `returned` of them ever came back. */
  | { kind: "no_permit"; returned: number }
  /** The month's quota is used up, or an operator holds the project. */
  | { kind: "blocked"; untilAt: number };

/** All that sending takes, so that the claim is the only question asked before dialling. */
export interface GrantedAttempt {
  jobId: string;
  /** The claim's run id, or the one that a manual retry had already been answered with. */
  runId: string;
  attemptsAllowed: number;
  /** When it was due, for `Service-Scheduled-At`. */
  scheduledAt: number;
  startedAt: number;
  targetUrl: string;
  payload: string;
  scheduleId: string | null;
  maxAttempts: number;
  baseSeconds: number;
  capSeconds: number;
  /** Whether the job has tags. */
  isTagged: boolean;
  /** The trace that the attempt belongs to, null for none. */
  trace: TraceContext | null;
}

/** Thrown to a node that was declared dead: nothing was claimed, and nothing will be. */
export class NodeDeclaredDead extends Error {}

/** A held project is looked at again after so long. */
export const HELD_PAUSE_SECONDS = 2;

/**
 * Claims many attempts in one self-committing statement: permit, quota, run and start, all or nothing for each.
 *
 * Lock order: the node, the flows by project, the open jobs by id. Under READ COMMITTED a locked row is read in its
 * newest version, and an UPDATE of a row that this statement has locked starts from that version as well; so the
 * counts are exact although the statement's snapshot may be older than another claim's commit. Open jobs are looked up by
 * their keys alone, one after the other, and judged afterwards. With a join the planner could begin at the table, or at the
 * index of due rows, where one project's backlog stands in every look-up's way. A flow is looked up once for all items of
 * its project: while an old snapshot is held, each look-up walks through all of the row's versions.
 *
 * Where rows are changed, `project_no = ANY (ARRAY[...])` says the same as `=`, but the planner cannot make an order of
 * it. After a vacuum of a queue that ran nearly empty, one look-up by the key seems to cost as much as walking the key's
 * whole index, and the planner would consider that walk only for its order.
 *
 * A claim whose answer was lost is made again. An attempt that this node has taken already is granted once more, and nothing
 * is counted twice; parked_due_at keeps when it was due until the attempt is over. So the caller asks only for jobs of which
 * the node has nothing on the wire, and for each job once in a statement. Answers come in the order of the claims.
 *
 * In a project with endpoints that hear of the quota (quota-events.ts) a second statement claims, and tells them where a run reaches a
 * part of it. The sweeps find these deliveries.
 */
export async function claimAttempts(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<Claimed[]> {
  const { answers, isLeft } = await ask(db, "claim", CLAIM, nodeId, claims);
  if (!isLeft) return answers.map((answer) => answer ?? { kind: "gone" });
  const left = claims.filter((_, index) => answers[index] === null);
  const others = (await ask(db, "claim_telling", CLAIM_TELLING, nodeId, left)).answers;
  return answers.map((answer) => answer ?? others.shift() ?? { kind: "gone" });
}

/** The answers in the order of the claims, null for none; `isLeft` if some of these may be had by CLAIM_TELLING. */
async function ask(
  db: Database,
  name: string,
  text: string,
  nodeId: number,
  claims: readonly Claim[],
): Promise<{ answers: (Claimed | null)[]; isLeft: boolean }> {
  const rows = await db.run<ClaimRow>(name, text, [
    nodeId,
    column(claims.map((claim) => claim.projectNo)),
    column(claims.map((claim) => environmentCode(claim.environment))),
    column(claims.map((claim) => regionCode(claim.region))),
    column(claims.map((claim) => idToUuid(claim.jobId))),
    column(claims.map((claim) => claim.attempt)),
    column(claims.map((claim) => idToUuid(claim.runId))),
  ]);
  // The statement answers one row more than there are verdicts to a node that lives, and none to another.
  if (rows.length === 0) throw new NodeDeclaredDead(`node ${nodeId} was declared dead`);
  const answers = claims.map((): Claimed | null => null);
  let isLeft = false;
  for (const row of rows) {
    if (row.n > 0) answers[row.n - 1] = readClaimed(row);
    else isLeft = row.number === 1;
  }
  return { answers, isLeft };
}

/**
 * `isTelling` is the text that also tells endpoints of the quota. The other one leaves the projects whose endpoints may hear of it; more
 * than this one bit would cost the others something.
 */
const claimText = (isTelling: boolean): string => `
WITH living AS MATERIALIZED (
  SELECT id FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE
), item AS MATERIALIZED (
  SELECT i.*
    FROM unnest($2::int[], $3::smallint[], $4::smallint[], $5::uuid[], $6::smallint[], $7::uuid[])
         WITH ORDINALITY AS i (project_no, environment, region, job_id, attempt, run_id, n)
   WHERE EXISTS (SELECT FROM living)
), flow AS MATERIALIZED (
  SELECT p.*, ${PERMIT_COLUMNS}, ${MONTH_COLUMNS}, ${isTelling ? QUOTA_COLUMNS : HEARS_OF_QUOTA}
    FROM (SELECT project_no, array_agg(environment) AS environments, array_agg(region) AS regions,
                 array_agg(job_id) AS job_ids, array_agg(attempt) AS attempts, array_agg(run_id) AS run_ids,
                 array_agg(n) AS ns
            FROM item GROUP BY project_no) p
    JOIN flows f USING (project_no)
   ORDER BY f.project_no
     FOR NO KEY UPDATE OF f
), ${isTelling ? CLOCK : clockWith("bool_or(hears)", "hears")}, owed AS MATERIALIZED (
  SELECT i.n, i.attempt AS asked, i.run_id AS new_run_id, ${PERMIT_NAMES}, i.month, i.runs_left, o.*
    FROM (SELECT f.project_no, ${PERMIT_NAMES}, ${MONTH_AT_CLOCK}, a.*
            FROM flow f
           CROSS JOIN clock
           CROSS JOIN LATERAL unnest(f.environments, f.regions, f.job_ids, f.attempts, f.run_ids, f.ns)
                 AS a (environment, region, job_id, attempt, run_id, n)
           ${isTelling ? "" : "WHERE NOT f.hears"}
           ORDER BY a.job_id) i
   CROSS JOIN LATERAL (
         SELECT o.project_no, o.environment, o.region, o.job_id, o.attempt, o.attempts_allowed, o.due_at, o.run_id,
                o.node_id, o.started_at, o.trace, o.parked_due_at
           FROM open_jobs o
          WHERE o.project_no = i.project_no AND o.environment = i.environment
            AND o.region = i.region AND o.job_id = i.job_id
            FOR NO KEY UPDATE) o
), ranked AS (
  SELECT *, due_at <= now() AS due, due_at IS NULL AS again, run_id IS NULL AS counted, ${IS_HELD} AS is_held,
         run_id IS NOT NULL OR runs_left IS NULL OR count(*) FILTER (WHERE run_id IS NULL) OVER w <= runs_left AS in_quota
    FROM owed
   WHERE attempt = asked AND (due_at IS NOT NULL OR node_id = $1)
  WINDOW w AS (PARTITION BY project_no, due_at <= now() ORDER BY n)
), verdict AS MATERIALIZED (
  -- An attempt that the quota blocks takes no permit. While permits are missing, the quota is not used up yet.
  SELECT *, kind = 'granted' AND NOT again AS taken
    FROM (SELECT *, CASE WHEN again THEN 'granted'
                 WHEN NOT due THEN 'early'
                 WHEN is_held THEN 'blocked'
                 WHEN NOT in_quota THEN
                   CASE WHEN count(*) FILTER (WHERE in_quota) OVER (PARTITION BY project_no, due ORDER BY n) > free
                        THEN 'no_permit' ELSE 'blocked' END
                 ${PLACE_VERDICT} AS kind
            FROM (${inTurn("SELECT *, environment AS class, coalesce(due AND NOT is_held AND in_quota, false) AS wants FROM ranked")}) placed) judged
), taken AS (
  UPDATE open_jobs o
     SET due_at = NULL, run_id = coalesce(o.run_id, v.new_run_id), node_id = $1, started_at = clock.at,
         parked_due_at = coalesce(o.parked_due_at, o.due_at)
    FROM verdict v CROSS JOIN clock
   WHERE v.taken AND o.project_no = ANY (ARRAY[v.project_no]) AND o.environment = v.environment
     AND o.region = v.region AND o.job_id = v.job_id
), counted AS (
  UPDATE flows f
     SET ${TAKE_PERMITS},
         ${countRuns("c.runs")}
    FROM (SELECT project_no,
                 count(*) FILTER (WHERE kind = 'granted' AND counted) AS runs,
                 ${CLAIMED_PERMITS}
            FROM verdict GROUP BY project_no) c
   CROSS JOIN clock
   WHERE f.project_no = c.project_no
), usage AS (
  INSERT INTO usage_days AS u (project_no, day, region, runs)
  SELECT project_no, greatest(clock.day, v.month), region, count(*)
    FROM verdict v CROSS JOIN clock WHERE kind = 'granted' AND counted
   GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
      ON CONFLICT (project_no, day, region) DO UPDATE SET runs = u.runs + excluded.runs
)${isTelling ? `, ${tellOfQuota(COUNTED)}` : ""}
SELECT v.n::int AS n, v.kind,
       CASE v.kind
         WHEN 'early' THEN CASE WHEN v.due THEN v.kept_ms ELSE extract(epoch FROM v.due_at - now()) * 1000 END
         WHEN 'no_permit' THEN v.returned
         WHEN 'blocked' THEN extract(epoch FROM CASE WHEN v.is_held THEN now() + interval '${HELD_PAUSE_SECONDS} s'
                                                     ELSE v.month + interval '1 month' END) * 1000
       END::float8 AS number,
       v.job_id, coalesce(v.run_id, v.new_run_id) AS run_id, v.attempts_allowed,
       ${epochMs("CASE WHEN v.attempt = 1 THEN j.run_at ELSE coalesce(v.parked_due_at, v.due_at, v.started_at) END")} AS scheduled_at,
       ${epochMs("CASE WHEN v.again THEN v.started_at ELSE clock.at END")} AS started_at,
       j.target_url, j.payload, j.schedule_id, j.max_attempts, j.base_seconds, j.cap_seconds,
       j.tags IS NOT NULL AS is_tagged, coalesce(v.trace, j.trace) AS trace
  FROM verdict v
 CROSS JOIN clock
  LEFT JOIN jobs j ON v.kind = 'granted' AND j.project_no = v.project_no AND j.environment = v.environment
                  AND j.region = v.region AND j.id = v.job_id
 UNION ALL
SELECT 0, NULL, ${isTelling ? "0" : "(SELECT hears::int FROM clock)"}, ${Array(13).fill("NULL").join(", ")}
  FROM living`;

const COUNTED =
  "SELECT project_no, count(*) FILTER (WHERE kind = 'granted' AND counted) AS runs FROM verdict GROUP BY project_no";

const CLAIM = claimText(false);
const CLAIM_TELLING = claimText(true);

interface ClaimRow extends GrantedRow {
  /** The claim's place, from 1; 0 in the row that stands for the living node. */
  n: number;
  kind: Exclude<Claimed["kind"], "gone">;
  /**
   * What the kind comes with: milliseconds to wait, permits returned, or an instant. In the row of the node 1 if claims were left
   * for CLAIM_TELLING, and else 0.
   */
  number: number | null;
  job_id: string;
  run_id: string;
}

/** What sending takes, as a statement answers it. */
export interface GrantedRow {
  attempts_allowed: number;
  scheduled_at: number;
  started_at: number;
  target_url: string;
  payload: string;
  schedule_id: string | null;
  max_attempts: number;
  base_seconds: number;
  cap_seconds: number;
  is_tagged: boolean;
  trace: Buffer | null;
}

function readClaimed(row: ClaimRow): Claimed {
  switch (row.kind) {
    case "granted":
      return {
        kind: "granted",
        attempt: readGranted(row, {
          jobId: uuidToId(JOB_PREFIX, row.job_id),
          runId: uuidToId(RUN_PREFIX, row.run_id),
        }),
      };
    case "early":
      return { kind: "early", waitMs: row.number ?? 0 };
    case "blocked":
      return { kind: "blocked", untilAt: row.number ?? 0 };
    case "no_permit":
      return { kind: "no_permit", returned: row.number ?? 0 };
  }
}

export const readGranted = (
  row: GrantedRow,
  ids: Pick<GrantedAttempt, "jobId" | "runId">,
): GrantedAttempt => ({
  ...ids,
  attemptsAllowed: row.attempts_allowed,
  scheduledAt: row.scheduled_at,
  startedAt: row.started_at,
  targetUrl: row.target_url,
  payload: row.payload,
  scheduleId: row.schedule_id === null ? null : uuidToId(SCHEDULE_PREFIX, row.schedule_id),
  maxAttempts: row.max_attempts,
  baseSeconds: row.base_seconds,
  capSeconds: row.cap_seconds,
  isTagged: row.is_tagged,
  trace: readTrace(row.trace),
});
