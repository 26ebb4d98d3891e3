import { type Database, epochMs } from "../database/database.ts";
import { type CalledRow, readCalled } from "./called.ts";
import type { Claim, Claimed, OnCalled } from "./claim.ts";
import {
  CLAIMED_ITEMS,
  ORDINARY_PROJECTS,
  type OrdinaryRow,
  ordinaryClaims,
  readOrdinary,
} from "./claim-ordinary.ts";
import { byRegion, calledLanes, HEADS, keyHashOf, roomOf, sameKey, USED_AT } from "./flow-gates.ts";
import { countRuns, countUsage } from "./month.ts";
import { countByEnvironment, TAKE_FREE_PERMITS } from "./permits.ts";
import { SWEEP_LAG_MS } from "./sweep.ts";

/**
 * The short way of a claim for jobs with a flow key. In projects that are ordinary by claim-ordinary.ts it grants attempts that
 * are due, stand in their key's queue, and are among the first that the key has places for. It parks those that have as many
 * before them in their own region, and tells which were gone before it began. It leaves the rest to claimAttempts, unchanged:
 * attempts to be put off, attempts that are parked or have their place already, jobs without a key, and jobs of a key that is
 * paused, has a rate, or has many free places while others are parked. For each claim that it answers, claimAttempts would have
 * answered the same and left the same rows.
 *
 * One self-committing statement, with the locks of claimAttempts in their order. A job's key never changes, so the key is read
 * before the job is locked. If anything else has changed by then, the job is left. count_ahead counts the attempts before the
 * job, once the keys are locked. It counts regions without nodes as well, so a job that only these keep back is left. For the
 * rest see claim-ordinary.ts.
 *
 * The count begins at the key's low-water mark, queue_since, as sweeps begin at theirs (sweep.ts): entries of started attempts
 * stay in the index until a vacuum. A claim that finds nothing before a job moves the mark to that job's due time, or to
 * SWEEP_LAG_MS ago, whichever is earlier. No attempt that is due before that comes to the queue anew. One may come back to it:
 * from a gate of hosts or of a pause, which moves the mark back (PASS_GATES), or released by a node, of which gate_calls tells
 * (parked.ts). A job that is due before the mark, since the clock was set back, makes the statement count from the beginning.
 *
 * Answers come in the order of the claims; a claim that is left has null. A dead node is granted nothing. `onCalled` gets the
 * attempts that may start next, if others than these were parked.
 */
export async function claimKeyed(
  db: Database,
  nodeId: number,
  claims: readonly Claim[],
  onCalled: OnCalled = () => undefined,
): Promise<(Claimed | null)[]> {
  const { values, ordered } = ordinaryClaims(nodeId, claims);
  const rows = await db.run<KeyedRow>("claim_keyed", CLAIM_KEYED, values);
  const granted = rows.filter((row) => row.is_granted);
  const answers: (Claimed | null)[] = readOrdinary(claims.length, ordered, granted).map(
    (attempt) => attempt && { kind: "granted", attempt },
  );
  for (const { n, is_granted, called } of rows) {
    const claimed = ordered[n - 1];
    if (claimed !== undefined && !is_granted) answers[claimed.index] = { kind: "gone" };
    if (called !== null) onCalled(called.flatMap(readCalled));
  }
  return answers;
}

/** A claim that is answered: granted or gone. With `n` 0, the attempts that were called. */
type KeyedRow = OrdinaryRow & { is_granted: boolean; called: CalledRow[] | null };

const IS_AT_GATE =
  "coalesce(o.gate = 'k' || o.flow_key AND o.due_at <= now() AND o.parked_host IS NULL, false)";
/** The attempt is not owed and never will be: its job is over or owes a later attempt, or another node has the attempt. */
const IS_GONE = "o.attempt IS NULL OR o.attempt > a.attempt OR o.attempt = a.attempt AND o.node_id <> $1";

