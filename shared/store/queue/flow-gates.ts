import { REGIONS } from "../../domain/scope.ts";
import { ALL_REGIONS } from "../database/codes.ts";
import { REAL_NOW } from "../database/database.ts";

/**
 * The gates of flow keys, as parts of the statements that create, claim and settle. A key's row of flow_keys is locked before
 * any of its jobs, so its limits hold over all nodes and regions.
 *
 * An attempt of a key stands at the gate 'k' + key (open_jobs.gate) until it starts, in the order of `parked_due_at` (when it
 * was due) and then of ids. It is in its lane or parked. In its lane its due_at is set, and sweeps find it. A parked one is
 * known only to its row and the gate's index. An attempt that is due is parked while it cannot start. In each region the first
 * of the queue that free places would let start, up to HEADS, are always in their lane. A statement that frees places, or takes
 * one of these attempts away, calls the next by call_gate. A statement without the key's lock writes a row of gate_calls
 * instead (gate-calls.ts). So sweeps and other keys do not meet the attempts that wait.
 */

/** How many attempts of a region are in their lane at once because of free places. A hop from call to claim takes some milliseconds. */
export const HEADS = 32;
/** More than any number of places or starts. */
const NO_END = 1_000_000;
/** Up to this many starts in a window are remembered one by one. More starts are remembered by this many parts of the window. */
const STARTS_REMEMBERED = 64;
/**
 * How long an attempt is put off if only an earlier one of another region keeps it from starting: a tenth of the time for which it has
 * waited, within these bounds.
 */
const TURN_MS = { min: 100, max: 1_000 };

/** When a key (k) was last used, to the hour. used_at is indexed, and most updates are to leave the index alone. */
export const USED_AT = "CASE WHEN k.used_at < now() - interval '1 hour' THEN now() ELSE k.used_at END";

/** A number by which a message names a key (of a row or of null), since messages hold no keys. Few keys have the same. */
export const keyHashOf = (key: string): string => `(hashtext(${key}) & 2147483647)`;

const KEY = "project_no, environment, flow_key";
const WINDOW = "k.rate_seconds * interval '1 s'";
export const sameKey = (one: string, other: string): string =>
  `${one}.project_no = ${other}.project_no AND ${one}.environment = ${other}.environment AND ${one}.flow_key = ${other}.flow_key`;

/**
 * Locks the keys of items: `named` and `gate` stand behind `item` (n, project_no, environment, region, job_id) and `flow`. A
 * job's key never changes, so the key is read before the job is locked. `ns` and `job_ids` are the items of a key.
 */
export const LOCK_GATES = `named AS MATERIALIZED (
  SELECT i.n, i.project_no, i.environment, i.region, i.job_id, o.flow_key
    FROM item i
   CROSS JOIN LATERAL (
         SELECT o.flow_key FROM open_jobs o
          WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.region = i.region AND o.job_id = i.job_id OFFSET 0) o
   WHERE o.flow_key IS NOT NULL
), gate AS MATERIALIZED (
  SELECT g.place, g.ns, g.job_ids, g.regions, k.*, k.concurrency IS NOT NULL OR k.rate_count IS NOT NULL OR k.paused AS is_limited
    FROM (SELECT ${KEY}, row_number() OVER (ORDER BY ${KEY}) AS place, array_agg(n) AS ns, array_agg(job_id) AS job_ids,
                 array_agg(DISTINCT region) AS regions
            FROM named WHERE (SELECT count(*) FROM flow) > 0
           GROUP BY ${KEY} ORDER BY ${KEY}) g
   CROSS JOIN LATERAL (
         SELECT k.* FROM flow_keys k
          WHERE k.project_no = ANY (ARRAY[g.project_no]) AND k.environment = g.environment AND k.flow_key = g.flow_key
            FOR NO KEY UPDATE) k
)`;

/**
 * The clock once all flows, keys and hosts (host-gates.ts) are locked. A condition counts these, since Postgres skips a count
 * for a column that is not read.
 */
export const CLOCK_BEHIND_GATES = `clock AS MATERIALIZED (
  SELECT at, at::date AS day, date_trunc('month', at)::date AS month
    FROM (SELECT clock_timestamp() AS at
           WHERE (SELECT count(*) FROM (SELECT FROM flow UNION ALL SELECT FROM gate UNION ALL SELECT FROM host) all_locked) >= 0) read
)`;

/** The starts of a key (k) that are within its window at `at`. A start after `at` was noted before the clock was set back. */
const startsWithin = (at: string) => `(
           SELECT least(s.at, ${at}) AS at, s.n FROM unnest(k.started_at, k.started) AS s (at, n)
            WHERE s.at > ${at} - ${WINDOW})`;
