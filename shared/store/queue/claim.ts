import { idToUuid, JOB_PREFIX, RUN_PREFIX, SCHEDULE_PREFIX, uuidToId } from "../../domain/ids.ts";
import type { OwedAttempt, Placed } from "../../domain/owed.ts";
import type { Environment, ProjectNo, Region } from "../../domain/scope.ts";
import { hostOfTarget } from "../../domain/target.ts";
import type { TraceContext } from "../../domain/trace.ts";
import type { WaitReason } from "../../domain/wait.ts";
import { environmentCode, HOSTS_WATCHED, regionCode } from "../database/codes.ts";
import { column, type Database, epochMs } from "../database/database.ts";
import { readTrace } from "../database/traces.ts";
import { type CalledRow, readCalled } from "./called.ts";
import {
  CLOCK_BEHIND_GATES,
  calledLanes,
  JUDGE_BY_GATES,
  judgedByGates,
  LOCK_GATES,
  PASS_GATES,
} from "./flow-gates.ts";
import { CALL_HOSTS, JUDGE_BY_HOSTS, judgedByHosts, LOCK_HOSTS_OF_CLAIMS, TURN_AWAY } from "./host-gates.ts";
import { clockWith, countRuns, MONTH_AT_CLOCK, MONTH_COLUMNS } from "./month.ts";
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
  /** Whether the job has tags or a flow key, or its project's hosts are watched. */
  isTagged: boolean;
  /** The gate at which it waited last, if it did. */
  waitedFor?: WaitReason | undefined;
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
 * part of it. The sweeps find these deliveries. The same statement claims for jobs with a flow key (flow-gates.ts). `onCalled` hears of what it let start
 * next; the sweeps find that as well.
 */
export async function claimAttempts(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
  onCalled: OnCalled = () => undefined,
): Promise<Claimed[]> {
  const answers = await claimMost(db, nodeId, claims);
  const left = claims.filter((_, index) => answers[index] === null);
  if (left.length === 0) return answers.map((answer) => answer ?? { kind: "gone" });
  const others = await claimWhole(db, nodeId, left, onCalled);
  return answers.map((answer) => answer ?? others.shift() ?? { kind: "gone" });
}

