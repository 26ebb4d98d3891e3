-- count_ahead and start_next of 0033 look for other attempts of a gate only in the regions in which its project has a lane. Each region without
-- attempts costs a look into the index for each item. A lane is committed with the first job of its project, environment and region, or before,
-- and is never deleted. Each function reads lanes and attempts in one query, so it sees the lane of each attempt that it could see.
CREATE OR REPLACE FUNCTION count_ahead(projects integer[], environments smallint[], gates text[], regions smallint[], due_ats timestamptz[], ids uuid[],
                                       rooms integer[], sinces timestamptz[])
RETURNS TABLE (here integer, everywhere integer) LANGUAGE plpgsql VOLATILE ROWS 64 AS $$
DECLARE
  come_back integer[] := ARRAY (SELECT p.no FROM (SELECT DISTINCT unnest(projects) AS no) p
                                 WHERE (SELECT true FROM gate_calls c WHERE c.comes_back AND c.project_no = ANY (ARRAY[p.no]) LIMIT 1));
BEGIN
  RETURN QUERY
  SELECT h.count, CASE WHEN i.room IS NULL OR h.count >= i.room THEN h.count ELSE h.count + (
           SELECT count(*)::int
             FROM (SELECT l.region FROM lanes l WHERE l.project_no = i.project_no AND l.environment = i.environment OFFSET 0) r
            CROSS JOIN LATERAL (
                  SELECT FROM open_jobs o
                   WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.gate = i.gate AND o.region = r.region
                     AND o.parked_due_at >= s.since AND (o.parked_due_at, o.job_id) < (i.due_at, i.id)
                   ORDER BY o.parked_due_at, o.job_id
                   LIMIT i.room) before
            WHERE r.region <> i.region) END
    FROM unnest(projects, environments, gates, regions, due_ats, ids, rooms, sinces)
         WITH ORDINALITY AS i (project_no, environment, gate, region, due_at, id, room, since, n)
   CROSS JOIN LATERAL (SELECT CASE WHEN i.project_no = ANY (come_back) THEN '-infinity' ELSE i.since END AS since) s
   CROSS JOIN LATERAL (
         SELECT CASE WHEN i.room > 0 THEN (
                  SELECT count(*)::int
                    FROM (SELECT FROM open_jobs o
                           WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.gate = i.gate AND o.region = i.region
                             AND o.parked_due_at >= s.since AND (o.parked_due_at, o.job_id) < (i.due_at, i.id)
                           ORDER BY o.parked_due_at, o.job_id
                           LIMIT i.room) before) ELSE 0 END AS count) h
   ORDER BY i.n;
END
$$;
--> statement-breakpoint
CREATE OR REPLACE FUNCTION start_next(projects integer[], environments smallint[], gates text[], regions smallint[], rooms integer[], sinces timestamptz[],
                                      runs_before integer[], run_ids uuid[], at_node integer, start_at timestamptz)
RETURNS TABLE (place integer, run_id uuid, job_id uuid, attempt smallint, attempts_allowed smallint, was_parked boolean, due_at timestamptz,
               run_at timestamptz, target_url text, payload text, schedule_id uuid, max_attempts smallint, base_seconds integer,
               cap_seconds integer, trace bytea) LANGUAGE plpgsql VOLATILE ROWS 16 AS $$
DECLARE
  come_back integer[] := ARRAY (SELECT p.no FROM (SELECT DISTINCT unnest(projects) AS no) p
                                 WHERE (SELECT true FROM gate_calls c WHERE c.comes_back AND c.project_no = ANY (ARRAY[p.no]) LIMIT 1));
BEGIN
  RETURN QUERY
  WITH item AS MATERIALIZED (
    SELECT i.* FROM unnest(projects, environments, gates, regions, rooms, sinces, runs_before)
                    WITH ORDINALITY AS i (project_no, environment, gate, region, room, since, before, n)
  ), head AS MATERIALIZED (
    SELECT q.*, bool_and(q.may_start) OVER (PARTITION BY q.n ORDER BY q.turn) AS is_next
      FROM (SELECT i.n, i.room, i.before, i.project_no, i.environment, i.gate, h.region, h.job_id,
                   h.region = i.region AND coalesce(h.lane_due_at, h.parked_due_at) <= now() AND h.counted_run_id IS NULL AND h.parked_host IS NULL AS may_start,
                   row_number() OVER (PARTITION BY i.n ORDER BY h.parked_due_at, h.job_id) AS turn
              FROM item i
             CROSS JOIN LATERAL (SELECT l.region FROM lanes l WHERE l.project_no = i.project_no AND l.environment = i.environment OFFSET 0) r
             CROSS JOIN LATERAL (
                   SELECT o.region, o.job_id, o.parked_due_at, o.due_at AS lane_due_at, o.run_id AS counted_run_id, o.parked_host
                     FROM open_jobs o
                    WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.gate = i.gate AND o.region = r.region
                      AND o.parked_due_at >= CASE WHEN i.project_no = ANY (come_back) THEN '-infinity' ELSE i.since END
                    ORDER BY o.parked_due_at, o.job_id
                    LIMIT i.room) h) q
     WHERE q.turn <= q.room
  ), found AS MATERIALIZED (
    SELECT h.n, h.turn, h.before, h.gate, o.*
      FROM (SELECT * FROM head WHERE head.is_next ORDER BY head.job_id) h
     CROSS JOIN LATERAL (
           SELECT o.ctid AS row_place, o.gate AS gate_now, o.due_at AS lane_due_at, o.parked_due_at, o.run_id AS counted_run_id, o.parked_host
             FROM open_jobs o
            WHERE o.project_no = h.project_no AND o.environment = h.environment AND o.region = h.region AND o.job_id = h.job_id
              FOR NO KEY UPDATE SKIP LOCKED) o
  ), locked AS MATERIALIZED (
    SELECT l.*, run_ids[l.before + l.nth] AS new_run_id
      FROM (SELECT f.*, row_number() OVER (PARTITION BY f.n ORDER BY f.turn) AS nth FROM found f
             WHERE f.gate_now = f.gate AND coalesce(f.lane_due_at, f.parked_due_at) <= now() AND f.counted_run_id IS NULL AND f.parked_host IS NULL) l
     WHERE l.nth = l.turn
  ), started AS (
    UPDATE open_jobs o
       SET due_at = NULL, run_id = l.new_run_id, node_id = at_node, started_at = start_at, has_place = true, gate = NULL
      FROM locked l
     -- The place of a locked row is that of its newest version. It may have been written since this query began only by a statement without
     -- the gate's lock, a cancel or parking at a host, and these take the row away from the gate.
     WHERE o.ctid = l.row_place
    RETURNING l.n, l.nth, l.lane_due_at IS NULL AS was_parked, o.*
  )
  SELECT s.n::int, s.run_id, s.job_id, s.attempt, s.attempts_allowed, s.was_parked, s.parked_due_at, j.run_at, j.target_url, j.payload, j.schedule_id,
         j.max_attempts, j.base_seconds, j.cap_seconds, coalesce(s.trace, j.trace)
    FROM started s
    LEFT JOIN jobs j ON j.project_no = s.project_no AND j.environment = s.environment AND j.region = s.region AND j.id = s.job_id
   ORDER BY s.n, s.nth;
END
$$;
