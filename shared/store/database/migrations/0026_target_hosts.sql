-- Whether a project parks what is due at hosts that are down. Null where no client has set it: it means false.
ALTER TABLE projects ADD COLUMN IF NOT EXISTS park_failing_hosts boolean;
--> statement-breakpoint
-- A target host as an environment of a project finds it: down (0), opening (1), or neither (null) while attempts in a row find nobody.
-- `by` is who brought it there: the breaker (0) or a hand (1). `probe` is the job that is sent at `next_probe_at`. `second` of the ramp has
-- had `started` starts. What is parked stands at the gate 'h' and the host (open_jobs.gate).
CREATE TABLE IF NOT EXISTS target_hosts (
  since timestamptz NOT NULL DEFAULT now(),
  next_probe_at timestamptz,
  failing_since timestamptz,
  parked bigint NOT NULL DEFAULT 0,
  project_no integer NOT NULL,
  second integer NOT NULL DEFAULT 0,
  started integer NOT NULL DEFAULT 0,
  environment smallint NOT NULL,
  state smallint,
  by smallint,
  failures smallint NOT NULL DEFAULT 0,
  probe_seconds smallint NOT NULL DEFAULT 0,
  probe uuid,
  host text COLLATE "C" NOT NULL,
  PRIMARY KEY (project_no, environment, host)
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
--> statement-breakpoint
-- What may need a look though no attempt there ends: few hosts are ever in it.
CREATE INDEX IF NOT EXISTS target_hosts_not_well ON target_hosts (next_probe_at) WHERE state IS NOT NULL;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS target_hosts_listed ON target_hosts (project_no, environment, state, host) WHERE state IS NOT NULL;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS target_hosts_probe ON target_hosts (project_no, environment, probe) WHERE probe IS NOT NULL;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS target_hosts_well ON target_hosts (since) WHERE state IS NULL;
--> statement-breakpoint
-- Makes the one of a gate due that has waited longest, of all regions that are not held, not before an instant.
CREATE OR REPLACE FUNCTION call_oldest(at_project integer, at_environment smallint, at_gate text, not_before timestamptz)
RETURNS TABLE (region smallint, job_id uuid, attempt smallint, due_at timestamptz, was_parked boolean) LANGUAGE plpgsql VOLATILE ROWS 1 AS $$
BEGIN
  RETURN QUERY
  WITH found AS MATERIALIZED (
    SELECT h.due_at, o.*
      FROM (SELECT h.* FROM gate_heads(at_project, at_environment, at_gate, 8) h
             WHERE h.region <> ALL (ARRAY (SELECT r.region FROM held_regions r))
             ORDER BY h.due_at, h.job_id) h
     CROSS JOIN LATERAL (
           SELECT o.project_no, o.environment, o.region, o.job_id, o.gate, o.due_at IS NULL AS was_parked FROM open_jobs o
            WHERE o.project_no = at_project AND o.environment = at_environment AND o.region = h.region AND o.job_id = h.job_id
              FOR NO KEY UPDATE SKIP LOCKED) o
  ), oldest AS MATERIALIZED (
    SELECT * FROM found WHERE found.gate = at_gate ORDER BY found.due_at, found.job_id LIMIT 1
  )
  UPDATE open_jobs o SET due_at = greatest(now(), not_before)
    FROM oldest l
   WHERE o.project_no = ANY (ARRAY[l.project_no]) AND o.environment = l.environment AND o.region = l.region AND o.job_id = l.job_id
  RETURNING o.region, o.job_id, o.attempt, o.due_at, l.was_parked;
END
$$;
