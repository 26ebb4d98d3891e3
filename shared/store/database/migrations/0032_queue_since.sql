-- The low-water mark of a flow key's queue: no attempt stands at the gate 'k' and the key that was due before it (claim-keyed.ts). Without it
-- each claim would step over the index entries of all attempts that have started since the last vacuum. While nodes of the release before run,
-- an attempt that one of them lets come back to its queue may be overtaken by attempts of the key that were due after it.
ALTER TABLE flow_keys ADD COLUMN IF NOT EXISTS queue_since timestamptz NOT NULL DEFAULT '-infinity';
--> statement-breakpoint
-- Whether a call tells of an attempt that has come back to its queue, perhaps before the mark. The index has these calls alone, so claims do not
-- step over the entries of others.
ALTER TABLE gate_calls ADD COLUMN IF NOT EXISTS comes_back boolean NOT NULL DEFAULT false;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS gate_calls_of_returns;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY gate_calls_of_returns ON gate_calls (project_no) WHERE comes_back;
--> statement-breakpoint
-- How many of the attempts that stand at an item's gate come before it in the order of due time and then id: at most `room` in each region,
-- null for no `room`. It looks from `since` on, and at all of them while a call tells of an attempt of the project that has come back. A
-- volatile function reads what was committed before it is called, and who calls it has the locks of the gates.
CREATE OR REPLACE FUNCTION count_before(projects integer[], environments smallint[], gates text[], due_ats timestamptz[], ids uuid[], rooms integer[],
                                        sinces timestamptz[])
RETURNS integer[] LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  RETURN ARRAY (
    SELECT CASE WHEN i.room IS NULL THEN NULL WHEN i.room <= 0 THEN 0 ELSE (
             SELECT count(*)::int
               FROM unnest('{0,1,2,3}'::smallint[]) AS r (region)
              CROSS JOIN LATERAL (
                    SELECT FROM open_jobs o
                     WHERE o.project_no = i.project_no AND o.environment = i.environment AND o.gate = i.gate AND o.region = r.region
                       AND o.parked_due_at >= CASE WHEN i.project_no = ANY (called.nos) THEN '-infinity' ELSE i.since END
                       AND (o.parked_due_at, o.job_id) < (i.due_at, i.id)
                     ORDER BY o.parked_due_at, o.job_id
                     LIMIT i.room) before) END
      FROM (SELECT ARRAY (SELECT p.no FROM (SELECT DISTINCT unnest(projects) AS no) p
                           WHERE (SELECT true FROM gate_calls c WHERE c.comes_back AND c.project_no = ANY (ARRAY[p.no]) LIMIT 1)) AS nos
            OFFSET 0) called
     CROSS JOIN unnest(projects, environments, gates, due_ats, ids, rooms, sinces)
           WITH ORDINALITY AS i (project_no, environment, gate, due_at, id, room, since, n)
     ORDER BY i.n);
END
$$;
