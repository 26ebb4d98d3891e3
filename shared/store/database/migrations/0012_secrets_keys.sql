-- The keys that have sealed secrets of this cell, by fingerprints from which nothing of a key follows. A process without one
-- of those under which something may be sealed does not start, so that a mistyped key seals nothing.
CREATE TABLE secrets_keys (
  -- For the key of a cell that is older than this table: when its oldest secret was made.
  first_used_at timestamptz NOT NULL DEFAULT now(),
  -- When nothing was left under it.
  retired_at timestamptz,
  -- The one that seals now.
  seals boolean NOT NULL,
  fingerprint text PRIMARY KEY
);
--> statement-breakpoint
CREATE UNIQUE INDEX secrets_keys_sealing ON secrets_keys (seals) WHERE seals;
