-- Tags of jobs, and what lists of jobs and runs are filtered by. Each statement commits by itself, so that a hot table is locked
-- for no longer than its own change takes. All columns are null for who uses no tags and no schedules.
ALTER TABLE jobs ADD COLUMN IF NOT EXISTS tags text[];
--> statement-breakpoint
ALTER TABLE schedules ADD COLUMN IF NOT EXISTS tags text[];
--> statement-breakpoint
-- The same as of the job, so that what changes the state of a job need not look for them.
ALTER TABLE open_jobs ADD COLUMN IF NOT EXISTS schedule_id uuid, ADD COLUMN IF NOT EXISTS tags text[];
--> statement-breakpoint
ALTER TABLE ended_jobs ADD COLUMN IF NOT EXISTS schedule_id uuid;
--> statement-breakpoint
ALTER TABLE runs ADD COLUMN IF NOT EXISTS schedule_id uuid;
--> statement-breakpoint
CREATE TABLE IF NOT EXISTS job_tags (
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  region smallint NOT NULL,
  job_id uuid NOT NULL,
  schedule_id uuid,
  tag text COLLATE "C" NOT NULL,
  PRIMARY KEY (project_no, environment, tag, region, job_id)
);
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS job_tags_of_schedule ON job_tags (schedule_id, tag, region, job_id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
-- `state` is how the job ended, or -1 until it has.
CREATE TABLE IF NOT EXISTS job_tag_states (
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  state smallint NOT NULL,
  region smallint NOT NULL,
  job_id uuid NOT NULL,
  tag text COLLATE "C" NOT NULL,
  PRIMARY KEY (project_no, environment, tag, state, region, job_id)
) WITH (
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
--> statement-breakpoint
-- No index of run_tags or shifted_runs is by their id alone: the planner might walk that for a page.
CREATE TABLE IF NOT EXISTS run_tags (
  ended_on date NOT NULL,
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  status smallint NOT NULL,
  id uuid NOT NULL,
  schedule_id uuid,
  tag text COLLATE "C" NOT NULL,
  PRIMARY KEY (project_no, environment, tag, status, id)
);
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS run_tags_of_schedule ON run_tags (schedule_id, tag, status, id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS run_tags_age ON run_tags (ended_on);
--> statement-breakpoint
CREATE TABLE IF NOT EXISTS shifted_runs (
  started_at timestamptz NOT NULL,
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  status smallint NOT NULL,
  id uuid NOT NULL,
  schedule_id uuid,
  tags text[],
  PRIMARY KEY (project_no, environment, id)
);
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS shifted_runs_age ON shifted_runs (started_at);
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS jobs_of_schedule;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY jobs_of_schedule ON jobs (schedule_id, region, id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS open_jobs_of_schedule;
--> statement-breakpoint
-- Jobs that are queued. A claim leaves the index alone, since the row has a run from then on.
CREATE INDEX CONCURRENTLY open_jobs_of_schedule ON open_jobs (schedule_id, region, job_id)
 WHERE schedule_id IS NOT NULL AND run_id IS NULL;
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS ended_jobs_of_schedule;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY ended_jobs_of_schedule ON ended_jobs (schedule_id, status, region, job_id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
-- The index of a partitioned table cannot be built CONCURRENTLY. Those of its tables are built after the migrations
-- (cell/run-indexes.ts), and this one is valid once all of them are.
CREATE INDEX IF NOT EXISTS runs_of_schedule ON ONLY runs (schedule_id, status, id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_hobby_of_schedule ON ONLY runs_hobby (schedule_id, status, id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
ALTER INDEX runs_of_schedule ATTACH PARTITION runs_hobby_of_schedule;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_pro_of_schedule ON ONLY runs_pro (schedule_id, status, id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
ALTER INDEX runs_of_schedule ATTACH PARTITION runs_pro_of_schedule;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_scale_of_schedule ON ONLY runs_scale (schedule_id, status, id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
ALTER INDEX runs_of_schedule ATTACH PARTITION runs_scale_of_schedule;
--> statement-breakpoint
CREATE INDEX IF NOT EXISTS runs_enterprise_of_schedule ON ONLY runs_enterprise (schedule_id, status, id) WHERE schedule_id IS NOT NULL;
--> statement-breakpoint
ALTER INDEX runs_of_schedule ATTACH PARTITION runs_enterprise_of_schedule;
--> statement-breakpoint
-- The jobs and runs of schedules that are there already, a thousand jobs in each transaction. Open jobs are locked in the order
-- in which claims lock them.
DO $$
DECLARE
  last_schedule uuid := '00000000-0000-0000-0000-000000000000';
  last_region smallint := -1;
  last_id uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
  LOOP
    WITH batch AS MATERIALIZED (
      SELECT project_no, environment, region, id, schedule_id FROM jobs
       WHERE schedule_id IS NOT NULL AND (schedule_id, region, id) > (last_schedule, last_region, last_id)
       ORDER BY schedule_id, region, id LIMIT 1000
    ), open AS MATERIALIZED (
      SELECT b.*
        FROM (SELECT * FROM batch ORDER BY id) b
       CROSS JOIN LATERAL (
             SELECT FROM open_jobs o
              WHERE o.project_no = b.project_no AND o.environment = b.environment AND o.region = b.region AND o.job_id = b.id
                FOR NO KEY UPDATE) o
    ), of_open AS (
      UPDATE open_jobs o SET schedule_id = b.schedule_id FROM open b
       WHERE o.project_no = b.project_no AND o.environment = b.environment AND o.region = b.region AND o.job_id = b.id
    ), of_ended AS (
      UPDATE ended_jobs e SET schedule_id = b.schedule_id FROM batch b
       WHERE e.project_no = b.project_no AND e.environment = b.environment AND e.status = ANY ('{0,1,2}')
         AND e.region = b.region AND e.job_id = b.id
    ), of_runs AS (
      UPDATE runs r SET schedule_id = b.schedule_id FROM batch b WHERE r.job_id = b.id
    )
    SELECT schedule_id, region, id INTO last_schedule, last_region, last_id
      FROM batch ORDER BY schedule_id DESC, region DESC, id DESC LIMIT 1;
    EXIT WHEN NOT FOUND;
    COMMIT;
  END LOOP;
END
$$;
