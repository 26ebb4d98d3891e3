-- When the next timetable took this one's place; null for the schedule's present one. Each statement commits by itself, so that
-- changes of schedules wait for none of those after it.
ALTER TABLE timetables ADD COLUMN IF NOT EXISTS replaced_at timestamptz;
--> statement-breakpoint
UPDATE timetables t SET replaced_at = n.since
  FROM (SELECT schedule_id, no, lead(since) OVER (PARTITION BY schedule_id ORDER BY no) AS since FROM timetables) n
 WHERE t.schedule_id = n.schedule_id AND t.no = n.no AND t.replaced_at IS NULL AND n.since IS NOT NULL;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS timetables_replaced;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY timetables_replaced ON timetables (replaced_at) WHERE replaced_at IS NOT NULL;
--> statement-breakpoint
-- Schedules that were deleted and whose timetables are still to be removed.
CREATE TABLE IF NOT EXISTS deleted_schedules (
  schedule_id uuid PRIMARY KEY
);
--> statement-breakpoint
-- What the duties that delete by time know of the clock: how late it was when they last looked, and since when it has run as
-- clocks do.
CREATE TABLE IF NOT EXISTS clock_watch (
  seen_at timestamptz NOT NULL,
  steady_since timestamptz NOT NULL,
  one boolean PRIMARY KEY DEFAULT true CHECK (one)
);
