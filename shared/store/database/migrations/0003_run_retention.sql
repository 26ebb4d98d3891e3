-- Runs stand apart by how long they are kept and by when they began, so that retention drops whole tables. A class is
-- the position of a plan (codes.ts), and a greater one keeps longer. Ids are ordered by time: a range of ids is a range of
-- time, and a look-up by id meets one table of each class. The ranges are made and dropped as time goes by
-- (retention.ts); what falls in none stands in its class's DEFAULT, so that no settlement fails for want of a table.
-- (job_id, attempt) is unique because a settlement matches the run id of the attempt in progress, which it ends.

ALTER TABLE flows ADD COLUMN retention_class smallint;
--> statement-breakpoint
UPDATE flows f
   SET retention_class = CASE p.plan WHEN 'hobby' THEN 0 WHEN 'pro' THEN 1 WHEN 'scale' THEN 2 ELSE 3 END
  FROM projects p WHERE p.no = f.project_no;
--> statement-breakpoint
ALTER TABLE flows ALTER COLUMN retention_class SET NOT NULL;
--> statement-breakpoint
-- Projects that have runs in a shorter class than their plan's: since when. An upgrade notes one with the plan.
CREATE TABLE run_moves (
  project_no integer PRIMARY KEY,
  noted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
--> statement-breakpoint
ALTER TABLE runs RENAME TO runs_unsorted;
--> statement-breakpoint
ALTER TABLE runs_unsorted DROP CONSTRAINT runs_job_id_attempt_key;
--> statement-breakpoint
ALTER INDEX runs_listed RENAME TO runs_unsorted_listed;
--> statement-breakpoint
-- A process of the version before knows of no class: what it still settles is kept as long as any.
CREATE TABLE runs (
  started_at timestamptz NOT NULL,
  next_retry_at timestamptz,
  project_no integer NOT NULL,
  duration_ms integer NOT NULL,
  environment smallint NOT NULL,
  status smallint NOT NULL,
  attempt smallint NOT NULL,
  response_status smallint,
  retention_class smallint NOT NULL DEFAULT 3,
  id uuid NOT NULL,
  job_id uuid NOT NULL,
  error text
) PARTITION BY LIST (retention_class);
--> statement-breakpoint
CREATE INDEX runs_of_job ON runs (job_id, attempt);
--> statement-breakpoint
CREATE INDEX runs_listed ON runs (project_no, environment, status, id);
--> statement-breakpoint
CREATE TABLE runs_hobby PARTITION OF runs FOR VALUES IN (0) PARTITION BY RANGE (id);
--> statement-breakpoint
CREATE TABLE runs_hobby_default PARTITION OF runs_hobby DEFAULT;
--> statement-breakpoint
CREATE TABLE runs_pro PARTITION OF runs FOR VALUES IN (1) PARTITION BY RANGE (id);
--> statement-breakpoint
CREATE TABLE runs_pro_default PARTITION OF runs_pro DEFAULT;
--> statement-breakpoint
CREATE TABLE runs_scale PARTITION OF runs FOR VALUES IN (2) PARTITION BY RANGE (id);
--> statement-breakpoint
CREATE TABLE runs_scale_default PARTITION OF runs_scale DEFAULT;
--> statement-breakpoint
CREATE TABLE runs_enterprise PARTITION OF runs FOR VALUES IN (3) PARTITION BY RANGE (id);
--> statement-breakpoint
CREATE TABLE runs_enterprise_default PARTITION OF runs_enterprise DEFAULT;
--> statement-breakpoint
-- The runs of before are in the shortest class of all, and are moved like those of an upgraded project, a few at a time.
DO $$
BEGIN
  IF EXISTS (SELECT FROM runs_unsorted) THEN
    ALTER TABLE runs_unsorted ADD COLUMN retention_class smallint NOT NULL DEFAULT -1;
    ALTER TABLE runs ATTACH PARTITION runs_unsorted FOR VALUES IN (-1);
    INSERT INTO run_moves (project_no) SELECT no FROM projects;
  ELSE
    DROP TABLE runs_unsorted;
  END IF;
END
$$;
