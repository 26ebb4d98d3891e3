import {
  HOST_CAUSES,
  HOST_DOWN_ATTEMPTS_MIN,
  HOST_DOWN_SECONDS_MIN,
  HOST_STATES,
  PROBE_SECONDS,
} from "../../domain/host-state.ts";
import { HOME_REGION } from "../../domain/plan.ts";
import type { EventType } from "../../domain/webhook.ts";
import { eventTypeCode, HOSTS_WATCHED, regionCode } from "../database/codes.ts";
import { hostData } from "./event-data.ts";
import { tellOf } from "./owed-deliveries.ts";

/**
 * Hosts that are down, as parts of the statements that claim and settle. A project whose hosts are watched has a bit in its
 * flow (HOSTS_WATCHED), and its attempts go the long way. An attempt that is refused at a host that is down or opening stands
 * at the gate 'h' + host (open_jobs.gate), as at a flow key (flow-gates.ts). The row of target_hosts is locked behind those of
 * flow keys.
 *
 * While a host is down its oldest attempt is the probe, which is in its lane and due when the next probe is. While it opens,
 * the claims count the starts of each second of the ramp.
 */

const DOWN = HOST_STATES.indexOf("down");
const OPENING = HOST_STATES.indexOf("opening");
const BREAKER = HOST_CAUSES.indexOf("breaker");
export const HOST_CODES = { DOWN, OPENING, BREAKER, HAND: HOST_CAUSES.indexOf("hand") };

/** The most attempts of a region that are in their lane at once because of the ramp. */
const RAMP_HEADS = 256;
/** The ramp doubles at most this often: 32,768 starts in a second are as good as any number. */
const DOUBLINGS_MAX = 15;
export const HOST_KEY = "project_no, environment, host";
export const sameHost = (one: string, other: string): string =>
  `${one}.project_no = ${other}.project_no AND ${one}.environment = ${other}.environment AND ${one}.host = ${other}.host`;

/** How many starts a second of the ramp has. */
const startsOf = (second: string) => `(1 << least((${second}) / 10, ${DOUBLINGS_MAX}))`;
/** How many starts a host (t) has left in a `second` of its ramp, once `more` have started. */
export const startsLeftIn = (second: string, more: string) =>
  `(${startsOf(second)} - CASE WHEN t.second = ${second} THEN t.started ELSE 0 END - ${more})`;
export const secondAt = (at: string) => `greatest(floor(extract(epoch FROM ${at} - t.since)), 0)::int`;
export const callInRamp = (second: string, left: string, order: string) =>
  `call_gate(t.project_no, t.environment, 'h' || t.host,
           least(CASE WHEN ${left} > 0 THEN ${left} ELSE ${startsOf(`${second} + 1`)} END, ${RAMP_HEADS})::int${order},
           CASE WHEN ${left} <= 0 THEN t.since + (${second} + 1) * interval '1 s' END)`;

/**
 * Locks those hosts of claims that are down or opening. `host` stands behind `gate` (flow-gates.ts) and `item`, whose column
 * `host` is null if it is not known.
 */
export const LOCK_HOSTS_OF_CLAIMS = `host AS MATERIALIZED (
  SELECT g.host_place, g.ns, g.job_ids, t.*
    FROM (SELECT ${HOST_KEY}, row_number() OVER (ORDER BY ${HOST_KEY}) AS host_place, array_agg(n) AS ns, array_agg(job_id) AS job_ids
            FROM item WHERE host IS NOT NULL AND (SELECT count(*) FROM gate) >= 0
           GROUP BY ${HOST_KEY} ORDER BY ${HOST_KEY}) g
   CROSS JOIN LATERAL (
         SELECT t.* FROM target_hosts t
          WHERE t.project_no = ANY (ARRAY[g.project_no]) AND t.environment = g.environment AND t.host = g.host AND t.state IS NOT NULL
            FOR NO KEY UPDATE) t
)`;

/**
 * The judgement of a claim by hosts, behind `host`, `clock` and `asked` (with `may_start`). `host_placement` has all items at
 * such hosts. In a ramp an attempt from elsewhere, such as a flow key's queue, is judged by its place among the first RAMP_HEADS parked
 * ones. More may be parked, so none behind these passes.
 *
 * `at_host` is `asked` with `host_passes` and `host_place` (null at a host that is well). An attempt that does not pass is
 * parked, or due at `host_until`: the first one that is refused at a host without a probe is the probe (`probes`). A probe that
 * a retry by hand makes due before its time is put off again.
 */
