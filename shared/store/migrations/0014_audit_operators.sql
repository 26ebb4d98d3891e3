-- What operators did is asked for when something is wrong, and stands among all that keys did.
CREATE INDEX audit_entries_operators ON audit_entries (id) WHERE operator IS NOT NULL;
