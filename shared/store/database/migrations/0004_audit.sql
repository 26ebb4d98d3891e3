-- Who changed what. A job is written once and never changed, so its row is the record of its creation; every other change
-- by a key or an operator has an entry, written by the statement that makes the change. Ids are those of the requests,
-- which are ordered by time.

ALTER TABLE api_keys ADD COLUMN no integer GENERATED ALWAYS AS IDENTITY UNIQUE;
--> statement-breakpoint
-- Null where no key asked for the job.
ALTER TABLE jobs ADD COLUMN key_no integer;
--> statement-breakpoint
-- The request that created the job, where it has not the same 128 bits as the job's own id: one of a batch.
ALTER TABLE jobs ADD COLUMN request_id uuid;
--> statement-breakpoint
CREATE TABLE audit_entries (
  id uuid PRIMARY KEY,
  recorded_at timestamptz NOT NULL DEFAULT now(),
  project_no integer,
  environment smallint,
  key_no integer,
  operator text,
  action text NOT NULL,
  -- The id, or for a node the name, of what was changed.
  subject text NOT NULL,
  -- What it was changed to, where the action does not say it; never a key, a secret or a payload.
  detail json,
  CHECK ((key_no IS NULL) <> (operator IS NULL))
);
--> statement-breakpoint
CREATE INDEX audit_entries_project ON audit_entries (project_no, id);
--> statement-breakpoint
CREATE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
END
$$;
--> statement-breakpoint
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON audit_entries
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_change();
