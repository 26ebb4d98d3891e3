-- What operators did is asked for when something is wrong, and stands among all that keys did. Built beside the traffic; an
-- attempt that broke off leaves an index that is not valid.
DROP INDEX CONCURRENTLY IF EXISTS audit_entries_operators;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY audit_entries_operators ON audit_entries (id) WHERE operator IS NOT NULL;
