-- The same as gate_heads and call_gate of 0025 for many gates at once: calling a function costs more than what it does for one gate.

-- Whether of the attempts that stand at an item's gate, fewer than `frees` come before it in the order of due time and then id. Null for
-- `frees` is any number. A volatile function reads what was committed before it is called, and who calls it has the locks of the gates.
CREATE OR REPLACE FUNCTION are_first(projects integer[], environments smallint[], gates text[], due_ats timestamptz[], ids uuid[], frees integer[])
RETURNS boolean[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN ARRAY (
    SELECT CASE WHEN i.free IS NULL THEN true WHEN i.free <= 0 THEN false ELSE i.free > (
             SELECT count(*)
               FROM unnest('{0,1,2,3}'::smallint[]) AS r (region)
              CROSS JOIN LATERAL (
                    SELECT FROM open_jobs o
                     WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.gate = i.gate AND o.region = r.region
                       AND (o.parked_due_at, o.job_id) < (i.due_at, i.id)
                     ORDER BY o.parked_due_at, o.job_id
                     LIMIT i.free) before) END
      FROM unnest(projects, environments, gates, due_ats, ids, frees)
           WITH ORDINALITY AS i (project_no, environment, gate, due_at, id, free, n)
     ORDER BY i.n);
END
$$;
--> statement-breakpoint
-- Of each item's gate and region, makes those of the first `room` due that are parked. `place` is the item's, from 1. All that call_gate says
-- holds here as well. Items of one gate have one `room`, and so many of each region are looked at.
CREATE OR REPLACE FUNCTION call_gates(projects integer[], environments smallint[], gates text[], regions smallint[], rooms integer[])
RETURNS TABLE (place integer, region smallint, job_id uuid, attempt smallint, due_at timestamptz) LANGUAGE plpgsql VOLATILE ROWS 16 AS $$
BEGIN
  RETURN QUERY
  WITH head AS MATERIALIZED (
    SELECT i.n, i.project_no, i.environment, i.gate, i.region, h.job_id, h.due_at,
           row_number() OVER (PARTITION BY i.project_no, i.environment, i.gate ORDER BY h.due_at, h.job_id) AS turn
      FROM unnest(projects, environments, gates, regions, rooms) WITH ORDINALITY AS i (project_no, environment, gate, region, room, n)
     CROSS JOIN LATERAL (
           SELECT o.job_id, o.parked_due_at AS due_at, o.due_at IS NULL AS is_parked
             FROM open_jobs o
            WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.gate = i.gate AND o.region = i.region
            ORDER BY o.parked_due_at, o.job_id
            LIMIT i.room) h
     WHERE h.is_parked
  ), found AS MATERIALIZED (
    SELECT h.n, h.turn, h.gate, h.due_at, o.*
      FROM (SELECT * FROM head ORDER BY head.job_id) h
     CROSS JOIN LATERAL (
           SELECT o.project_no, o.environment, o.region, o.job_id, o.gate AS gate_now, o.due_at AS lane_due_at, o.node_id FROM open_jobs o
            WHERE o.project_no = h.project_no AND o.environment = h.environment AND o.region = h.region AND o.job_id = h.job_id
              FOR NO KEY UPDATE SKIP LOCKED) o
  ), locked AS MATERIALIZED (
    SELECT * FROM found WHERE found.gate_now = found.gate AND found.lane_due_at IS NULL AND found.node_id IS NULL
  ), missed AS (
    -- One that another statement has locked meanwhile, such as a cancel, is looked at again soon.
    INSERT INTO gate_calls (project_no, environment, gate)
    SELECT DISTINCT h.project_no, h.environment, h.gate FROM head h
     WHERE (SELECT count(*) FROM head) > (SELECT count(*) FROM locked)
       AND h.job_id <> ALL (ARRAY (SELECT l.job_id FROM locked l))
  )
  UPDATE open_jobs o SET due_at = greatest(now(), l.due_at) + l.turn * interval '1 us'
    FROM locked l
   WHERE o.project_no = ANY (ARRAY[l.project_no]) AND o.environment = l.environment AND o.region = l.region AND o.job_id = l.job_id
  RETURNING l.n::int, o.region, o.job_id, o.attempt, o.due_at;
END
$$;
