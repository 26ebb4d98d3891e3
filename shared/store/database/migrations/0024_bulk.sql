-- What clients ask for many jobs at once. `matched` is null until all members are counted. `counted_to` is where the counting goes
-- on, `judged_to` the place of the last member that was judged, and `judged_at` with `judged_counts` are the members of the last
-- second.
CREATE TABLE IF NOT EXISTS bulk_operations (
  started_at timestamptz,
  ended_at timestamptz,
  matched bigint,
  counted bigint NOT NULL DEFAULT 0,
  done bigint NOT NULL DEFAULT 0,
  skipped bigint NOT NULL DEFAULT 0,
  failed bigint NOT NULL DEFAULT 0,
  judged_to bigint NOT NULL DEFAULT 0,
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  shard smallint NOT NULL,
  action smallint NOT NULL,
  status smallint NOT NULL,
  per_second smallint NOT NULL,
  dry_run boolean NOT NULL,
  leaves_members boolean NOT NULL DEFAULT false,
  id uuid NOT NULL,
  filter json NOT NULL,
  sample text[] NOT NULL DEFAULT '{}',
  counted_to text,
  judged_at timestamptz[] NOT NULL DEFAULT '{}',
  judged_counts smallint[] NOT NULL DEFAULT '{}',
  PRIMARY KEY (project_no, environment, id)
);
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS bulk_operations_open ON bulk_operations (project_no, environment, id) WHERE ended_at IS NULL;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS bulk_operations_of_shard ON bulk_operations (shard, id) WHERE ended_at IS NULL;
--> statement-breakpoint
-- An environment has one operation in progress. 3 is the status "running".
CREATE UNIQUE INDEX IF NOT EXISTS bulk_operations_running ON bulk_operations (project_no, environment) WHERE status = 3;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS bulk_operations_ended ON bulk_operations (ended_at) WHERE ended_at IS NOT NULL;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS bulk_operations_left ON bulk_operations (id) WHERE leaves_members;
--> statement-breakpoint
-- A member that is still to be judged: a job, or an instant of a schedule, whose `position` is its milliseconds since 1970.
CREATE TABLE IF NOT EXISTS bulk_members (
  position bigint NOT NULL,
  region smallint,
  bulk_id uuid NOT NULL,
  job_id uuid,
  PRIMARY KEY (bulk_id, position)
) WITH (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
--> statement-breakpoint
-- Whether the job was made by a bulk operation, long after its instant.
ALTER TABLE firings ADD COLUMN IF NOT EXISTS backfilled boolean NOT NULL DEFAULT false;
