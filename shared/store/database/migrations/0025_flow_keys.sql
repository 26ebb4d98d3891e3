-- Flow keys: limits below the project's. All columns of jobs and schedules are null for who uses none. Each statement commits by itself.
ALTER TABLE jobs ADD COLUMN IF NOT EXISTS flow json;
--> statement-breakpoint
ALTER TABLE schedules ADD COLUMN IF NOT EXISTS flow json;
--> statement-breakpoint
-- `gate` is where the attempt stands: 'k' and the flow key, 'p' and the key if it has its place and the key is paused, or null,
-- as while it is on the wire. Where it
-- is not null, parked_due_at is when the attempt was due, parked or not.
ALTER TABLE open_jobs ADD COLUMN IF NOT EXISTS has_place boolean,
  ADD COLUMN IF NOT EXISTS flow_key text COLLATE "C", ADD COLUMN IF NOT EXISTS gate text COLLATE "C";
--> statement-breakpoint
-- A key's limits and what it holds. `waiting` counts what is parked at it, by region. `started_at` and `started` are the starts within its
-- window, so many at each instant. A fillfactor below 100 keeps updates on their page.
CREATE TABLE IF NOT EXISTS flow_keys (
  used_at timestamptz NOT NULL DEFAULT now(),
  project_no integer NOT NULL,
  concurrency integer,
  rate_count integer,
  rate_seconds integer,
  in_use integer NOT NULL DEFAULT 0,
  environment smallint NOT NULL,
  paused boolean NOT NULL DEFAULT false,
  pinned boolean NOT NULL DEFAULT false,
  flow_key text COLLATE "C" NOT NULL,
  waiting bigint[] NOT NULL DEFAULT '{0,0,0,0}',
  started_at timestamptz[] NOT NULL DEFAULT '{}',
  started integer[] NOT NULL DEFAULT '{}',
  PRIMARY KEY (project_no, environment, flow_key)
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 2000,
  autovacuum_vacuum_cost_delay = 0
);
--> statement-breakpoint
-- What is forgotten: keys that nobody has used for a day. `used_at` is right to the hour, so that few updates change this index.
CREATE INDEX IF NOT EXISTS flow_keys_idle ON flow_keys (used_at) WHERE NOT pinned AND NOT paused;
--> statement-breakpoint
-- What has changed at a gate without its lock: who empties this applies the changes, and calls what is parked there.
CREATE TABLE IF NOT EXISTS gate_calls (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  project_no integer NOT NULL,
  waiting_change integer NOT NULL DEFAULT 0,
  in_use_change integer NOT NULL DEFAULT 0,
  environment smallint NOT NULL,
  region smallint NOT NULL DEFAULT 0,
  gate text COLLATE "C" NOT NULL
) WITH (
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);
--> statement-breakpoint
-- The first attempts that stand at a gate, of each region so many, by due time and then id. A volatile function reads what was committed
-- before it is called. So a statement that has waited for the gate's lock sees what was done under it, which the statement itself does not.
CREATE OR REPLACE FUNCTION gate_heads(at_project integer, at_environment smallint, at_gate text, room integer)
RETURNS TABLE (region smallint, job_id uuid, due_at timestamptz, in_lane boolean) LANGUAGE plpgsql VOLATILE ROWS 16 AS $$
BEGIN
  RETURN QUERY
  SELECT h.* FROM unnest('{0,1,2,3}'::smallint[]) AS r (region)
   CROSS JOIN LATERAL (
         SELECT o.region, o.job_id, o.parked_due_at, o.due_at IS NOT NULL AS in_lane
           FROM open_jobs o
          WHERE o.project_no = at_project AND o.environment = at_environment AND o.gate = at_gate AND o.region = r.region
          ORDER BY o.parked_due_at, o.job_id
          LIMIT room) h;
END
$$;
--> statement-breakpoint
-- Makes those of gate_heads due that are parked, not before an instant. Who calls it has the gate's lock. One that another statement has
-- locked meanwhile, such as a cancel, is looked at again soon. They are due a microsecond apart, so that they keep their order. Rows are
-- looked up by their keys alone and judged afterwards: the planner could begin at another index, where all that is parked stands in the way.
CREATE OR REPLACE FUNCTION call_gate(at_project integer, at_environment smallint, at_gate text, room integer, not_before timestamptz)
RETURNS TABLE (region smallint, job_id uuid, attempt smallint, due_at timestamptz) LANGUAGE plpgsql VOLATILE ROWS 4 AS $$
BEGIN
  RETURN QUERY
  WITH head AS MATERIALIZED (
    SELECT h.*, row_number() OVER (ORDER BY h.due_at, h.job_id) AS place
      FROM gate_heads(at_project, at_environment, at_gate, room) h
     WHERE NOT h.in_lane
  ), found AS MATERIALIZED (
    SELECT h.place, h.due_at, o.*
      FROM (SELECT * FROM head ORDER BY head.job_id) h
     CROSS JOIN LATERAL (
           SELECT o.project_no, o.environment, o.region, o.job_id, o.gate, o.due_at AS lane_due_at, o.node_id FROM open_jobs o
            WHERE o.project_no = at_project AND o.environment = at_environment AND o.region = h.region AND o.job_id = h.job_id
              FOR NO KEY UPDATE SKIP LOCKED) o
  ), locked AS MATERIALIZED (
    SELECT * FROM found WHERE found.gate = at_gate AND found.lane_due_at IS NULL AND found.node_id IS NULL
  ), missed AS (
    INSERT INTO gate_calls (project_no, environment, gate)
    SELECT at_project, at_environment, at_gate WHERE (SELECT count(*) FROM head) > (SELECT count(*) FROM locked)
  )
  UPDATE open_jobs o SET due_at = greatest(now(), l.due_at, not_before) + l.place * interval '1 us'
    FROM locked l
   WHERE o.project_no = ANY (ARRAY[l.project_no]) AND o.environment = l.environment AND o.region = l.region AND o.job_id = l.job_id
  RETURNING o.region, o.job_id, o.attempt, o.due_at;
END
$$;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY IF NOT EXISTS schedules_of_flow ON schedules (project_no, environment, (flow ->> 'key')) WHERE flow IS NOT NULL;
--> statement-breakpoint
-- What broke off is begun anew.
DROP INDEX CONCURRENTLY IF EXISTS open_jobs_gate;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY open_jobs_gate ON open_jobs (project_no, environment, gate, region, parked_due_at, job_id)
 WHERE gate IS NOT NULL;
