-- Delivery nodes take the calls of a few projects at a time, those of flow keys and those of hosts apart.
DROP INDEX CONCURRENTLY IF EXISTS gate_calls_of_keys;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY gate_calls_of_keys ON gate_calls (project_no, id) WHERE gate NOT LIKE 'h%';
--> statement-breakpoint
DROP INDEX CONCURRENTLY IF EXISTS gate_calls_of_hosts;
--> statement-breakpoint
CREATE INDEX CONCURRENTLY gate_calls_of_hosts ON gate_calls (project_no, id) WHERE gate LIKE 'h%';
