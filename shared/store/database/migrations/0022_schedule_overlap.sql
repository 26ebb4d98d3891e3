-- What a firing does while jobs of its schedule are not over, and how much later its job is due. Null is what no client has given.
ALTER TABLE schedules ADD COLUMN IF NOT EXISTS overlap smallint, ADD COLUMN IF NOT EXISTS spread_seconds smallint,
  ADD COLUMN IF NOT EXISTS spread_ms integer;
--> statement-breakpoint
ALTER TABLE firings ADD COLUMN IF NOT EXISTS due_at timestamptz, ADD COLUMN IF NOT EXISTS skipped_for smallint,
  ADD COLUMN IF NOT EXISTS replaced smallint;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS open_jobs_overlap;
--> statement-breakpoint
-- A firing looks for the jobs of its schedule that are not over, those first that have not started. Jobs without a schedule have
-- no entry. The index is built beside the traffic; what broke off is begun anew.
CREATE INDEX CONCURRENTLY open_jobs_overlap ON open_jobs (schedule_id, attempt, job_id) WHERE schedule_id IS NOT NULL;