const CLAIM_KEYED = `
WITH flow AS MATERIALIZED (
  SELECT ${ORDINARY_PROJECTS} AS projects OFFSET 0
), found AS MATERIALIZED (
  SELECT a.n, a.environment, a.region, a.job_id, a.attempt, a.run_id, flow.projects[a.place] AS project_no, o.flow_key, o.due_at, o.parked_due_at,
         o.gate, ${IS_AT_GATE} AS is_at_gate, ${IS_GONE} AS is_gone
    FROM flow
   CROSS JOIN ${CLAIMED_ITEMS} a
    LEFT JOIN LATERAL (
         SELECT o.flow_key, o.due_at, o.parked_due_at, o.gate, o.parked_host, o.attempt, o.node_id FROM open_jobs o
          WHERE o.project_no = flow.projects[a.place] AND o.environment = a.environment AND o.region = a.region AND o.job_id = a.job_id
         OFFSET 0) o ON true
   WHERE flow.projects[a.place] IS NOT NULL AND NOT EXISTS (SELECT FROM held_regions)
), gate AS MATERIALIZED (
  SELECT g.*, k.in_use, k.concurrency, k.rate_count, k.paused, k.free, CASE WHEN g.first_due_at >= k.queue_since THEN k.queue_since ELSE '-infinity' END AS since
    FROM (SELECT project_no, environment, flow_key, array_agg(n) AS ns, array_agg(region) AS regions, array_agg(job_id) AS job_ids,
                 array_agg(parked_due_at) AS due_ats, min(parked_due_at) AS first_due_at
            FROM found WHERE is_at_gate GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) g
   CROSS JOIN LATERAL (
         SELECT k.concurrency - k.in_use AS free, k.concurrency, k.in_use, k.rate_count, k.paused, k.waiting, k.queue_since FROM flow_keys k
          WHERE k.project_no = ANY (ARRAY[g.project_no]) AND k.environment = g.environment AND k.flow_key = g.flow_key
            FOR NO KEY UPDATE) k
   WHERE k.rate_count IS NULL AND NOT k.paused AND (coalesce(k.free <= ${HEADS}, false) OR k.waiting = '{0,0,0,0}')
), clock AS MATERIALIZED (
  SELECT at, at::date AS day, date_trunc('month', at)::date AS month
    FROM (SELECT clock_timestamp() AS at WHERE (SELECT count(*) FROM gate) >= 0 OFFSET 0) read
), ahead AS MATERIALIZED (
  SELECT ns, concurrencies, in_uses, frees, heres, everywheres
    FROM (SELECT array_agg(a.n) AS ns, array_agg(g.concurrency) AS concurrencies, array_agg(g.in_use) AS in_uses, array_agg(g.project_no) AS projects, array_agg(g.environment) AS environments,
                 array_agg('k' || g.flow_key) AS gates, array_agg(a.region) AS regions, array_agg(a.due_at) AS due_ats,
                 array_agg(a.job_id) AS job_ids, array_agg(g.free) AS frees, array_agg(g.since) AS sinces
            FROM gate g CROSS JOIN LATERAL unnest(g.ns, g.regions, g.job_ids, g.due_ats) AS a (n, region, job_id, due_at)) asked
   CROSS JOIN LATERAL (
         SELECT array_agg(c.here) AS heres, array_agg(c.everywhere) AS everywheres
           FROM count_ahead(projects, environments, gates, regions, due_ats, job_ids, frees, sinces) c) counted
   WHERE ns IS NOT NULL
), answered AS (
  UPDATE open_jobs o
     SET due_at = NULL, run_id = CASE WHEN i.starts THEN i.run_id END, node_id = CASE WHEN i.starts THEN $1 END,
         started_at = CASE WHEN i.starts THEN i.at END, has_place = CASE WHEN i.starts THEN true END, gate = CASE WHEN NOT i.starts THEN o.gate END
    FROM (SELECT i.*, clock.at, a.concurrencies[x.at] AS concurrency, a.in_uses[x.at] AS in_use, a.everywheres[x.at] AS before,
                 a.frees[x.at] IS NULL OR a.everywheres[x.at] < a.frees[x.at] AS starts
            FROM clock
           CROSS JOIN ahead a
           CROSS JOIN found i
           CROSS JOIN LATERAL (SELECT array_position(a.ns, i.n) AS at OFFSET 0) x
           -- A clock that was set back since the statement began might be in a month before the flows'.
           WHERE x.at IS NOT NULL AND clock.at >= now()
             AND (a.frees[x.at] IS NULL OR a.everywheres[x.at] < a.frees[x.at] OR a.heres[x.at] >= a.frees[x.at])
          OFFSET 0) i
   WHERE o.project_no = ANY (ARRAY[i.project_no]) AND o.environment = i.environment AND o.region = i.region
     AND o.job_id = i.job_id AND o.attempt = i.attempt AND o.run_id IS NULL AND coalesce(o.due_at = i.due_at, false)
     AND coalesce(o.gate = i.gate AND o.parked_due_at = i.parked_due_at, false)
  RETURNING i.n, i.starts, i.flow_key, i.concurrency, i.in_use, i.due_at, i.before, o.project_no, o.environment, o.region, o.job_id, o.attempt,
            o.attempts_allowed, o.parked_due_at, o.started_at, o.trace
), taken AS MATERIALIZED (
  SELECT * FROM answered WHERE starts
), called AS MATERIALIZED (
  -- Others may stand before what was parked: those whose creation has begun before it and ended after it.
  SELECT k.project_no, k.environment, k.flow_key, h.*
    FROM (SELECT project_no, environment, flow_key, concurrency, in_use + count(*) FILTER (WHERE starts) AS in_use, false AS paused, NULL::int AS rate_count
            FROM answered GROUP BY 1, 2, 3, concurrency, in_use
          HAVING bool_or(NOT starts)) k
   CROSS JOIN LATERAL call_gate(k.project_no, k.environment, 'k' || k.flow_key, ${roomOf("k.in_use")}, NULL) h
   WHERE k.in_use < k.concurrency
), noted AS (
  UPDATE flow_keys k
     SET used_at = ${USED_AT}, in_use = k.in_use + s.places, started_at = '{}', started = '{}',
         waiting = ${byRegion((region) => `k.waiting[${region + 1}] + s.come[${region + 1}]`)},
         queue_since = CASE WHEN s.head_due_at IS NULL THEN k.queue_since ELSE least(s.head_due_at, now() - interval '${SWEEP_LAG_MS} ms') END
    FROM (SELECT project_no, environment, flow_key, sum(places)::int AS places, min(head_due_at) AS head_due_at,
                 ${byRegion((region) => `coalesce(sum(comes) FILTER (WHERE region = ${region}), 0)`)} AS come
            FROM (SELECT project_no, environment, flow_key, region, starts::int AS places, (NOT starts)::int AS comes,
                         CASE WHEN starts AND before = 0 AND concurrency IS NOT NULL THEN parked_due_at END AS head_due_at
                    FROM answered
                   UNION ALL
                  SELECT project_no, environment, flow_key, region, 0, -1, NULL FROM called) changes
           GROUP BY 1, 2, 3 OFFSET 0) s
   WHERE ${sameKey("k", "s")}
), counted AS (
  UPDATE flows f
     SET ${TAKE_FREE_PERMITS},
         ${countRuns("c.development + c.production")}
    FROM ${countByEnvironment("taken")}
   CROSS JOIN clock
   WHERE f.project_no = c.project_no
), ${countUsage("taken")}
SELECT t.n::int AS n, true AS is_granted, t.attempts_allowed, ${epochMs("CASE WHEN t.attempt = 1 THEN j.run_at ELSE t.parked_due_at END")} AS scheduled_at,
       ${epochMs("t.started_at")} AS started_at, j.target_url, j.payload, j.schedule_id, j.max_attempts, j.base_seconds,
       j.cap_seconds, true AS is_tagged, true AS is_keyed, coalesce(t.trace, j.trace) AS trace,
       CASE WHEN t.due_at > t.parked_due_at THEN 'flow' END AS waited_for, ${keyHashOf("t.flow_key")} AS key_hash, t.concurrency AS key_places, NULL::json AS called
  FROM taken t
  LEFT JOIN jobs j ON j.project_no = t.project_no AND j.environment = t.environment AND j.region = t.region AND j.id = t.job_id
 UNION ALL
SELECT n::int, false, ${Array(15).fill("NULL").join(", ")}, NULL FROM (SELECT n FROM answered WHERE NOT starts UNION ALL SELECT n FROM found WHERE is_gone) gone
 UNION ALL
SELECT 0, false, ${Array(15).fill("NULL").join(", ")}, c.rows
  FROM (SELECT json_agg(json_build_array(project_no, environment, region, shard, job_id, attempt, ${epochMs("due_at")})) AS rows FROM ${calledLanes()} c) c
 WHERE c.rows IS NOT NULL`;
