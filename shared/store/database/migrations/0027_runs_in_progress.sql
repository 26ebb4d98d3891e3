-- Any number of attempts that were asked for by hand may wait, and have their runs already. So lists of runs walk these by their
-- ids, as they do those that have ended. With the environment the index is as large as before.
DROP INDEX CONCURRENTLY IF EXISTS open_jobs_in_progress;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY open_jobs_in_progress ON open_jobs (project_no, environment, run_id) WHERE run_id IS NOT NULL;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS open_jobs_running;