export const JUDGE_BY_HOSTS = `host_state AS MATERIALIZED (
  SELECT t.*, n.second AS now_second, ${startsLeftIn("n.second", "0")} AS starts_left, h.ids, h.waits
    FROM host t
   CROSS JOIN clock
   CROSS JOIN LATERAL (SELECT ${secondAt("clock.at")} AS second) n
   CROSS JOIN LATERAL (
         SELECT array_agg(q.job_id ORDER BY q.due_at, q.job_id) AS ids, coalesce(bool_or(q.is_there), false) AS waits
           FROM (SELECT h.region, h.job_id, h.due_at, true AS is_there
                   FROM gate_heads(t.project_no, t.environment, 'h' || t.host, ${RAMP_HEADS} + cardinality(t.ns)) h
                  UNION ALL
                 SELECT a.region, a.job_id, coalesce(a.parked_due_at, a.due_at), false FROM asked a
                  WHERE a.job_id = ANY (t.job_ids) AND a.may_start AND a.gate IS DISTINCT FROM 'h' || t.host) q
          WHERE t.state = ${OPENING} AND q.due_at <= now() AND q.region <> ALL (ARRAY (SELECT r.region FROM held_regions r))) h
), host_placement AS MATERIALIZED (
  SELECT array_agg(a.n) AS ns, array_agg(t.host_place) AS places, array_agg(t.host) AS hosts, array_agg(t.state) AS states,
         array_agg(t.by) AS causes, array_agg(t.probe) AS probes, array_agg(t.next_probe_at) AS next_probes,
         array_agg(t.starts_left) AS starts_left, array_agg(t.since + (t.now_second + 1) * interval '1 s') AS next_seconds,
         array_agg(array_position(t.ids, a.job_id)) AS ranks, array_agg(NOT t.waits AND t.parked = 0) AS over
    FROM host_state t CROSS JOIN LATERAL unnest(t.ns, t.job_ids) AS a (n, job_id)
), at_host AS MATERIALIZED (
  SELECT j.*, CASE WHEN probes OR job_id = probe THEN greatest(next_probe_at, now())
                   WHEN host_state = ${OPENING} AND host_rank IS NOT NULL AND gate = 'h' || host THEN next_second END AS host_until
    FROM (SELECT *, NOT host_passes AND host_state = ${DOWN} AND cause = ${BREAKER} AND probe IS NULL
                    AND row_number() OVER (PARTITION BY host_place, host_passes ORDER BY coalesce(parked_due_at, due_at), job_id) = 1 AS probes
            FROM (SELECT o.*, p.places[x.at] AS host_place, p.hosts[x.at] AS host, p.states[x.at] AS host_state, p.causes[x.at] AS cause,
                         p.probes[x.at] AS probe, p.next_probes[x.at] AS next_probe_at, p.next_seconds[x.at] AS next_second,
                         p.ranks[x.at] AS host_rank,
                         x.at IS NULL OR NOT o.may_start
                         OR coalesce(CASE p.states[x.at] WHEN ${DOWN} THEN o.job_id = p.probes[x.at] AND p.next_probes[x.at] <= now()
                                          ELSE p.ranks[x.at] <= least(p.starts_left[x.at], ${RAMP_HEADS}) OR p.over[x.at] END, false) AS host_passes
                    FROM host_placement p
                   CROSS JOIN asked o
                   CROSS JOIN LATERAL (SELECT array_position(p.ns, o.n) AS at) x) placed_at_host) j
)`;

/**
 * The effects of a claim at hosts. TURN_AWAY stands behind `verdict` (of `at_host`, with the kinds `host_parked` and
 * `host_put_off`), CALL_HOSTS behind `done`. `host_called` has the attempts that became due. A ramp is over with the last start
 * of a parked attempt. A probe that its flow key keeps back is not sent: the next attempt that waits for the host becomes the
 * probe and is due at once, since nothing was learned about the host. If none waits, the next one that comes is the probe.
 */