/** How many more attempts of a key (k) may start at `at`. */
export const startsLeft = (at: string): string => `CASE WHEN k.rate_count IS NULL THEN ${NO_END}
              ELSE k.rate_count - (SELECT coalesce(sum(n), 0) FROM ${startsWithin(at)} w) END::int`;
/** When the first `count` starts of a key (k) have left its window; null if there are fewer. */
export const startsGoneAt = (at: string, count: string): string => `(
         SELECT min(g.at) + ${WINDOW} FROM (SELECT w.at, sum(w.n) OVER (ORDER BY w.at) AS gone FROM ${startsWithin(at)} w) g
          WHERE g.gone >= ${count})`;
/**
 * The instants (or numbers) of a key's (k) starts after `count` more at `at`. Starts in one part of the window count as the
 * last of them.
 */
const startsWith = (
  at: string,
  count: string,
  what: "at" | "n",
) => `CASE WHEN k.rate_count IS NULL THEN '{}' ELSE (
         SELECT coalesce(array_agg(m.${what} ORDER BY m.at), '{}')
           FROM (SELECT max(e.at) AS at, sum(e.n)::int AS n
                   FROM (SELECT * FROM ${startsWithin(at)} w UNION ALL SELECT ${at}, (${count})::int WHERE ${count} > 0) e
                  GROUP BY CASE WHEN k.rate_count <= ${STARTS_REMEMBERED} THEN extract(epoch FROM e.at)
                                ELSE floor(extract(epoch FROM e.at) * ${STARTS_REMEMBERED} / k.rate_seconds) END) m) END`;

/** How many attempts of a key's (k) queue are to be in the lane of each region, with `inUse` places in use. */
export const roomOf = (inUse: string): string =>
  `CASE WHEN k.paused THEN 0 ELSE greatest(least(coalesce(k.concurrency - (${inUse}), ${NO_END}), coalesce(k.rate_count, ${HEADS}), ${HEADS}), 0) END::int`;
/** How many more places of a key (k) may be taken. Less than none are left if the limit was lowered. */
export const placesLeft = `CASE WHEN k.paused THEN 0 ELSE coalesce(k.concurrency - k.in_use, ${NO_END}) END::int`;

/** Regions in which nothing starts. Attempts that are due there do not keep others waiting. */
const HELD = "ARRAY (SELECT h.region FROM held_regions h)";
/** Regions in which no delivery node has given a sign of life for 10 s. */
export const WITHOUT_NODES = `ARRAY (
                     SELECT r.region FROM unnest(${ALL_REGIONS}::smallint[]) AS r (region)
                      WHERE NOT EXISTS (SELECT FROM nodes n WHERE n.kind = 'delivery' AND NOT n.dead AND r.region = ANY (n.regions)
                                           AND n.seen_at > ${REAL_NOW} - interval '10 s'))`;

/**
 * The facts by which a claim judges, behind `gate`, `clock` and `at_host` (host-gates.ts). `state` has each key with its places
 * and starts left and the first attempts of its queue. `ranks` are their places over all regions among those that are due and
 * could start; `region_ranks` are their places in their region. Attempts that a host lets pass now are among them, though they
 * stand at the host's gate. `placement` has all items at once.
 */
export const JUDGE_BY_GATES = `state AS MATERIALIZED (
  SELECT k.*, ${placesLeft} AS free, ${startsLeft("clock.at")} AS starts_left, ${roomOf("k.in_use")} AS room, h.ids, h.ranks, h.region_ranks
    FROM gate k
   CROSS JOIN clock
   CROSS JOIN LATERAL (
         SELECT array_agg(r.job_id) AS ids, array_agg(r.rank) AS ranks, array_agg(r.region_rank) AS region_ranks
           FROM (SELECT q.job_id, row_number() OVER (PARTITION BY q.region ORDER BY q.due_at, q.job_id) AS region_rank,
                        CASE WHEN q.can_start THEN count(*) FILTER (WHERE q.can_start) OVER (ORDER BY q.due_at, q.job_id) END AS rank
                   FROM (SELECT h.*, h.due_at <= now() AND h.region <> ALL (${HELD})
                                     AND (h.region = ANY (k.regions) OR h.region <> ALL (${WITHOUT_NODES})) AS can_start
                           FROM (SELECT g.region, g.job_id, g.due_at
                                   FROM gate_heads(k.project_no, k.environment, 'k' || k.flow_key, ${HEADS} + cardinality(k.ns)) g
                                  UNION ALL
                                 SELECT a.region, a.job_id, a.parked_due_at FROM at_host a
                                  WHERE a.job_id = ANY (k.job_ids) AND a.gate LIKE 'h%' AND a.has_place IS NULL AND a.host_passes AND a.may_start) h
                          WHERE k.is_limited) q) r) h
), placement AS MATERIALIZED (
  SELECT array_agg(a.n) AS ns, array_agg(k.place) AS places, array_agg(k.is_limited) AS limited, array_agg(k.paused) AS paused,
         array_agg(k.free) AS free, array_agg(k.starts_left) AS starts_left, array_agg(k.room) AS room,
         array_agg(k.ranks[array_position(k.ids, a.job_id)]) AS ranks,
         array_agg(k.region_ranks[array_position(k.ids, a.job_id)]) AS region_ranks
    FROM state k CROSS JOIN LATERAL unnest(k.ns, k.job_ids) AS a (n, job_id)
)`;

