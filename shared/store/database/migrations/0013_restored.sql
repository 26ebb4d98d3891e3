-- How many beats of a node were committed: one that was answered and is not there was lost with the rest of its time.
ALTER TABLE nodes ADD COLUMN beats bigint NOT NULL DEFAULT 0;
--> statement-breakpoint
-- Tells a dump that was restored into another database of the same server.
ALTER TABLE cell ADD COLUMN database_oid bigint;
--> statement-breakpoint
-- Not by an operator, but because the database was found to be a restored one.
ALTER TABLE held_regions ADD COLUMN restored boolean NOT NULL DEFAULT false;
