-- The number of the transaction that recorded a run, by which the roll-up of insights finds what is new: null for runs of before, which
-- are never counted. What is below the oldest transaction in progress is complete, whatever the clocks say.
ALTER TABLE runs ADD COLUMN IF NOT EXISTS settled_in bigint;
--> statement-breakpoint
ALTER TABLE runs ALTER COLUMN settled_in SET DEFAULT pg_current_xact_id()::text::bigint;
--> statement-breakpoint
-- As for runs_of_schedule: the indexes of the tables of runs are built after the migrations (cell/run-indexes.ts).
CREATE INDEX IF NOT EXISTS runs_settled ON ONLY runs USING brin (settled_in) WITH (autosummarize = on);
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_hobby_settled ON ONLY runs_hobby USING brin (settled_in) WITH (autosummarize = on);
--> statement-breakpoint
ALTER INDEX runs_settled ATTACH PARTITION runs_hobby_settled;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_pro_settled ON ONLY runs_pro USING brin (settled_in) WITH (autosummarize = on);
--> statement-breakpoint
ALTER INDEX runs_settled ATTACH PARTITION runs_pro_settled;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_scale_settled ON ONLY runs_scale USING brin (settled_in) WITH (autosummarize = on);
--> statement-breakpoint
ALTER INDEX runs_settled ATTACH PARTITION runs_scale_settled;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_enterprise_settled ON ONLY runs_enterprise USING brin (settled_in) WITH (autosummarize = on);
--> statement-breakpoint
ALTER INDEX runs_settled ATTACH PARTITION runs_enterprise_settled;
--> statement-breakpoint
-- What a project's environment has done in a region within a stretch of time, in parts that add up: each step of the roll-up writes parts
-- of its own. Levels are the grains of domain/insights/levels.ts. There is no other index, as the planner might walk one by time for a lane. Sketches and hosts are null where there is nothing in them.
CREATE TABLE IF NOT EXISTS insights (
  at timestamptz NOT NULL,
  part bigint NOT NULL,
  created bigint NOT NULL,
  succeeded bigint NOT NULL,
  failed bigint NOT NULL,
  timed_out bigint NOT NULL,
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  region smallint NOT NULL,
  level smallint NOT NULL,
  waited_for bigint[],
  late bytea,
  late_waited bytea,
  durations bytea,
  hosts text,
  PRIMARY KEY (project_no, environment, level, at, region, part)
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 5000);
--> statement-breakpoint
-- How far the roll-up has come. `revision` counts its steps: a step is written only if no other has been meanwhile.
CREATE TABLE IF NOT EXISTS insight_progress (
  -- Runs of earlier transactions have been counted, if they ended since `counted_since`, in the Postgres of that identifier.
  settled_until bigint NOT NULL,
  revision bigint NOT NULL DEFAULT 0,
  system_identifier bigint NOT NULL,
  counted_since timestamptz NOT NULL,
  -- Jobs whose ids are of before have been counted, and once more.
  created_until timestamptz NOT NULL,
  recounted_until timestamptz NOT NULL,
  -- For each level from 1 on: buckets before this instant are complete, and of the bucket that begins there those of projects up to this number.
  closed_until timestamptz[] NOT NULL,
  closed_project integer[] NOT NULL,
  one boolean PRIMARY KEY DEFAULT true CHECK (one)
) WITH (fillfactor = 20);
--> statement-breakpoint
INSERT INTO insight_progress (settled_until, system_identifier, counted_since, created_until, recounted_until, closed_until, closed_project)
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, system_identifier, now(), date_trunc('minute', now()), date_trunc('minute', now()),
       ARRAY(SELECT date_bin(width, now(), 'epoch') FROM unnest('{10 min,1 hour,6 hours,1 day}'::interval[]) WITH ORDINALITY AS w (width, n) ORDER BY n),
       '{0,0,0,0}'
  FROM pg_control_system()
    ON CONFLICT DO NOTHING;