/**
 * Judges `at_host` by its keys. Adds `passes`, and `flow_place`, the place of the key in `state` (null without one). An attempt
 * that has its place already needs only a start, and comes before the others. An attempt that does not pass is to be parked
 * (`parks`), or is due at `flow_until`.
 */
export const JUDGED_BY_GATES = `
  SELECT j.*, NOT passes AND (is_paused OR NOT coalesce(has_place, false) AND NOT coalesce(region_rank <= flow_room, false)) AS parks,
         CASE WHEN passes THEN NULL
              WHEN has_place OR rank <= flow_free
              THEN (SELECT coalesce(${startsGoneAt("clock.at", "j.start_place - k.starts_left")}, clock.at + ${WINDOW})
                      FROM state k CROSS JOIN clock WHERE k.place = j.flow_place)
              ELSE now() + greatest(${TURN_MS.min}, least(extract(epoch FROM now() - parked_due_at) * 100, ${TURN_MS.max}))::int * interval '1 ms' END AS flow_until
    FROM (SELECT *, NOT asks OR NOT is_limited
                    OR coalesce(NOT is_paused AND (has_place OR rank <= flow_free) AND start_place <= starts_left, false) AS passes
            FROM (SELECT *, CASE WHEN has_place THEN row_number() OVER (PARTITION BY flow_place, asks, has_place ORDER BY parked_due_at, job_id)
                                 ELSE rank + count(*) FILTER (WHERE asks AND has_place) OVER (PARTITION BY flow_place) END AS start_place
                    FROM (SELECT o.*, o.may_start AND o.host_passes AS asks, p.places[x.at] AS flow_place,
                                 coalesce(p.limited[x.at], false) AS is_limited, p.paused[x.at] AS is_paused, p.free[x.at] AS flow_free,
                                 p.starts_left[x.at] AS starts_left, p.room[x.at] AS flow_room, p.ranks[x.at] AS rank,
                                 p.region_ranks[x.at] AS region_rank
                            FROM placement p
                           CROSS JOIN at_host o
                           CROSS JOIN LATERAL (SELECT array_position(p.ns, o.n) AS at) x) asked) ranked) j`;

/** An array with a count for each region, like the column `waiting`. */
export const byRegion = (count: (region: number) => string) =>
  `ARRAY[${REGIONS.map((_, region) => count(region)).join(", ")}]`;
/** How many attempts are parked at a key (k) in each region once those of `called` are called. */
const waitingAfterCalls = (parked: (region: number) => string) =>
  byRegion(
    (region) =>
      `k.waiting[${region + 1}]${parked(region)} - (SELECT count(*) FROM called c WHERE c.place = k.place AND c.region = ${region})`,
  );
const anyWaits = "(SELECT sum(w) FROM unnest(k.waiting) w) > 0";

/**
 * The effects of a claim at its gates, behind `verdict` (JUDGED_BY_GATES, with `taken` and `kind`: `parked` or `put_off` for
 * attempts that did not pass) and `taken`, which returns a row for each. `called` has the attempts that became due.
 */
