-- Regions and environments are stored as their positions in domain/scope.ts, run and job statuses as in
-- codes.ts. Hot tables hold no foreign keys: a check would lock the project's row once for every inserted row,
-- and projects are never deleted.

CREATE TABLE projects (
  no integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  id uuid NOT NULL UNIQUE,
  name text NOT NULL,
  plan text NOT NULL,
  default_region smallint NOT NULL DEFAULT 0,
  api_version text NOT NULL,
  -- What an operator has negotiated; null means the plan's number.
  requests_per_minute integer,
  concurrency integer,
  schedules integer
);
--> statement-breakpoint
CREATE TABLE api_keys (
  id uuid PRIMARY KEY,
  project_no integer NOT NULL REFERENCES projects (no),
  environment smallint NOT NULL,
  scope text NOT NULL,
  name text,
  -- SHA-256 of the key; the key itself is shown once and kept nowhere.
  hash bytea NOT NULL UNIQUE,
  expires_at timestamptz,
  revoked_at timestamptz,
  last_used_at timestamptz
);
--> statement-breakpoint
CREATE INDEX api_keys_project ON api_keys (project_no);
--> statement-breakpoint
CREATE TABLE signing_secrets (
  id uuid PRIMARY KEY,
  project_no integer NOT NULL REFERENCES projects (no),
  environment smallint NOT NULL,
  -- AES-256-GCM under SECRETS_KEY: nonce, ciphertext, tag.
  sealed bytea NOT NULL,
  -- Set by a rotation: until then the old secret signs beside the new one.
  expires_at timestamptz
);
--> statement-breakpoint
CREATE INDEX signing_secrets_project ON signing_secrets (project_no, environment);
--> statement-breakpoint
-- One narrow row per project, changed by the statements that claim and settle and by nothing else, so that its
-- counts cannot differ from what they count. No index but the key: every update stays on its page (HOT).
CREATE TABLE flows (
  project_no integer PRIMARY KEY REFERENCES projects (no),
  concurrency integer NOT NULL,
  development_jobs integer NOT NULL DEFAULT 0,
  production_jobs integer NOT NULL DEFAULT 0,
  development_webhooks integer NOT NULL DEFAULT 0,
  production_webhooks integer NOT NULL DEFAULT 0,
  -- Permits that ever came back. It orders refusals and returns, which travel by different ways.
  returned bigint NOT NULL DEFAULT 0,
  -- One bit per region that was refused a permit and wants to hear of the next that comes free.
  waiting_regions smallint NOT NULL DEFAULT 0,
  -- The UTC month that month_runs counts, and the number that may not be exceeded (null: none).
  month date NOT NULL,
  month_runs bigint NOT NULL DEFAULT 0,
  month_runs_max bigint,
  held boolean NOT NULL DEFAULT false
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
--> statement-breakpoint
CREATE TABLE usage_days (
  project_no integer NOT NULL,
  day date NOT NULL,
  region smallint NOT NULL,
  runs bigint NOT NULL,
  PRIMARY KEY (project_no, day, region)
) WITH (fillfactor = 50);
--> statement-breakpoint
-- One row per process that has ever joined, so that its id is its incarnation. A claim holds KEY SHARE on
-- (id, dead); a declaration of death changes that key and so waits for it, and no claim follows it.
CREATE TABLE nodes (
  id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  kind text NOT NULL,
  name text NOT NULL,
  regions smallint[] NOT NULL,
  -- Which operating system process it is (boot, namespace, pid, start), for proofs of death on one machine.
  process text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  seen_at timestamptz NOT NULL DEFAULT now(),
  dead boolean NOT NULL DEFAULT false,
  UNIQUE (id, dead)
) WITH (fillfactor = 50);
--> statement-breakpoint
CREATE UNIQUE INDEX nodes_living_name ON nodes (kind, name) WHERE NOT dead;
--> statement-breakpoint
-- Who owns which shard. A takeover increments epoch; writes made by virtue of owning a shard hold KEY SHARE on
-- (region, shard, epoch), which a renewal leaves alone and a takeover changes.
CREATE TABLE shards (
  region smallint NOT NULL,
  shard smallint NOT NULL,
  epoch bigint NOT NULL DEFAULT 0,
  owner integer,
  lease_until timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (region, shard),
  UNIQUE (region, shard, epoch)
) WITH (fillfactor = 50);
--> statement-breakpoint
-- Where a project's jobs of one region and environment are looked after. A row appears with the first job. It is
-- the list that the sweep walks, so finding a project costs nothing that grows with anybody's backlog.
CREATE TABLE lanes (
  project_no integer NOT NULL,
  region smallint NOT NULL,
  environment smallint NOT NULL,
  shard smallint NOT NULL,
  PRIMARY KEY (project_no, region, environment)
);
--> statement-breakpoint
CREATE INDEX lanes_shard ON lanes (region, shard);
--> statement-breakpoint
-- What was asked: written once, never changed. created_at is the time in the id.
CREATE TABLE jobs (
  run_at timestamptz NOT NULL,
  project_no integer NOT NULL,
  base_seconds integer NOT NULL,
  cap_seconds integer NOT NULL,
  environment smallint NOT NULL,
  region smallint NOT NULL,
  max_attempts smallint NOT NULL,
  id uuid NOT NULL,
  schedule_id uuid,
  target_url text NOT NULL,
  -- The JSON text as it was accepted, without insignificant white space. Not jsonb, which rounds numbers and
  -- refuses \u0000.
  payload text NOT NULL,
  PRIMARY KEY (project_no, environment, region, id)
);
--> statement-breakpoint
-- What is owed: one row per job that is not over. due_at is set while an attempt is owed and null while one is in
-- progress; run_id is set while the owed or running attempt has its run (a manual retry has one before it is sent);
-- node_id is set while it is on the wire.
CREATE TABLE open_jobs (
  due_at timestamptz,
  started_at timestamptz,
  project_no integer NOT NULL,
  node_id integer,
  environment smallint NOT NULL,
  region smallint NOT NULL,
  -- The number of the attempt owed or in progress.
  attempt smallint NOT NULL DEFAULT 1,
  attempts_allowed smallint NOT NULL,
  -- Set by a cancel while the attempt is on the wire: it runs to its end and nothing follows.
  canceled boolean NOT NULL DEFAULT false,
  job_id uuid NOT NULL,
  run_id uuid,
  PRIMARY KEY (project_no, environment, region, job_id)
) WITH (
  fillfactor = 90,
  autovacuum_vacuum_scale_factor = 0.01,
  autovacuum_vacuum_threshold = 5000,
  autovacuum_vacuum_cost_delay = 0
);
--> statement-breakpoint
CREATE INDEX open_jobs_due ON open_jobs (project_no, region, environment, due_at) WHERE due_at IS NOT NULL;
--> statement-breakpoint
CREATE INDEX open_jobs_running ON open_jobs (project_no, run_id) WHERE run_id IS NOT NULL;
--> statement-breakpoint
-- How a job ended. A manual retry takes the row away again.
CREATE TABLE ended_jobs (
  ended_at timestamptz NOT NULL,
  project_no integer NOT NULL,
  environment smallint NOT NULL,
  status smallint NOT NULL,
  region smallint NOT NULL,
  attempts smallint NOT NULL,
  job_id uuid NOT NULL,
  PRIMARY KEY (project_no, environment, status, region, job_id)
);
--> statement-breakpoint
-- The record of an attempt, written when it ends; while it is in progress open_jobs holds it.
CREATE TABLE runs (
  started_at timestamptz NOT NULL,
  next_retry_at timestamptz,
  project_no integer NOT NULL,
  duration_ms integer NOT NULL,
  environment smallint NOT NULL,
  status smallint NOT NULL,
  attempt smallint NOT NULL,
  response_status smallint,
  id uuid NOT NULL,
  job_id uuid NOT NULL,
  error text,
  UNIQUE (job_id, attempt)
);
--> statement-breakpoint
CREATE INDEX runs_listed ON runs (project_no, environment, status, id);
