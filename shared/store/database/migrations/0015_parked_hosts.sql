-- An owed attempt that leads to a host which takes none now stands aside: due_at is null although it is not on the wire,
-- parked_host says where it waits, and parked_due_at since when it has been due. So neither the sweep nor a neighbour meets
-- it. parked_due_at stays until the attempt is over, for it may be parked again; parked_host means something only while
-- due_at and node_id are both null. The indexes are built beside the traffic; what broke off is begun anew.
ALTER TABLE open_jobs ADD COLUMN IF NOT EXISTS parked_host text, ADD COLUMN IF NOT EXISTS parked_due_at timestamptz;
--> statement-breakpoint
ALTER TABLE open_deliveries ADD COLUMN IF NOT EXISTS parked_host text, ADD COLUMN IF NOT EXISTS parked_due_at timestamptz;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS open_jobs_parked;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY open_jobs_parked ON open_jobs (parked_host, project_no, region, environment, parked_due_at)
 WHERE due_at IS NULL AND node_id IS NULL;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS open_deliveries_parked;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY open_deliveries_parked ON open_deliveries (parked_host, project_no, region, environment, parked_due_at)
 WHERE due_at IS NULL AND node_id IS NULL;
--> statement-breakpoint
-- Endpoints that were given another host, or deleted: what is parked for them at the one before comes back.
CREATE TABLE IF NOT EXISTS left_hosts (
  left_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  webhook_id uuid NOT NULL,
  host text NOT NULL,
  PRIMARY KEY (webhook_id, host)
);
