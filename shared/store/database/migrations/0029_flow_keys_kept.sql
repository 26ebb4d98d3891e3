-- How many keys an environment keeps pinned or paused is limited, so they are counted.
DROP INDEX CONCURRENTLY IF EXISTS flow_keys_kept;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY flow_keys_kept ON flow_keys (project_no, environment) WHERE pinned OR paused;