/** The first statement alone: null is what it leaves to the second. */
export async function claimMost(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<(Claimed | null)[]> {
  const { answers, isLeft } = await ask(db, "claim", CLAIM, nodeId, claims);
  return isLeft ? answers : answers.map((answer) => answer ?? { kind: "gone" });
}

/** Hears of attempts of flow keys that a statement made due. */
export type OnCalled = (owed: Placed<OwedAttempt>[]) => void;

/** The second statement alone, which leaves nothing. It is asked about any claims, at more cost. */
export async function claimWhole(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
  onCalled: OnCalled = () => undefined,
): Promise<Claimed[]> {
  const hosts = await findWatchedHosts(db, claims);
  const { answers, called } = await ask(db, "claim_whole", CLAIM_WHOLE, nodeId, claims, [hosts]);
  if (called.length > 0) onCalled(called);
  return answers.map((answer) => answer ?? { kind: "gone" });
}

/** The hosts of jobs whose projects have hosts that are not well, in the order of the claims; null for others. */
async function findWatchedHosts(db: Database, claims: readonly Claim[]): Promise<(string | null)[]> {
  const rows = await db.run<{ target_url: string | null }>("find_watched_targets", FIND_WATCHED, [
    column(claims.map((claim) => claim.projectNo)),
    column(claims.map((claim) => environmentCode(claim.environment))),
    column(claims.map((claim) => regionCode(claim.region))),
    column(claims.map((claim) => idToUuid(claim.jobId))),
  ]);
  return rows.map((row) => (row.target_url === null ? null : hostOfTarget(row.target_url)));
}

// Few projects have such hosts, and they have few. A host that comes to be so meanwhile lets this attempt pass, as one that was claimed before.
const FIND_WATCHED = `
SELECT CASE WHEN EXISTS (SELECT FROM target_hosts t WHERE t.project_no = i.project_no AND t.environment = i.environment AND t.state IS NOT NULL)
            THEN (SELECT j.target_url FROM jobs j
                   WHERE j.project_no = i.project_no AND j.environment = i.environment AND j.region = i.region AND j.id = i.job_id) END AS target_url
  FROM unnest($1::int[], $2::smallint[], $3::smallint[], $4::uuid[])
       WITH ORDINALITY AS i (project_no, environment, region, job_id, n)
 ORDER BY i.n`;

/** The answers in the order of the claims, null for none; `isLeft` if some of these may be had by CLAIM_WHOLE. */
async function ask(
  db: Database,
  name: string,
  text: string,
  nodeId: number,
  claims: readonly Claim[],
  more: unknown[] = [],
): Promise<{ answers: (Claimed | null)[]; isLeft: boolean; called: Placed<OwedAttempt>[] }> {
  const rows = await db.run<ClaimRow>(name, text, [
    nodeId,
    column(claims.map((claim) => claim.projectNo)),
    column(claims.map((claim) => environmentCode(claim.environment))),
    column(claims.map((claim) => regionCode(claim.region))),
    column(claims.map((claim) => idToUuid(claim.jobId))),
    column(claims.map((claim) => claim.attempt)),
    column(claims.map((claim) => idToUuid(claim.runId))),
    ...more,
  ]);
  // The statement answers one row more than there are verdicts to a node that lives, and none to another.
  if (rows.length === 0) throw new NodeDeclaredDead(`node ${nodeId} was declared dead`);
  const answers = claims.map((): Claimed | null => null);
  let isLeft = false;
  let called: Placed<OwedAttempt>[] = [];
  for (const row of rows) {
    if (row.n > 0) answers[row.n - 1] = readClaimed(row);
    else {
      isLeft = row.number === 1;
      called = (row.called ?? []).flatMap(readCalled);
    }
  }
  return { answers, isLeft, called };
}

/**
 * `isWhole` is the text that also tells endpoints of the quota, and judges by flow keys (flow-gates.ts). The other one leaves the projects
 * whose endpoints may hear of the quota, and jobs with a key; more than that would cost the others something.
 */
const claimText = (isWhole: boolean): string => `
WITH living AS MATERIALIZED (
  SELECT id FROM nodes WHERE id = $1 AND NOT dead FOR KEY SHARE
), item AS MATERIALIZED (
  SELECT i.*
    FROM unnest($2::int[], $3::smallint[], $4::smallint[], $5::uuid[], $6::smallint[], $7::uuid[]${isWhole ? ", $8::text[]" : ""})
         WITH ORDINALITY AS i (project_no, environment, region, job_id, attempt, run_id, ${isWhole ? "host, " : ""}n)
   WHERE EXISTS (SELECT FROM living)
), flow AS MATERIALIZED (
  SELECT p.*, ${PERMIT_COLUMNS}, ${MONTH_COLUMNS}, ${isWhole ? QUOTA_COLUMNS : HEARS_OF_QUOTA}
    FROM (SELECT project_no, array_agg(environment) AS environments, array_agg(region) AS regions,
                 array_agg(job_id) AS job_ids, array_agg(attempt) AS attempts, array_agg(run_id) AS run_ids,
                 array_agg(n) AS ns
            FROM item GROUP BY project_no) p
    JOIN flows f USING (project_no)
   ORDER BY f.project_no
     FOR NO KEY UPDATE OF f
), ${isWhole ? `${LOCK_GATES}, ${LOCK_HOSTS_OF_CLAIMS}, ${CLOCK_BEHIND_GATES}` : clockWith("bool_or(hears)", "hears")}, owed AS MATERIALIZED (
  SELECT i.n, i.attempt AS asked, i.run_id AS new_run_id, ${PERMIT_NAMES}, i.month, i.runs_left${isWhole ? ", i.is_watched" : ""}, o.*
    FROM (SELECT f.project_no, ${PERMIT_NAMES}, ${MONTH_AT_CLOCK}${isWhole ? `, f.subscriptions & ${HOSTS_WATCHED} <> 0 AS is_watched` : ""}, a.*
            FROM flow f
           CROSS JOIN clock
           CROSS JOIN LATERAL unnest(f.environments, f.regions, f.job_ids, f.attempts, f.run_ids, f.ns)
                 AS a (environment, region, job_id, attempt, run_id, n)
           ${isWhole ? "" : "WHERE NOT f.hears"}
           ORDER BY a.job_id) i
   CROSS JOIN LATERAL (
         SELECT o.project_no, o.environment, o.region, o.job_id, o.attempt, o.attempts_allowed, o.due_at, o.run_id,
                o.node_id, o.started_at, o.trace, o.parked_due_at, o.flow_key${isWhole ? ", o.has_place, o.parked_host, o.gate" : ""}
           FROM open_jobs o
          WHERE o.project_no = i.project_no AND o.environment = i.environment
            AND o.region = i.region AND o.job_id = i.job_id
            FOR NO KEY UPDATE) o
), ${isWhole ? `${JUDGE_BY_HOSTS}, ${JUDGE_BY_GATES}, ` : ""}ranked AS (
  SELECT *, due_at <= now() AS due, due_at IS NULL AS again, run_id IS NULL AS counted, ${IS_HELD} AS is_held,
         run_id IS NOT NULL OR runs_left IS NULL OR count(*) FILTER (WHERE run_id IS NULL${isWhole ? " AND passes AND host_passes" : ""}) OVER w <= runs_left AS in_quota
    FROM ${isWhole ? `(${judgedByGates(`(${judgedByHosts(`(SELECT * FROM owed WHERE ${IS_ASKED})`, ASKS)})`, `${ASKS} AND host_passes`)}) judged` : `owed WHERE ${IS_ASKED} AND flow_key IS NULL`}
  WINDOW w AS (PARTITION BY project_no, due_at <= now() ORDER BY n)
), verdict AS MATERIALIZED (
  -- An attempt that the quota blocks takes no permit. While permits are missing, the quota is not used up yet.
  SELECT *, kind = 'granted' AND NOT again AS taken
    FROM (SELECT *, CASE WHEN again THEN 'granted'
                 WHEN NOT due THEN 'early'
                 WHEN is_held THEN 'blocked'
                 ${isWhole ? "WHEN NOT host_passes THEN CASE WHEN host_until IS NULL THEN 'host_parked' ELSE 'host_put_off' END WHEN NOT passes THEN CASE WHEN parks THEN 'parked' ELSE 'put_off' END" : ""}
                 WHEN NOT in_quota THEN
                   CASE WHEN count(*) FILTER (WHERE in_quota${isWhole ? " AND passes AND host_passes" : ""}) OVER (PARTITION BY project_no, due ORDER BY n) > free
                        THEN 'no_permit' ELSE 'blocked' END
                 ${PLACE_VERDICT} AS kind
            FROM (${inTurn(`SELECT *, environment AS class, coalesce(due AND NOT is_held AND in_quota${isWhole ? " AND passes AND host_passes" : ""}, false) AS wants FROM ranked`)}) placed) judged
), taken AS (
  UPDATE open_jobs o
     SET due_at = NULL, run_id = coalesce(o.run_id, v.new_run_id), node_id = $1, started_at = clock.at,
         parked_due_at = coalesce(o.parked_due_at, o.due_at)${isWhole ? ", has_place = CASE WHEN o.flow_key IS NOT NULL THEN true END, gate = NULL" : ""}
    FROM verdict v CROSS JOIN clock
   WHERE v.taken AND o.project_no = ANY (ARRAY[v.project_no]) AND o.environment = v.environment
     AND o.region = v.region AND o.job_id = v.job_id${isWhole ? "\n  RETURNING 1" : ""}
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
)${isWhole ? `, ${TURN_AWAY}, ${PASS_GATES}, ${CALL_HOSTS}, ${tellOfQuota(COUNTED)}` : ""}
SELECT v.n::int AS n, ${isWhole ? "CASE WHEN v.kind IN ('put_off', 'host_put_off') THEN 'early' ELSE v.kind END AS kind" : "v.kind"},
       CASE v.kind
         WHEN 'early' THEN CASE WHEN v.due THEN v.kept_ms ELSE extract(epoch FROM v.due_at - now()) * 1000 END
         WHEN 'no_permit' THEN v.returned
         ${isWhole ? "WHEN 'put_off' THEN extract(epoch FROM v.flow_until - now()) * 1000 WHEN 'host_put_off' THEN extract(epoch FROM v.host_until - now()) * 1000" : ""}
         WHEN 'blocked' THEN extract(epoch FROM CASE WHEN v.is_held THEN now() + interval '${HELD_PAUSE_SECONDS} s'
                                                     ELSE v.month + interval '1 month' END) * 1000
       END::float8 AS number,
       v.job_id, coalesce(v.run_id, v.new_run_id) AS run_id, v.attempts_allowed,
       ${epochMs("CASE WHEN v.attempt = 1 THEN j.run_at ELSE coalesce(v.parked_due_at, v.due_at, v.started_at) END")} AS scheduled_at,
       ${epochMs("CASE WHEN v.again THEN v.started_at ELSE clock.at END")} AS started_at,
       j.target_url, j.payload, j.schedule_id, j.max_attempts, j.base_seconds, j.cap_seconds,
       ${isWhole ? "j.tags IS NOT NULL OR v.flow_key IS NOT NULL OR v.is_watched" : "j.tags IS NOT NULL"} AS is_tagged, coalesce(v.trace, j.trace) AS trace${isWhole ? `, ${WAITED_FOR}, NULL::json AS called` : ""}
  FROM verdict v
 CROSS JOIN clock
  LEFT JOIN jobs j ON v.kind = 'granted' AND j.project_no = v.project_no AND j.environment = v.environment
                  AND j.region = v.region AND j.id = v.job_id
${isWhole ? " WHERE v.kind NOT IN ('parked', 'host_parked')" : ""} UNION ALL
SELECT 0, NULL, ${isWhole ? "0" : "(SELECT (hears OR EXISTS (SELECT FROM owed WHERE flow_key IS NOT NULL))::int FROM clock)"}, ${Array(13).fill("NULL").join(", ")}${isWhole ? `, NULL, (SELECT json_agg(json_build_array(project_no, environment, region, shard, job_id, attempt, ${epochMs("due_at")})) FROM ${calledLanes("host_called")} c)` : ""}
  FROM living`;

const IS_ASKED = "attempt = asked AND (due_at IS NOT NULL OR node_id = $1)";
const ASKS = `due_at <= now() AND NOT (${IS_HELD})`;
/** What it waited for at a gate, if it was due before the instant at which the gate let it pass. */
const WAITED_FOR = `CASE WHEN v.parked_host IS NULL AND v.due_at > v.parked_due_at
            THEN CASE WHEN v.gate LIKE 'h%' THEN 'host' WHEN v.flow_key IS NOT NULL THEN 'flow' END END AS waited_for`;

const COUNTED =
  "SELECT project_no, count(*) FILTER (WHERE kind = 'granted' AND counted) AS runs FROM verdict GROUP BY project_no";

const CLAIM = claimText(false);
const CLAIM_WHOLE = claimText(true);

interface ClaimRow extends GrantedRow {
  /** The claim's place, from 1; 0 in the row that stands for the living node. */
  n: number;
  kind: Exclude<Claimed["kind"], "gone">;
  /**
   * What the kind comes with: milliseconds to wait, permits returned, or an instant. In the row of the node 1 if claims were left
   * for CLAIM_WHOLE, and else 0.
   */
  number: number | null;
  job_id: string;
  run_id: string;
  /** In the row of the node: what flow keys have let start next. */
  called?: CalledRow[] | null;
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
  waited_for?: "flow" | "host" | null;
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
  ...(row.waited_for == null ? {} : { waitedFor: row.waited_for }),
  trace: readTrace(row.trace),
});
