-- What an Idempotency-Key has made, for 24 hours, written by the statement that made it. Jobs never change, so their ids
-- are enough to render the first answer again; of a manual retry's run, which does change, what the answer told is kept.
CREATE TABLE idempotency_keys (
  created_at timestamptz NOT NULL,
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  attempt smallint,
  -- SHA-256 of the route and the key.
  digest bytea NOT NULL,
  -- SHA-256 of the request's body as a JSON value.
  request_hash bytea NOT NULL,
  job_ids uuid[] NOT NULL,
  run_id uuid,
  PRIMARY KEY (project_no, environment, digest)
);
--> statement-breakpoint
CREATE INDEX idempotency_keys_age ON idempotency_keys (created_at);
