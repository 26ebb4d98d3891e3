-- Whom an environment's events are told. Whoever changes a row holds its project's flow first, as claims and settlements do.
CREATE TABLE webhooks (
  -- The start of the first attempt of those that failed with no later one succeeding; null while there is none.
  failing_since timestamptz,
  -- The latest start of an attempt that succeeded.
  succeeded_at timestamptz,
  -- Until then the secret before the last rotation signs as well.
  old_secret_until timestamptz,
  project_no integer NOT NULL,
  -- How often it was disabled. What was owed to it before is not sent any more, however soon it is enabled again.
  generation integer NOT NULL DEFAULT 0,
  environment smallint NOT NULL,
  -- One bit for each type of event.
  events smallint NOT NULL,
  enabled boolean NOT NULL DEFAULT true,
  id uuid NOT NULL,
  url text NOT NULL,
  description text,
  -- AES-256-GCM under SECRETS_KEY: nonce, ciphertext, tag.
  sealed_secret bytea NOT NULL,
  sealed_old_secret bytea,
  PRIMARY KEY (project_no, environment, id)
) WITH (fillfactor = 50);
--> statement-breakpoint
-- One row for each terminal transition that somebody was to hear of: the facts that its body is rendered from. Its id
-- has the bits of the run that ended the job, so a transition cannot have two. Without a job it is a sample.
CREATE TABLE events (
  occurred_at timestamptz NOT NULL,
  started_at timestamptz NOT NULL,
  project_no integer NOT NULL,
  duration_ms integer NOT NULL,
  environment smallint NOT NULL,
  region smallint NOT NULL,
  type smallint NOT NULL,
  attempt smallint NOT NULL,
  run_status smallint NOT NULL,
  response_status smallint,
  id uuid NOT NULL,
  job_id uuid,
  api_version text NOT NULL,
  error text,
  PRIMARY KEY (project_no, environment, id)
);
--> statement-breakpoint
-- For the purge. Not brin: vacuumed pages are filled with what is new, until every range has something of every age.
CREATE INDEX events_age ON events (occurred_at);
--> statement-breakpoint
-- What is owed to endpoints: one row per event and endpoint until it has ended. due_at is set while an attempt is owed
-- and null while one is on the wire; attempt_id and node_id are set while it is.
CREATE TABLE open_deliveries (
  due_at timestamptz,
  started_at timestamptz,
  first_started_at timestamptz,
  project_no integer NOT NULL,
  node_id integer,
  -- The endpoint's when this was written.
  generation integer NOT NULL,
  environment smallint NOT NULL,
  region smallint NOT NULL,
  -- How many of the waits between attempts were used.
  waits smallint NOT NULL DEFAULT 0,
  -- The number of the attempt owed or on the wire.
  attempt smallint NOT NULL DEFAULT 1,
  -- Asked for by hand once it had ended: whatever comes of this attempt, none follows by itself.
  by_hand boolean NOT NULL DEFAULT false,
  id uuid NOT NULL,
  webhook_id uuid NOT NULL,
  event_id uuid NOT NULL,
  attempt_id uuid,
  PRIMARY KEY (project_no, environment, region, id)
) WITH (
  fillfactor = 90,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
--> statement-breakpoint
CREATE INDEX open_deliveries_due ON open_deliveries (project_no, region, environment, due_at) WHERE due_at IS NOT NULL;
--> statement-breakpoint
CREATE INDEX open_deliveries_running ON open_deliveries (node_id) WHERE node_id IS NOT NULL;
--> statement-breakpoint
CREATE INDEX open_deliveries_listed ON open_deliveries (project_no, environment, webhook_id, generation, id);
--> statement-breakpoint
CREATE TABLE ended_deliveries (
  ended_at timestamptz NOT NULL,
  first_started_at timestamptz,
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  region smallint NOT NULL,
  status smallint NOT NULL,
  attempts smallint NOT NULL,
  id uuid NOT NULL,
  webhook_id uuid NOT NULL,
  event_id uuid NOT NULL,
  PRIMARY KEY (project_no, environment, webhook_id, status, id)
);
--> statement-breakpoint
CREATE INDEX ended_deliveries_age ON ended_deliveries (ended_at);
--> statement-breakpoint
-- Each attempt of a delivery that has ended.
CREATE TABLE delivery_attempts (
  started_at timestamptz NOT NULL,
  duration_ms integer NOT NULL,
  attempt smallint NOT NULL,
  status smallint NOT NULL,
  response_status smallint,
  -- Whether its failure tells of the endpoint's health: not one of our own fault, nor one that was asked for by hand.
  counts boolean NOT NULL DEFAULT true,
  delivery_id uuid NOT NULL,
  webhook_id uuid NOT NULL,
  error text,
  PRIMARY KEY (delivery_id, attempt)
);
--> statement-breakpoint
-- Since when everything sent to an endpoint has failed is looked up here where an attempt that began before has succeeded.
CREATE INDEX delivery_attempts_failed ON delivery_attempts (webhook_id, started_at) WHERE status <> 1 AND counts;
--> statement-breakpoint
-- Which lanes have ever had a delivery: the sweep for deliveries walks no others.
ALTER TABLE lanes ADD COLUMN has_deliveries boolean NOT NULL DEFAULT false;
--> statement-breakpoint
CREATE INDEX lanes_with_deliveries ON lanes (region, shard) WHERE has_deliveries;
--> statement-breakpoint
-- subscriptions: one bit for each environment and type of event that some endpoint may want to hear of.
-- waiting: one bit for each class and region that was refused a permit. It stands in for waiting_regions, which only
-- processes of the release before this one still use; a migration of the next release drops it.
-- called_at: of each class, when it was last told that permits are free; -infinity once it has come for its own.
-- last_class: the one that was granted a permit last.
ALTER TABLE flows
  ADD COLUMN subscriptions smallint NOT NULL DEFAULT 0,
  ADD COLUMN waiting integer NOT NULL DEFAULT 0,
  ADD COLUMN last_class smallint NOT NULL DEFAULT 0,
  ADD COLUMN called_at timestamptz[] NOT NULL DEFAULT '{-infinity,-infinity,-infinity,-infinity}';
