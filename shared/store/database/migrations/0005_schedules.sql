-- A schedule belongs to its project's shard of the home region, whose owner fires it.
CREATE TABLE schedules (
  -- Null while it is paused, and where nothing of its timetable is left.
  next_run_at timestamptz,
  project_no integer NOT NULL,
  base_seconds integer NOT NULL,
  cap_seconds integer NOT NULL,
  -- Counts changes by a client, so that one is decided on the row as it is.
  revision integer NOT NULL DEFAULT 0,
  environment smallint NOT NULL,
  shard smallint NOT NULL,
  max_attempts smallint NOT NULL,
  paused boolean NOT NULL DEFAULT false,
  id uuid NOT NULL,
  name text NOT NULL,
  cron text NOT NULL,
  timezone text NOT NULL,
  target_url text NOT NULL,
  payload text NOT NULL,
  PRIMARY KEY (project_no, environment, id),
  CONSTRAINT schedules_name UNIQUE (project_no, environment, name)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);
--> statement-breakpoint
CREATE INDEX schedules_due ON schedules (shard, next_run_at) WHERE next_run_at IS NOT NULL;
--> statement-breakpoint
CREATE INDEX schedules_listed ON schedules (project_no, environment, paused, id);
--> statement-breakpoint
-- What the plan's limit binds, over both environments; changed by the statements that create, pause, resume and delete.
ALTER TABLE projects ADD COLUMN active_schedules integer NOT NULL DEFAULT 0;
--> statement-breakpoint
-- One row for each firing that was due and was looked at in time: with its job, or without one where no quota was left.
-- What did not fire is not stored: it follows from the timetables that the schedule has had.
CREATE TABLE firings (
  fired_for timestamptz NOT NULL,
  schedule_id uuid NOT NULL,
  job_id uuid,
  PRIMARY KEY (schedule_id, fired_for)
);
--> statement-breakpoint
CREATE INDEX firings_age ON firings USING brin (fired_for);
--> statement-breakpoint
-- The timetables that a schedule has had, each from its change to the next.
CREATE TABLE timetables (
  no bigint GENERATED ALWAYS AS IDENTITY,
  since timestamptz NOT NULL DEFAULT now(),
  -- The firing that was next when this timetable replaced the one before: it never came.
  superseded_at timestamptz,
  schedule_id uuid NOT NULL,
  paused boolean NOT NULL,
  cron text NOT NULL,
  timezone text NOT NULL,
  PRIMARY KEY (schedule_id, no)
);
--> statement-breakpoint
-- What was answered, where it cannot be rendered again from what was made.
ALTER TABLE idempotency_keys ADD COLUMN answer bytea;
