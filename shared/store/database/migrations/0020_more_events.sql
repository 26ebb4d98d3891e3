-- Events that are not the end of an attempt have no run of their own, and their facts in `data`. Endpoints that ask for more than two
-- types keep the order in which they were given.
ALTER TABLE events ADD COLUMN data json, ALTER COLUMN started_at DROP NOT NULL, ALTER COLUMN duration_ms DROP NOT NULL,
  ALTER COLUMN attempt DROP NOT NULL, ALTER COLUMN run_status DROP NOT NULL;
--> statement-breakpoint
ALTER TABLE webhooks ADD COLUMN event_order smallint[];
