import { HOSTS_WATCHED } from "../database/codes.ts";
import { epochMs } from "../database/database.ts";
import {
  CLOCK_BEHIND_GATES,
  calledLanes,
  JUDGE_BY_GATES,
  JUDGED_BY_GATES,
  LOCK_GATES,
  PASS_GATES,
} from "./flow-gates.ts";
import { CALL_HOSTS, JUDGE_BY_HOSTS, LOCK_HOSTS_OF_CLAIMS, TURN_AWAY } from "./host-gates.ts";
import { clockWith, countRuns, fitsMonth, MONTH_AT_CLOCK, MONTH_COLUMNS } from "./month.ts";
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
import { HEARS_OF_QUOTA, QUOTA_COLUMNS, tellOfQuota } from "./quota-events.ts";

/**
 * The statement that claims attempts.
 *
 * Lock order: the node, the flows by project, the open jobs by id. Under READ COMMITTED a locked row is read in its
 * newest version, and an UPDATE of a row that this statement has locked starts from that version as well; so the
 * counts are exact although the statement's snapshot may be older than another claim's commit. Open jobs are looked up by
 * their keys alone, one after the other, and judged afterwards. With a join the planner could begin at the table, or at the
 * index of due rows, where one project's backlog stands in every look-up's way. A flow is looked up once for all items of
 * its project: while an old snapshot is held, each look-up walks through all of the row's versions.
 *
 * The parts that change rows say `project_no = ANY (ARRAY[...])`. This means the same as `=`, but the planner cannot make an
 * order of it. After a vacuum of a queue that ran nearly empty, one look-up by the key seems to cost as much as a walk through
 * the key's whole index, and the planner would consider that walk only for its order.
 *
 * The text with `isWhole` also tells endpoints of the quota, and judges by flow keys (flow-gates.ts) and hosts (host-gates.ts).
 * The other text leaves jobs with a key, and projects whose endpoints may hear of the quota or whose hosts are watched. More in
 * it would cost the other jobs something.
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
), ${isWhole ? `asked AS MATERIALIZED (SELECT *, coalesce(${MAY_START}, false) AS may_start FROM owed WHERE ${IS_ASKED}), ${JUDGE_BY_HOSTS}, ${JUDGE_BY_GATES}, ` : ""}ranked AS (
  SELECT *, due_at <= now() AS due, due_at IS NULL AS again, run_id IS NULL AS counted, ${IS_HELD} AS is_held,
         run_id IS NOT NULL OR ${fitsMonth(`count(*) FILTER (WHERE run_id IS NULL${isWhole ? " AND passes AND host_passes" : ""}) OVER w`, "runs_left")} AS in_quota
    FROM ${isWhole ? `(${JUDGED_BY_GATES}) judged` : `owed WHERE ${IS_ASKED} AND flow_key IS NULL`}
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
       ${isWhole ? "j.tags IS NOT NULL OR v.flow_key IS NOT NULL OR v.is_watched" : "j.tags IS NOT NULL"} AS is_tagged, coalesce(v.trace, j.trace) AS trace${isWhole ? `, v.flow_key IS NOT NULL AS is_keyed, ${WAITED_FOR}, NULL::json AS called` : ""}
  FROM verdict v
 CROSS JOIN clock
  LEFT JOIN jobs j ON v.kind = 'granted' AND j.project_no = v.project_no AND j.environment = v.environment
                  AND j.region = v.region AND j.id = v.job_id
${isWhole ? " WHERE v.kind NOT IN ('parked', 'host_parked')" : ""} UNION ALL
SELECT 0, NULL, ${isWhole ? "0" : "(SELECT (hears OR EXISTS (SELECT FROM owed WHERE flow_key IS NOT NULL))::int FROM clock)"}, ${Array(13).fill("NULL").join(", ")}${isWhole ? `, NULL, NULL, (SELECT json_agg(json_build_array(project_no, environment, region, shard, job_id, attempt, ${epochMs("due_at")})) FROM ${calledLanes("host_called")} c)` : ""}
  FROM living`;

const IS_ASKED = "attempt = asked AND (due_at IS NOT NULL OR node_id = $1)";
const MAY_START = `due_at <= now() AND NOT (${IS_HELD})`;
/**
 * The kind of gate at which an attempt waited or still waits, if the attempt was due before the gate let it pass. An early
 * attempt that is due waits for a permit.
 */
const WAITED_FOR = `CASE WHEN v.kind = 'put_off' THEN 'flow'
            WHEN v.kind = 'host_put_off' THEN 'host'
            WHEN v.parked_host IS NULL AND v.due_at > v.parked_due_at AND NOT (v.kind = 'early' AND v.due)
            THEN CASE WHEN v.gate LIKE 'h%' THEN 'host' WHEN v.flow_key IS NOT NULL THEN 'flow' END END AS waited_for`;

const COUNTED =
  "SELECT project_no, count(*) FILTER (WHERE kind = 'granted' AND counted) AS runs FROM verdict GROUP BY project_no";

export const CLAIM = claimText(false);
export const CLAIM_WHOLE = claimText(true);