export const TURN_AWAY = `turned_away AS (
  UPDATE open_jobs o
     SET due_at = v.until, parked_host = NULL, parked_due_at = coalesce(o.parked_due_at, o.due_at), gate = 'h' || v.host
    FROM (SELECT project_no, environment, region, job_id, host, CASE WHEN kind = 'host_put_off' THEN host_until END AS until
            FROM verdict WHERE kind IN ('host_parked', 'host_put_off')) v
   WHERE o.project_no = ANY (ARRAY[v.project_no]) AND o.environment = v.environment AND o.region = v.region AND o.job_id = v.job_id
  RETURNING 1
), turned_from_flow AS (
  -- Others of its flow key may pass.
  INSERT INTO gate_calls (project_no, environment, gate)
  SELECT DISTINCT project_no, environment, 'k' || flow_key FROM verdict
   WHERE kind IN ('host_parked', 'host_put_off') AND gate LIKE 'k%'
), at_hosts AS MATERIALIZED (
  SELECT host_place, count(*) FILTER (WHERE taken)::int AS starts, count(*) FILTER (WHERE kind = 'host_parked') AS parked,
         count(*) FILTER (WHERE kind = 'host_put_off' OR NOT taken AND kind NOT LIKE 'host%') AS stay,
         (array_agg(job_id) FILTER (WHERE probes AND kind LIKE 'host%'))[1] AS probe,
         (array_agg(job_id) FILTER (WHERE host_state = ${DOWN} AND host_passes AND kind IN ('parked', 'put_off')))[1] AS lost_probe
    FROM verdict WHERE host_place IS NOT NULL AND due GROUP BY host_place
)`;
export const CALL_HOSTS = `host_called AS MATERIALIZED (
  SELECT t.host_place, t.project_no, t.environment, c.*, true AS was_parked
    FROM done d
   CROSS JOIN at_hosts a
    JOIN host_state t USING (host_place)
   CROSS JOIN LATERAL ${callInRamp("t.now_second", "(t.starts_left - a.starts)", " + 0 * d.count::int")} c
   WHERE t.state = ${OPENING} AND t.parked + a.parked > 0
  UNION ALL
  SELECT t.host_place, t.project_no, t.environment, c.*
    FROM done d
   CROSS JOIN at_hosts a
    JOIN host_state t USING (host_place)
   CROSS JOIN LATERAL call_oldest(t.project_no, t.environment, 'h' || t.host, t.next_probe_at + 0 * d.count * interval '1 s') c
   WHERE a.lost_probe IS NOT NULL
), host_noted AS (
  UPDATE target_hosts t
     SET state = s.state, by = CASE WHEN s.state IS NOT NULL THEN t.by END, second = s.now_second, started = s.started, parked = s.parked,
         probe = s.probe
    FROM (SELECT n.*, CASE WHEN n.is_over THEN NULL ELSE n.was END AS state
            FROM (SELECT t.project_no, t.environment, t.host, t.now_second, t.state AS was,
                         CASE WHEN t.second = t.now_second THEN t.started ELSE 0 END + a.starts AS started, p.parked,
                         CASE WHEN a.lost_probe IS NOT NULL THEN p.next_probe ELSE coalesce(t.probe, a.probe) END AS probe,
                         t.state = ${OPENING} AND p.parked = 0 AND p.called = 0 AND a.stay = 0
                         AND a.starts >= coalesce(cardinality(t.ids), 0) AS is_over
                    FROM at_hosts a
                    JOIN host_state t USING (host_place)
                   CROSS JOIN LATERAL (
                         SELECT count(*) AS called, t.parked + a.parked - count(*) FILTER (WHERE c.was_parked) AS parked, (array_agg(c.job_id))[1] AS next_probe
                           FROM host_called c WHERE c.host_place = t.host_place) p) n
          OFFSET 0) s
   WHERE ${sameHost("t", "s")}
)`;

/**
 * Finds the hosts of settlements in watched projects, and the hosts whose probe ends, and locks their rows; a host may have
 * none yet. It stands behind `gate` and `item`.
 */
export const LOCK_HOSTS_OF_SETTLEMENTS = `host AS MATERIALIZED (
  SELECT g.project_no, g.environment, g.host, t.since, t.next_probe_at, t.failing_since, coalesce(t.parked, 0) AS parked, t.state, t.by,
         coalesce(t.failures, 0) AS failures, t.probe_seconds, t.probe, t.host IS NULL AS is_new
    FROM (SELECT DISTINCT project_no, environment, host
            FROM (SELECT i.project_no, i.environment, i.host FROM item i WHERE i.host IS NOT NULL AND i.project_no = ANY (${watched()})
                  UNION ALL
                  SELECT t.project_no, t.environment, t.host
                    FROM item i
                   CROSS JOIN LATERAL (
                         SELECT t.* FROM target_hosts t
                          WHERE t.project_no = i.project_no AND t.environment = i.environment AND t.probe = i.job_id OFFSET 0) t
                   WHERE i.project_no = ANY (${watched()})) named
           WHERE (SELECT count(*) FROM gate) >= 0
           ORDER BY 1, 2, 3) g
    LEFT JOIN LATERAL (
         SELECT t.* FROM target_hosts t
          WHERE t.project_no = ANY (ARRAY[g.project_no]) AND t.environment = g.environment AND t.host = g.host
            FOR NO KEY UPDATE) t ON true
)`;
function watched(): string {
  return `ARRAY (SELECT project_no FROM flow WHERE subscriptions & ${HOSTS_WATCHED} <> 0)`;
}

