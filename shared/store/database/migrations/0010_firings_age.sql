-- A brin index reads the whole table once rows have been purged for as long as they are kept: vacuumed pages are filled with
-- what is new, until every range has something of every age.
DROP INDEX firings_age;
--> statement-breakpoint
CREATE INDEX firings_age ON firings (fired_for);
