import { type Database, epochMs } from "../database/database.ts";
import type { Claim, GrantedAttempt } from "./claim.ts";
import {
  CLAIMED_ITEMS,
  ORDINARY_PROJECTS,
  type OrdinaryRow,
  ordinaryClaims,
  readOrdinary,
} from "./claim-ordinary.ts";
import { HEADS, sameKey, USED_AT } from "./flow-gates.ts";
import { countRuns } from "./month.ts";
import { countByEnvironment, TAKE_FREE_PERMITS } from "./permits.ts";
import { SWEEP_LAG_MS } from "./sweep.ts";

/**
 * The short way of a claim for jobs with a flow key. In projects that are ordinary by claim-ordinary.ts it grants attempts that
 * are due, stand in their key's queue, and are among the first that the key has places for. It leaves the rest to
 * claimAttempts, unchanged: attempts to be parked or put off, attempts that have their place already, jobs without a key, and
 * jobs of a key that is paused, has a rate, or would have to call others now. For each claim that it grants, claimAttempts
 * would have granted the same and left the same rows.
 *
 * One self-committing statement, with the locks of claimAttempts in their order. A job's key never changes, so the key is read
 * before the job is locked. If anything else has changed by then, the job is left. count_before counts the attempts before the
 * job, once the keys are locked. It counts regions without nodes as well, so a job that only these keep back is left. For the
 * rest see claim-ordinary.ts.
 *
 * The count begins at the key's low-water mark, queue_since, as sweeps begin at theirs (sweep.ts): entries of started attempts
 * stay in the index until a vacuum. A claim that finds nothing before a job moves the mark to that job's due time, or to
 * SWEEP_LAG_MS ago, whichever is earlier. No attempt that is due before that comes to the queue anew. One may come back to it:
 * from a gate of hosts or of a pause, which moves the mark back (PASS_GATES), or released by a node, of which gate_calls tells
 * (parked.ts). A job that is due before the mark, since the clock was set back, makes the statement count from the beginning.
 *
 * Answers come in the order of the claims; a claim that is left has null. A dead node is granted nothing.
 */
export async function claimKeyed(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
): Promise<(GrantedAttempt | null)[]> {
  const { values, ordered } = ordinaryClaims(nodeId, claims);
  const rows = await db.run<OrdinaryRow>("claim_keyed", CLAIM_KEYED, values);
  return readOrdinary(claims.length, ordered, rows);
}

const CLAIM_KEYED = `
WITH flow AS MATERIALIZED (
  SELECT ${ORDINARY_PROJECTS} AS projects OFFSET 0
), named AS MATERIALIZED (
  SELECT a.*, o.*
    FROM flow
   CROSS JOIN ${CLAIMED_ITEMS} a
   CROSS JOIN LATERAL (
         SELECT o.project_no, o.flow_key, o.due_at, o.parked_due_at, o.gate, o.parked_host FROM open_jobs o
          WHERE o.project_no = flow.projects[a.place] AND o.environment = a.environment AND o.region = a.region AND o.job_id = a.job_id
         OFFSET 0) o
   WHERE flow.projects[a.place] IS NOT NULL AND NOT EXISTS (SELECT FROM held_regions)
     AND o.gate = 'k' || o.flow_key AND o.due_at <= now() AND o.parked_host IS NULL
), gate AS MATERIALIZED (
  SELECT g.*, k.free, CASE WHEN g.first_due_at >= k.queue_since THEN k.queue_since ELSE '-infinity' END AS since
    FROM (SELECT project_no, environment, flow_key, array_agg(n) AS ns, array_agg(job_id) AS job_ids, array_agg(parked_due_at) AS due_ats,
                 min(parked_due_at) AS first_due_at
            FROM named GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
   CROSS JOIN LATERAL (
         SELECT k.concurrency - k.in_use AS free, k.rate_count, k.paused, k.waiting, k.queue_since FROM flow_keys k
          WHERE k.project_no = ANY (ARRAY[g.project_no]) AND k.environment = g.environment AND k.flow_key = g.flow_key
            FOR NO KEY UPDATE) k
   WHERE k.rate_count IS NULL AND NOT k.paused AND (coalesce(k.free <= ${HEADS}, false) OR k.waiting = '{0,0,0,0}')
), clock AS MATERIALIZED (
  SELECT at, at::date AS day, date_trunc('month', at)::date AS month
    FROM (SELECT clock_timestamp() AS at WHERE (SELECT count(*) FROM gate) >= 0 OFFSET 0) read
), first AS MATERIALIZED (
  SELECT ns, frees, count_before(projects, environments, gates, due_ats, job_ids, frees, sinces) AS befores
    FROM (SELECT array_agg(a.n) AS ns, array_agg(g.project_no) AS projects, array_agg(g.environment) AS environments,
                 array_agg('k' || g.flow_key) AS gates, array_agg(a.due_at) AS due_ats, array_agg(a.job_id) AS job_ids,
                 array_agg(g.free) AS frees, array_agg(g.since) AS sinces
            FROM gate g CROSS JOIN LATERAL unnest(g.ns, g.job_ids, g.due_ats) AS a (n, job_id, due_at)) asked
   WHERE ns IS NOT NULL
), taken AS (
  UPDATE open_jobs o
     SET due_at = NULL, run_id = i.run_id, node_id = $1, started_at = i.at, has_place = true, gate = NULL
    FROM (SELECT i.*, clock.at, f.befores[x.at] AS before
            FROM clock
           CROSS JOIN first f
           CROSS JOIN named i
           CROSS JOIN LATERAL (SELECT array_position(f.ns, i.n) AS at) x
           -- A clock that was set back since the statement began might be in a month before the flows'.
           WHERE x.at IS NOT NULL AND (f.frees[x.at] IS NULL OR f.befores[x.at] < f.frees[x.at]) AND clock.at >= now()
          OFFSET 0) i
   WHERE o.project_no = ANY (ARRAY[i.project_no]) AND o.environment = i.environment AND o.region = i.region
     AND o.job_id = i.job_id AND o.attempt = i.attempt AND o.run_id IS NULL AND coalesce(o.due_at = i.due_at, false)
     AND coalesce(o.gate = i.gate AND o.parked_due_at = i.parked_due_at, false)
  RETURNING i.n, i.flow_key, i.due_at, i.before, o.project_no, o.environment, o.region, o.job_id, o.attempt, o.attempts_allowed,
            o.parked_due_at, o.started_at, o.trace
), noted AS (
  UPDATE flow_keys k
     SET used_at = ${USED_AT}, in_use = k.in_use + s.places, started_at = '{}', started = '{}',
         queue_since = CASE WHEN s.head_due_at IS NULL THEN k.queue_since ELSE least(s.head_due_at, now() - interval '${SWEEP_LAG_MS} ms') END
    FROM (SELECT project_no, environment, flow_key, count(*)::int AS places, min(parked_due_at) FILTER (WHERE before = 0) AS head_due_at
            FROM taken GROUP BY 1, 2, 3 OFFSET 0) s
   WHERE ${sameKey("k", "s")}
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
       j.cap_seconds, true AS is_tagged, true AS is_keyed, coalesce(t.trace, j.trace) AS trace,
       CASE WHEN t.due_at > t.parked_due_at THEN 'flow' END AS waited_for
  FROM taken t
  LEFT JOIN jobs j ON j.project_no = t.project_no AND j.environment = t.environment AND j.region = t.region AND j.id = t.job_id`;
