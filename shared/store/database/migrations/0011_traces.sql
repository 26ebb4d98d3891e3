-- Where something stands in a trace (W3C Trace Context): 16 bytes of the trace, 8 of the span, 1 of flags. Null for what
-- belongs to no trace but its own, which takes no room. A manual retry brings a place of its own, which its attempts and
-- their event have instead of the job's.
ALTER TABLE jobs ADD COLUMN trace bytea;
--> statement-breakpoint
ALTER TABLE open_jobs ADD COLUMN trace bytea;
--> statement-breakpoint
ALTER TABLE events ADD COLUMN trace bytea;