/** The shard of the project of a host where attempts have ended. A host that is parked by hand may be in a project without a lane. */
export const shardOfLanes = (host: string) =>
  `(SELECT shard FROM lanes l WHERE l.project_no = ${host}.project_no LIMIT 1)`;
/** The columns of an event about a host for tellOf. One statement may tell of the same host in many projects and environments. */
export const hostEvent = (type: EventType, host: string, shard: string) =>
  `concat_ws(' ', '${type}', ${host}.project_no, ${host}.environment, ${host}.host, ${host}.new_since) AS seed, ${host}.project_no, ${host}.environment,
         ${regionCode(HOME_REGION)}::smallint AS region, ${shard} AS shard, ${eventTypeCode(type)}::smallint AS type,
         NULL::uuid AS job_id, NULL::bytea AS trace, ${hostData(`${host}.host`, `${host}.new_since`, `${host}.parked`)} AS data`;

/**
 * The findings of a settlement about hosts, behind `host`, `attempt` (with `host` and `nobody`: whether it found nobody there,
 * null if unknown) and `done`. A series of attempts that found nobody, in the order of settlement, brings a host down. It lasts
 * from the first start to the last end that this statement settles, however late it is settled. The end of a probe opens the host
 * or plans the next probe.
 */
export const WATCH_HOSTS = `met AS MATERIALIZED (
  SELECT h.*, a.last_other, a.after_other, a.all_nobody, a.first_after, a.first_nobody, a.last_end, a.probe_ended, a.probe_met
    FROM host h
   CROSS JOIN LATERAL (
         SELECT max(n) FILTER (WHERE NOT nobody) AS last_other,
                count(*) FILTER (WHERE nobody AND n > m.other) AS after_other, count(*) FILTER (WHERE nobody) AS all_nobody,
                min(started_at) FILTER (WHERE nobody AND n > m.other) AS first_after, min(started_at) FILTER (WHERE nobody) AS first_nobody,
                max(started_at + duration_ms * interval '1 ms') FILTER (WHERE nobody AND n > m.other) AS last_end,
                bool_or(job_id = h.probe) AS probe_ended, bool_or(NOT nobody) FILTER (WHERE job_id = h.probe) AS probe_met
           FROM attempt a
          CROSS JOIN (SELECT coalesce(max(n) FILTER (WHERE NOT nobody), 0) AS other FROM attempt b
                       WHERE b.project_no = h.project_no AND b.environment = h.environment AND b.host = h.host) m
          WHERE a.project_no = h.project_no AND a.environment = h.environment AND (a.host = h.host OR a.job_id = h.probe)) a
), counted_hosts AS MATERIALIZED (
  SELECT m.*, least(CASE WHEN last_other IS NULL THEN failures + all_nobody ELSE after_other END, 30000)::smallint AS new_failures,
         CASE WHEN last_other IS NOT NULL THEN first_after WHEN failures = 0 THEN first_nobody ELSE failing_since END AS new_failing_since
    FROM met m
), judged_hosts AS MATERIALIZED (
  SELECT c.*, coalesce(state = ${DOWN} AND probe_ended AND probe_met, false) AS goes_up,
         coalesce(state = ${DOWN} AND probe_ended AND NOT coalesce(probe_met, false), false) AS probes_again,
         coalesce(state IS DISTINCT FROM ${DOWN} AND new_failures >= ${HOST_DOWN_ATTEMPTS_MIN}
                  AND new_failing_since <= last_end - interval '${HOST_DOWN_SECONDS_MIN} s'
                  AND (SELECT park_failing_hosts FROM projects p WHERE p.no = c.project_no), false) AS goes_down
    FROM counted_hosts c
), planned AS MATERIALIZED (
  SELECT j.*, CASE WHEN goes_up OR goes_down THEN now() ELSE since END AS new_since,
         CASE WHEN goes_down THEN ${PROBE_SECONDS.first}
              WHEN probes_again AND probe_met IS NOT NULL THEN least(probe_seconds * 2, ${PROBE_SECONDS.max}) ELSE probe_seconds END AS new_probe_seconds
    FROM judged_hosts j
), host_called AS MATERIALIZED (
  SELECT p.project_no, p.environment, p.host, c.*, true AS was_parked
    FROM done d
   CROSS JOIN planned p
   CROSS JOIN LATERAL call_gate(p.project_no, p.environment, 'h' || p.host, 1 + 0 * d.count::int, NULL) c
   WHERE p.goes_up
  UNION ALL
  SELECT p.project_no, p.environment, p.host, c.*
    FROM done d
   CROSS JOIN planned p
   CROSS JOIN LATERAL call_oldest(p.project_no, p.environment, 'h' || p.host, now() + (p.new_probe_seconds + 0 * d.count) * interval '1 s') c
   WHERE p.probes_again OR p.goes_down AND p.parked > 0
), next_hosts AS MATERIALIZED (
  SELECT p.is_new, p.project_no, p.environment, p.host, coalesce(new_since, now()) AS since,
         CASE WHEN goes_down OR probes_again THEN now() + new_probe_seconds * interval '1 s' WHEN NOT goes_up THEN next_probe_at END AS next_probe_at,
         CASE WHEN NOT goes_up AND NOT goes_down THEN new_failing_since END AS failing_since, parked - c.called AS parked, p.state AS was,
         CASE WHEN goes_down THEN ${DOWN} WHEN goes_up THEN CASE WHEN parked > 0 THEN ${OPENING} END ELSE state END::smallint AS state,
         CASE WHEN goes_down OR goes_up THEN ${BREAKER} ELSE by END::smallint AS by, CASE WHEN goes_up OR goes_down THEN 0 ELSE new_failures END::smallint AS failures,
         coalesce(new_probe_seconds, 0)::smallint AS probe_seconds, CASE WHEN goes_down OR goes_up OR probes_again THEN c.probe ELSE p.probe END AS probe
    FROM planned p
   CROSS JOIN LATERAL (
         SELECT count(*) FILTER (WHERE was_parked) AS called, CASE WHEN NOT p.goes_up THEN (array_agg(job_id))[1] END AS probe
           FROM host_called c WHERE ${sameHost("c", "p")}) c
   WHERE goes_up OR goes_down OR probes_again OR new_failures <> failures OR new_failing_since IS DISTINCT FROM failing_since
), noted_hosts AS (
  UPDATE target_hosts t
     SET since = n.since, next_probe_at = n.next_probe_at, failing_since = n.failing_since, parked = n.parked,
         second = CASE WHEN n.was = n.state THEN t.second ELSE 0 END, started = CASE WHEN n.was = n.state THEN t.started ELSE 0 END,
         state = n.state, by = n.by, failures = n.failures, probe_seconds = n.probe_seconds, probe = n.probe
    FROM (SELECT * FROM next_hosts WHERE NOT is_new OFFSET 0) n
   WHERE ${sameHost("t", "n")}
), made_hosts AS (
  -- The row may have been made since this statement began. Then a request has parked the host, or others have failed there too.
  INSERT INTO target_hosts AS t (${HOST_KEY}, since, next_probe_at, failing_since, parked, state, by, failures, probe_seconds)
  SELECT ${HOST_KEY}, since, next_probe_at, failing_since, parked, state, by, failures, probe_seconds FROM next_hosts WHERE is_new
   ORDER BY ${HOST_KEY}
      ON CONFLICT (${HOST_KEY}) DO UPDATE
     SET since = excluded.since, next_probe_at = excluded.next_probe_at, state = excluded.state, by = excluded.by,
         failing_since = CASE WHEN excluded.state IS NULL THEN least(t.failing_since, excluded.failing_since) END,
         failures = CASE WHEN excluded.state IS NULL THEN least(t.failures + excluded.failures, 30000) ELSE 0 END,
         probe_seconds = excluded.probe_seconds
   WHERE t.state IS NULL
), host_told AS MATERIALIZED (
  SELECT ${hostEvent("host.down", "p", shardOfLanes("p"))} FROM planned p WHERE p.goes_down
  UNION ALL
  SELECT ${hostEvent("host.up", "p", shardOfLanes("p"))} FROM planned p WHERE p.goes_up
), ${tellOf("host_told", { madeLanes: "heard", name: "host_" })}`;
