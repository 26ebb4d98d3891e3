-- The request rate of a project's environment: what was accepted in each tenth of a second of the last minute, and the
-- sum of it in one row, whose lock orders the gateways. The sum is what decides: a statement that waited for the lock
-- reads that row as it is, while other rows it sees as they were when it began.
CREATE TABLE rate_windows (
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  accepted integer NOT NULL DEFAULT 0,
  PRIMARY KEY (project_no, environment)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
--> statement-breakpoint
CREATE TABLE rate_ticks (
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  -- Tenths of a second since 1970.
  tick bigint NOT NULL,
  accepted integer NOT NULL,
  PRIMARY KEY (project_no, environment, tick)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
--> statement-breakpoint
INSERT INTO rate_windows (project_no, environment)
SELECT no, environment FROM projects CROSS JOIN (VALUES (0), (1)) AS e (environment);