export const PASS_GATES = `put_off AS (
  UPDATE open_jobs o
     SET due_at = v.until, parked_host = NULL, gate = CASE WHEN v.has_place THEN CASE WHEN v.until IS NULL THEN 'p' || o.flow_key END ELSE 'k' || o.flow_key END
    FROM (SELECT project_no, environment, region, job_id, has_place, CASE WHEN kind = 'put_off' THEN flow_until END AS until
            FROM verdict WHERE kind IN ('parked', 'put_off')) v
   WHERE o.project_no = ANY (ARRAY[v.project_no]) AND o.environment = v.environment AND o.region = v.region AND o.job_id = v.job_id
  RETURNING 1
), passed AS MATERIALIZED (
  SELECT flow_place, count(*) FILTER (WHERE taken) AS starts, count(*) FILTER (WHERE taken AND has_place IS NULL) AS places,
         bool_or(kind = 'parked') AS parks, bool_or(kind IN ('parked', 'put_off') AND gate IS DISTINCT FROM 'k' || flow_key) AS comes_back,
         ${byRegion((region) => `count(*) FILTER (WHERE kind = 'parked' AND has_place IS NULL AND region = ${region})`)} AS parked
    FROM verdict WHERE flow_place IS NOT NULL GROUP BY flow_place
), done AS MATERIALIZED (
  -- What this statement does to jobs is done before the next are called.
  SELECT (SELECT count(*) FROM taken) + (SELECT count(*) FROM put_off) + (SELECT count(*) FROM turned_away) AS count
), called AS MATERIALIZED (
  SELECT k.place, k.project_no, k.environment, h.*
    FROM done d
   CROSS JOIN passed p
    JOIN state k ON k.place = p.flow_place
   CROSS JOIN LATERAL call_gate(k.project_no, k.environment, 'k' || k.flow_key, ${roomOf("k.in_use + p.places")} + 0 * d.count::int,
           CASE WHEN p.starts >= k.starts_left THEN ${startsGoneAt("(SELECT at FROM clock)", "p.starts - k.starts_left + 1")} END) h
   -- Others may stand before what was parked: those whose creation has begun before it and ended after it.
   WHERE p.parks OR ${anyWaits} AND (k.free > ${HEADS} OR k.rate_count IS NOT NULL)
), noted AS (
  UPDATE flow_keys f
     SET used_at = s.used_at, in_use = s.in_use, waiting = s.waiting, started_at = s.started_at, started = s.started,
         queue_since = CASE WHEN s.comes_back THEN '-infinity' ELSE f.queue_since END
    FROM (SELECT k.project_no, k.environment, k.flow_key, ${USED_AT} AS used_at, (k.in_use + p.places)::int AS in_use, p.comes_back,
                 ${waitingAfterCalls((region) => ` + p.parked[${region + 1}]`)} AS waiting,
                 ${startsWith("clock.at", "p.starts", "at")} AS started_at, ${startsWith("clock.at", "p.starts", "n")} AS started
            FROM passed p CROSS JOIN clock JOIN state k ON k.place = p.flow_place
          OFFSET 0) s
   WHERE ${sameKey("f", "s")}
)`;

/**
 * The effects of a settlement at its gates, behind `gate`, `attempt` (with `frees`: its place comes back), `owed_again` and
 * `over`, which return a row for each. `called` has the attempts that the freed places let start.
 */
export const LEAVE_GATES = `done AS MATERIALIZED (
  SELECT (SELECT count(*) FROM owed_again) + (SELECT count(*) FROM over) AS count
), left_places AS MATERIALIZED (
  SELECT ${KEY}, count(*)::int AS count FROM attempt WHERE frees GROUP BY ${KEY}
), state AS MATERIALIZED (
  SELECT k.*, coalesce(l.count, 0) AS freed, clock.at
    FROM gate k CROSS JOIN clock LEFT JOIN left_places l ON ${sameKey("l", "k")}
), called AS MATERIALIZED (
  SELECT k.place, k.project_no, k.environment, h.*
    FROM done d
   CROSS JOIN state k
   CROSS JOIN LATERAL call_gate(k.project_no, k.environment, 'k' || k.flow_key, ${roomOf("k.in_use - k.freed")} + 0 * d.count::int,
           CASE WHEN ${startsLeft("k.at")} <= 0 THEN ${startsGoneAt("k.at", `1 - ${startsLeft("k.at")}`)} END) h
   WHERE ${anyWaits}
), noted AS (
  UPDATE flow_keys f
     SET used_at = s.used_at, in_use = s.in_use, waiting = s.waiting
    FROM (SELECT k.project_no, k.environment, k.flow_key, ${USED_AT} AS used_at, greatest(k.in_use - k.freed, 0) AS in_use,
                 ${waitingAfterCalls(() => "")} AS waiting
            FROM state k
          OFFSET 0) s
   WHERE ${sameKey("f", "s")}
)`;

/** The attempts of `called` and of the statement's parts named in `also`, each with the shard of its lane. */
export const calledLanes = (...also: string[]): string => `(
  SELECT c.*, l.shard
    FROM (${["called", ...also].map((part) => `SELECT project_no, environment, region, job_id, attempt, due_at FROM ${part}`).join(" UNION ALL ")}) c
    JOIN lanes l ON l.project_no = c.project_no AND l.region = c.region AND l.environment = c.environment)`;
